"""A file of lines on disk, one for each image as it is done: never lost by a crash, gone on with after it, written by one process
or by many."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from melm.errors import MelmError, UsageError, damaged
from melm.files import lock, whole_file, write_whole
from melm.learn.processes import ALONE, Processes

if TYPE_CHECKING:
    from typing_extensions import Self

SYNC_SECONDS = 5.0  # what a power cut can cost; a killed process loses nothing


class LinesFile:
    """A file of lines, one for each image, with the settings it was made with beside it. `done` are the ids that have a line.

    The same settings on the same file go on where it stopped; other settings are refused, unless `overwrite` starts anew.
    `id_of(path, number, line)` reads a line, and raises for one that is damaged.

    The first of many processes writes the file itself, each other one a part beside it (`labels.2-of-3.jsonl`), which `join` adds
    to it. Parts of a run that was stopped, with however many processes, are added before anything else.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        id_of: Callable[[Path, int, bytes], str],
        *,
        overwrite: bool = False,
        processes: Processes = ALONE,
    ) -> None:
        self.path, self.processes, self._id_of = path, processes, id_of
        self._own = path if processes.first else self._part(processes.rank)  # what this process writes
        self.done: set[str] = set()
        self._starts: dict[str, int] = {}  # where the line of an image begins in it
        self._size = 0  # of all whole lines in it, in bytes
        self._synced = time.monotonic()
        as_read: dict[str, Any] = json.loads(json.dumps(settings))  # lists for tuples
        self.done = processes.first_does(lambda: self._start(as_read, overwrite))
        if not processes.first:
            self._start_part(as_read)

    def append_line(self, id: str, line: bytes) -> None:
        """Adds one image. Whole or not at all, and safe from now on if the process is killed."""
        if id in self.done:
            raise ValueError(f"{id!r} is there already")
        try:
            rest = memoryview(line)
            while rest:  # once, unless the disk fills up in the middle
                rest = rest[self._file.write(rest) :]
            if time.monotonic() - self._synced > SYNC_SECONDS:
                self._sync()
        except OSError as error:
            with contextlib.suppress(OSError):  # what cannot be cut off now is dropped when the work goes on
                self._file.truncate(self._size)
            raise _unwritable(self._own, error, kept=True) from None
        self._note(id, line)

    def join(self, order: Sequence[str]) -> None:
        """Ends the work, once every process is here: all lines in the one file, those of the images `order` in that order, and
        no parts."""
        if not self.processes.first:
            self.close()
        self.processes.wait()
        self.processes.first_does(lambda: self._join(order))

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._sync()
        except OSError as error:
            raise _unwritable(self._own, error, kept=True) from None
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except MelmError:
            if error is None:  # else the first error is the one to tell
                raise

    def _open(self) -> None:
        try:
            self._own.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._own.open("ab", buffering=0)
        except OSError as error:
            raise _unwritable(self._own, error) from None
        try:
            lock(self._file, self._own)
        except BaseException:
            self._file.close()
            raise

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def _note(self, id: str, line: bytes) -> None:
        self.done.add(id)
        self._starts[id] = self._size
        self._size += len(line)

    def _start(self, settings: dict[str, Any], overwrite: bool) -> set[str]:
        """The first process: opens the file and finds what is done, in it and in the parts that others left."""
        self._open()
        try:
            self._compare(settings, overwrite)
            for number, line in whole_lines(self.path):
                id = self._id_of(self.path, number, line)
                if id in self.done:
                    raise damaged(self.path, number, f"the image {id!r} is there twice")
                self._note(id, line)
            self._file.truncate(self._size)  # a line that a killed process left unfinished
            for part in parts_beside(self.path):
                self._take_up(part)
        except OSError as error:
            self._file.close()
            raise _unwritable(self.path, error, kept=True) from None
        except BaseException:
            self._file.close()
            raise
        return self.done

    def _compare(self, settings: dict[str, Any], overwrite: bool) -> None:
        """Refuses settings other than those of before, or empties the file; writes down those of a new one."""
        beside = settings_beside(self.path)
        before = None if overwrite else read_settings(beside)
        if overwrite:
            for part in parts_beside(self.path):  # before all else: what is stopped after this goes on without
                with _held(part):
                    pass
                part.unlink()
            self._file.truncate(0)
        elif before is not None:
            _require_same(self.path, before, settings)
        elif self.path.stat().st_size:
            raise UsageError(f"{self.path}: {beside.name} should be beside it and is not. --overwrite starts anew")
        if before is None:
            try:
                write_whole(beside, json.dumps(settings, indent=1).encode())
            except OSError as error:
                raise _unwritable(beside, error) from None

    def _start_part(self, settings: dict[str, Any]) -> None:
        """Another process: opens its part, once the first has taken up what was there."""
        beside = settings_beside(self.path)
        if read_settings(beside) != settings:
            raise MelmError(
                f"{beside}: not there, or not as the first process wrote it. All processes need the same folder: "
                "on several machines, one that they share"
            )
        self._open()
        try:
            self._file.truncate(0)
        except OSError as error:
            self._file.close()
            raise _unwritable(self._own, error) from None

    def _part(self, rank: int) -> Path:
        return self.path.with_name(f"{self.path.stem}.{rank + 1}-of-{self.processes.world}{self.path.suffix}")

    def _take_up(self, part: Path) -> None:
        """Adds the lines of a part and removes it. A kill between the two leaves lines that are in both: these count once."""
        with _held(part):
            for number, line in whole_lines(part):
                id = self._id_of(part, number, line)
                if id not in self.done:
                    self.append_line(id, line)
        try:
            self._sync()
            part.unlink()
        except OSError as error:
            raise _unwritable(self.path, error, kept=True) from None

    def _join(self, order: Sequence[str]) -> None:
        for rank in range(1, self.processes.world):
            self._take_up(self._part(rank))
        self._put_in_order(order)
        self.close()

    def _put_in_order(self, order: Sequence[str]) -> None:
        """The lines of the images `order` in that order, in the places that they have together; all others stay."""
        turns = {id: turn for turn, id in enumerate(order)}
        there = list(self._starts)
        moved = iter(sorted((id for id in there if id in turns), key=turns.__getitem__))
        wanted = [next(moved) if id in turns else id for id in there]
        if wanted == there:
            return
        try:
            with whole_file(self.path) as file:
                with self.path.open("rb") as lines:
                    for id in wanted:
                        lines.seek(self._starts[id])
                        file.write(lines.readline())
                if sys.platform == "win32":
                    self._file.close()  # what is open cannot be replaced there
        except OSError as error:
            raise _unwritable(self.path, error, kept=True) from None


