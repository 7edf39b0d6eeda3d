"""Detections on disk as they come: one line of JSON per image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from melm.detect.detections import Detections
from melm.detect.lines import Result, line_of, parsed
from melm.errors import MelmError, damaged
from melm.learn.lines_file import LinesFile, read_settings, settings_beside
from melm.learn.processes import ALONE, Processes

RESULTS = "detections.jsonl"


class ResultsFile(LinesFile):
    """`FOLDER/detections.jsonl`: what was found in each image."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        settings: Mapping[str, Any],
        *,
        overwrite: bool = False,
        processes: Processes = ALONE,
    ) -> None:
        self.names = tuple(names)
        settings = {**settings, "classes": list(self.names)}
        super().__init__(folder / RESULTS, settings, self._id, overwrite=overwrite, processes=processes)

    def append(self, id: str, file: str, detections: Detections) -> None:
        """Adds what was found in one image."""
        if detections.names != self.names:
            raise ValueError(f"detections of the classes {detections.names} in a file for {self.names}")
        self.append_line(id, line_of(id, file, detections))

    def _id(self, path: Path, number: int, line: bytes) -> str:
        return parsed(path, number, line, self.names)[0]


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
