"""Results on disk as they come: one line of JSON per image, never lost by a crash and gone on with after it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from melm.detect.detections import Detections
from melm.detect.lines import Result, damaged, line_of, parsed
from melm.errors import MelmError, UsageError
from melm.files import lock, write_whole

if TYPE_CHECKING:
    from typing_extensions import Self

RESULTS = "detections.jsonl"
SYNC_SECONDS = 5.0  # what a power cut can cost; a killed process loses nothing


class LinesFile:
    """A file of lines, one for each image, with the settings it was made with beside it. `done` are the ids that are in it.

    The same settings on the same file go on where it stopped; other settings are refused, unless `overwrite` starts anew.
    `id_of(path, number, line)` reads a line, and raises for one that is damaged.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        id_of: Callable[[Path, int, bytes], str],
        *,
        overwrite: bool = False,
    ) -> None:
        self.path, self._id_of = path, id_of
        self.done: set[str] = set()
        self._size = 0  # of all whole lines, in bytes
        self._synced = time.monotonic()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        try:
            lock(self._file, self.path)
            self._start(settings, overwrite)
        except BaseException:
            self._file.close()
            raise

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
            raise _unwritable(self.path, error, kept=True) from None
        self._size += len(line)
        self.done.add(id)

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._sync()
        except OSError as error:
            raise _unwritable(self.path, error, kept=True) from None
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

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def _start(self, settings: Mapping[str, Any], overwrite: bool) -> None:
        """Compares the settings, finds what is done, and cuts off a line that a killed process left unfinished."""
        beside = settings_beside(self.path)
        settings = json.loads(json.dumps(settings))  # as they will be read: lists for tuples
        before = None if overwrite else read_settings(beside)
        if overwrite:
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
        for number, line in whole_lines(self.path):
            self._size += len(line)
            id = self._id_of(self.path, number, line)
            if id in self.done:
                raise damaged(self.path, number, f"the image {id!r} is there twice")
            self.done.add(id)
        self._file.truncate(self._size)


class ResultsFile(LinesFile):
    """`FOLDER/detections.jsonl`: what was found in each image."""

    def __init__(
        self, folder: Path, names: Sequence[str], settings: Mapping[str, Any], *, overwrite: bool = False
    ) -> None:
        self.names = tuple(names)
        settings = {**settings, "classes": list(self.names)}
        super().__init__(folder / RESULTS, settings, self._id, overwrite=overwrite)

    def append(self, id: str, file: str, detections: Detections) -> None:
        """Adds what was found in one image."""
        if detections.names != self.names:
            raise ValueError(f"detections of the classes {detections.names} in a file for {self.names}")
        self.append_line(id, line_of(id, file, detections))

    def _id(self, path: Path, number: int, line: bytes) -> str:
        return parsed(path, number, line, self.names)[0]


def settings_beside(path: Path) -> Path:
    """Where the settings of a file of lines are: `labels.settings.json` beside `labels.jsonl`."""
    return path.with_name(f"{path.stem}.settings.json")


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number, line) of a file's lines, without one at the end that a killed process left unfinished."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield number, line


def read_results(path: Path, names: Sequence[str] | None = None) -> Iterator[Result]:
    """The images of a results file one by one, in constant memory.

    `names` are all classes of the detector; if not given, they are read from the settings beside the file.
    """
    if names is None:
        names = classes_beside(path)
    names = tuple(names)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    raise damaged(path, number, "the line is cut. The same command that wrote it goes on from here")
                yield parsed(path, number, line, names)
    except OSError as error:
        raise MelmError(f"{path}: cannot be read ({error.strerror})") from None


def classes_beside(path: Path) -> tuple[str, ...]:
    """The detector's classes, of the settings beside a file of lines."""
    beside = settings_beside(path)
    names = (read_settings(beside) or {}).get("classes")
    if not isinstance(names, list):
        raise MelmError(f"{path}: {beside.name} with the detector's classes should be beside it and is not")
    return tuple(names)


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