def settings_beside(path: Path) -> Path:
    """Where the settings of a file of lines are: `labels.settings.json` beside `labels.jsonl`."""
    return path.with_name(f"{path.stem}.settings.json")


def parts_beside(path: Path) -> list[Path]:
    """What processes other than the first have written and nobody has joined yet."""
    name = re.compile(rf"{re.escape(path.stem)}\.\d+-of-\d+{re.escape(path.suffix)}")
    return sorted(other for other in path.parent.iterdir() if name.fullmatch(other.name))


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number, line) of a file's lines, without one at the end that a killed process left unfinished."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield number, line


def read_settings(path: Path) -> dict[str, Any] | None:
    try:
        settings = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise MelmError(f"{path}: cannot be read ({error}). --overwrite starts anew") from None
    if not isinstance(settings, dict):
        raise MelmError(f"{path}: not settings of melm. --overwrite starts anew")
    return settings


@contextlib.contextmanager
def _held(part: Path) -> Iterator[None]:
    """A part that nobody is writing any more."""
    try:
        file = part.open("r+b")
    except OSError as error:
        raise MelmError(
            f"{part}: cannot be read ({error.strerror}). What was finished is kept: the same command goes on"
        ) from None
    with file:
        lock(file, part)
        yield


def _require_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    old, new = dict(_flat(before)), dict(_flat(now))
    different = [
        f"  {key}: {old.get(key, 'not set')} there, {new.get(key, 'not set')} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if different:
        lines = "\n".join(different)
        raise UsageError(f"{path}: was made with other settings. --overwrite starts anew\n{lines}")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting as (key, JSON); those of a group as `group.key`."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value, ensure_ascii=False)


def _unwritable(path: Path, error: OSError, kept: bool = False) -> MelmError:
    finished = ". What was finished is kept: make room and run again" if kept else ". Name another folder"
    return MelmError(f"{path}: cannot be written ({error.strerror}){finished}")
