"""Pseudo-labels: the boxes of an image's own tags, how sure each is, and the file they are kept in."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melm.boxes import nms, voted
from melm.detect.detections import Detections
from melm.detect.lines import line_of, parsed
from melm.detect.results import classes_beside
from melm.errors import MelmError, UsageError, damaged
from melm.learn.lines_file import LinesFile, read_settings, settings_beside, whole_lines
from melm.learn.processes import ALONE, Processes

LABELS = "labels.jsonl"


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """One image with the boxes of its tags."""

    id: str
    path: Path
    tags: tuple[str, ...]
    found: Detections  # of the tags alone; `scores` are confidences
    best: NDArray[
        np.bool_
    ]  # (M,) whether a box is the best of its tag: there because a tag is a promise, however unsure

    @property
    def doubt(self) -> float:
        """From 0 to 1: how unsure the least sure of its tags is. An image that shows nothing has none."""
        return 1 - float(self.found.scores[self.best].min()) if self.best.any() else 0.0


def tag_boxes(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    present: float,
    overlap: float,
    vote: float,
    alike: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The objects of one tag (M, 4) among proposals (N, 4) with scores (N,), and how sure each is (M,), best first.

    Suppression with `overlap`, voting with `vote`; the best is always an object, and others with at least the share `alike` of
    its score. How sure: that the tag is right at all (`present`, the detector's own P(y) of the image), times the object's share
    of its score and those of all places that are none: a place without a rival has 1, one among ten like it 0.1. How well that
    foretells which labels are right: docs/labels.md.
    """
    kept = nms(boxes, scores, overlap)
    values = scores[kept].astype(np.float64)
    chosen = (values >= alike * values[0]) & (values > 0)
    chosen[0] = True  # a tag is a promise
    rest = values[~chosen].sum()
    sure = min(present, 1.0) * values[chosen] / np.maximum(values[chosen] + rest, 1e-30)
    places = voted(boxes, scores, kept[chosen], vote) if vote else boxes[kept[chosen]]
    return places, sure.astype(np.float32)


class LabelsFile(LinesFile):
    """`FOLDER/labels.jsonl`, written image by image. `now` has path and tags of the images, by id: labels of another
    image, or of other tags, are refused."""

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        settings: Mapping[str, Any],
        now: Mapping[str, tuple[Path, tuple[str, ...]]],
        *,
        overwrite: bool = False,
        processes: Processes = ALONE,
    ) -> None:
        self.names, self.now = tuple(names), now
        settings = {**settings, "classes": list(self.names)}
        super().__init__(folder / LABELS, settings, self._id, overwrite=overwrite, processes=processes)

    def append(self, image: LabelledImage) -> None:
        record = json.loads(line_of(image.id, str(image.path), image.found))
        record |= {"tags": image.tags, "best": image.best.tolist(), "doubt": round(image.doubt, 6)}
        self.append_line(image.id, json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def _id(self, path: Path, number: int, line: bytes) -> str:
        image = parsed_label(path, number, line, self.names)
        file, tags = self.now.get(image.id, (image.path, image.tags))
        if Path(file) != image.path:
            raise UsageError(
                f"{path}: {image.id!r} was {image.path}, and is {file} now. Name another --out, or start anew with --overwrite"
            )
        if sorted(tags) != sorted(image.tags):
            before, after = (", ".join(names) or "nothing" for names in (image.tags, tags))
            raise UsageError(
                f"{path}: {image.id!r} was labelled as {before}, and is {after} now. --overwrite starts anew"
            )
        return image.id


class Labels:
    """The images of a labels file, or only those with some ids, the most doubtful first. Their places are held in memory."""

    def __init__(self, path: Path, only: Collection[str] | None = None) -> None:
        self.path = path / LABELS if path.is_dir() else path
        if not self.path.is_file():
            raise MelmError(f"{self.path}: there is no such file; `melm label RUN DATA --out FOLDER` writes it")
        self.classes = classes_beside(self.path)
        self.settings = read_settings(settings_beside(self.path)) or {}
        doubts, numbers, starts, at = [], [], [], 0
        for number, line in whole_lines(self.path):
            image = parsed_label(self.path, number, line, self.classes)
            if only is None or image.id in only:
                doubts.append(image.doubt)
                numbers.append(number)
                starts.append(at)
            at += len(line)
        order = np.argsort(-np.array(doubts, np.float32), kind="stable")
        self._numbers, self._starts = (np.array(values, np.int64)[order] for values in (numbers, starts))

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[LabelledImage]:
        with self.path.open("rb") as file:
            for number, start in zip(self._numbers.tolist(), self._starts.tolist(), strict=True):
                file.seek(start)
                yield parsed_label(self.path, number, file.readline(), self.classes)


def parsed_label(path: Path, number: int, line: bytes, names: tuple[str, ...]) -> LabelledImage:
    """The image of a line; `path` and `number` are for the words of an error."""
    id, file, found = parsed(path, number, line, names)
    record = json.loads(line)
    tags, best = record.get("tags"), record.get("best")
    if not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise damaged(path, number, "tags should be a list of texts")
    if not (isinstance(best, list) and len(best) == len(found) and all(isinstance(b, bool) for b in best)):
        raise damaged(path, number, "best should be true or false for every box")
    return LabelledImage(id, Path(file), tuple(tags), found, np.array(best, bool))
