"""Pseudo-objects: which of the boxes that a run finds are taught to students, which are left out, and the rest is background."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from melm.boxes import iou, nms, voted
from melm.errors import MelmError, damaged
from melm.files import packed, write_whole
from melm.learn.students import RetrainConfig

OBJECTS = "objects.npz"
VERSION = 1  # raise it when the same runs and rules would choose others: when runs score otherwise, too
RULES = (
    "teacher",
    "vote",
    "agree",
    "alike",
    "ignore",
    "apart_iou",
    "object_iou",
)  # settings that decide which are chosen


@dataclass(frozen=True, slots=True)
class Objects:
    """The pseudo-objects of an image."""

    boxes: NDArray[np.float32]  # (P, 4)
    classes: NDArray[np.intp]  # (P,)
    sure: NDArray[np.float64]  # (P,) from 0 to 1: the share of the tag's score that lies around each
    taught: NDArray[np.bool_]  # (P,) False: it may be an object, so it is neither one nor background

    def __len__(self) -> int:
        return len(self.boxes)

    def only(self, these: NDArray[np.bool_]) -> Objects:
        return Objects(*(getattr(self, name)[these] for name in PARTS))

    @staticmethod
    def joined(several: Sequence[Objects]) -> Objects:
        """Those of several tags or images, one after another."""
        nothing = Objects(np.zeros((0, 4), np.float32), np.zeros(0, np.intp), np.zeros(0), np.zeros(0, bool))
        return Objects(*(np.concatenate([getattr(one, name) for one in (nothing, *several)]) for name in PARTS))


PARTS = tuple(field.name for field in fields(Objects))


def objects_of_tag(
    boxes: NDArray[np.float32], scores: NDArray[np.float32], number: int, config: RetrainConfig
) -> Objects:
    """The best box of a tag of class `number`, and those apart from it, and from each other, that are nearly as good: by `alike`
    they are objects, too; by `ignore` they are left out."""
    rows = np.array([scores.argmax()])
    least = min(config.alike, config.ignore)
    if least < 1:
        good = np.flatnonzero(scores >= least * scores.max())
        rows = good[nms(boxes[good], scores[good], config.apart_iou)]
    taught = scores[rows] >= config.alike * scores.max()
    taught[0] = True
    total = max(float(scores.sum(dtype=np.float64)), 1e-300)
    around = iou(boxes[rows], boxes) >= config.object_iou  # (P, N)
    sure = around @ scores.astype(np.float64) / total
    placed = voted(boxes, scores, rows, config.vote) if config.vote else boxes[rows]
    return Objects(placed.astype(np.float32), np.full(len(rows), number, np.intp), sure, taught)


def line_of(number: int, found: Objects) -> bytes:
    """The objects of an image, by its place in the data, as a line of JSON, from which `of_line` reads the very same."""
    return json.dumps({"image": number, **{name: getattr(found, name).tolist() for name in PARTS}}).encode() + b"\n"


def of_line(path: Path, number: int, line: bytes) -> tuple[int, Objects]:
    """The place of an image and its objects, of line `number` of a file."""
    nothing = Objects.joined([])
    try:
        kept = json.loads(line)
        kinds = {name: getattr(nothing, name) for name in PARTS}
        arrays = [np.array(kept[name], like.dtype).reshape(-1, *like.shape[1:]) for name, like in kinds.items()]
        return int(kept["image"]), Objects(*arrays)
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, number, str(error)) from None


def keep(path: Path, found: Sequence[Objects]) -> None:
    """Writes down the objects of all images, in their order."""
    every = Objects.joined(found)
    arrays = {name: getattr(every, name) for name in PARTS}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, packed({**arrays, "ends": np.cumsum([len(one) for one in found])}))
    except OSError as error:
        raise MelmError(f"{path}: cannot be written ({error.strerror}). Make room and run again") from None


def kept(path: Path) -> list[Objects] | None:
    """The objects of all images; None where they are not, or damaged."""
    try:
        with np.load(path, allow_pickle=False) as found:
            parts = [np.split(found[name], found["ends"][:-1]) for name in PARTS]
            return [Objects(*one) for one in zip(*parts, strict=True)]
    except Exception:  # there is none, or it is damaged in one of the many ways a zip file can be
        return None
