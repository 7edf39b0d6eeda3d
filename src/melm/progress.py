"""Progress with time left: a bar on a terminal, a plain line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

FIRST_LINE_AFTER = 2.0  # seconds: shorter jobs stay silent
LINE_EVERY = 15.0


def duration(seconds: float) -> str:
    """8 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Steps:
    """Counts the steps of a long job. Use as a context manager and call `advance`."""

    def __init__(self, name: str, total: int = 0, stream: TextIO | None = None, done: int = 0) -> None:
        self.name, self.total, self.done, self.begun = name, total, done, done
        self.note = ""
        self.stream = stream or sys.stderr
        self.started = self.printed = time.monotonic()
        self.bar: Progress | None = None
        if self.stream.isatty():
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(file=self.stream),
            )
            self.task = self.bar.add_task(name, total=total, completed=done, note="")

    def __enter__(self) -> Steps:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()
        elif self.printed > self.started and kind is None:
            self._print()

    def of(self, total: int) -> None:
        """One more step of a job whose length is known only now."""
        self.total = total
        if self.bar:
            self.bar.update(self.task, total=total)
        self.advance()

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Some steps are done; `note` is said beside the progress."""
        self.done += steps
        self.note = note
        if self.bar:
            self.bar.update(self.task, advance=steps, note=note)
            return
        now = time.monotonic()
        wait = FIRST_LINE_AFTER if self.printed == self.started else LINE_EVERY
        if now - self.printed >= wait:
            self.printed = now
            self._print()

    def _print(self) -> None:
        spent = time.monotonic() - self.started
        left = spent / max(self.done - self.begun, 1) * (self.total - self.done)
        share = 100 * self.done // max(self.total, 1)
        tail = f"{duration(left)} left" if self.done < self.total else f"in {duration(spent)}"
        note = f"; {self.note}" if self.note else ""
        print(f"{self.name}: {self.done:,} of {self.total:,} ({share}%), {tail}{note}", file=self.stream, flush=True)
