"""Detections that any tool wrote down: COCO's results JSON, a table, the VOC devkit's comp4 files, or `melm detect`'s own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melm.data.records import DataError
from melm.detect.detections import Detections
from melm.detect.labels import LABELS
from melm.detect.results import RESULTS
from melm.measure.naming import Known, images_of
from melm.measure.result_rows import (
    COLUMNS,
    COMP4,
    UNDERSTOOD,
    Row,
    bytes_of,
    comp4_files,
    comp4_rows,
    header_of,
    json_rows,
    own_rows,
    table_rows,
    text_of,
    wrong,
)
from melm.measure.truth import Truth

BEYOND = 1.0  # pixels that a box may reach beyond its image: conventions differ by one
ROUNDING = 1e-6  # pixels by which a side of length 0 may come out negative


def read_detections(path: Path, truth: Truth, clip: bool = False, split: str | None = None) -> dict[str, Detections]:
    """What a file or folder of results says was found in the truth's images, by image id; numbers are float64.

    An image without an entry is not in it, nor is one that is left out of the truth. A box that reaches more than a pixel
    beyond its image is an error; with `clip`, boxes are cut at the image's edge. `split` chooses among comp4 files of several
    splits. Where the truth does not know the size of an image, its boxes are taken as they are, and width and height are 0.
    """
    images = images_of(truth)
    classes = Known("class", "classes", "category_id", truth.classes, truth.class_numbers)
    files = _files(path, truth, images, split)
    parts = [_checked(file, *_flat(file, images, classes, len(truth.images)), truth, clip) for file in files]
    image, label, boxes, scores = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.lexsort((*boxes.T[::-1], -scores, image))  # best first, as detections are
    ends = np.searchsorted(image[order], np.arange(len(truth.images) + 1))
    result = {}
    for i, id in enumerate(truth.images):
        if ends[i] < ends[i + 1]:
            these = order[ends[i] : ends[i + 1]]
            size = truth.sizes.get(id, (0, 0))
            result[id] = Detections(boxes[these], scores[these], label[these], truth.classes, *size)
    return result


@dataclass
class File:
    """A file of results, with its rows as they are written."""

    path: Path
    unit: str  # what its rows are counted in
    rows: Iterator[Row]
    all_text: bool = False  # whether COCO's numbers are written as text, too


def _files(path: Path, truth: Truth, images: Known, split: str | None) -> list[File]:
    """The files at a path, by what they are."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.is_dir():
        own = next((path / name for name in (RESULTS, LABELS) if (path / name).is_file()), None)
        if own is not None:
            return _files(own, truth, images, split)
        named = comp4_files(path, truth.classes, split)
        return [File(file, "line", comp4_rows(file, name)) for name, file in named.items()]
    kind = path.suffix.lower()
    if kind == ".jsonl":
        return [File(path, "line", own_rows(path, truth, images))]
    data = bytes_of(path)
    if not data.strip():
        raise DataError(f"{path}: empty; where nothing was found, a JSON file holds [], a CSV its header")
    if kind == ".json" or data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"[", b"{"):
        return [File(path, "entry", json_rows(path, data))]
    text = text_of(path, data)
    if kind in (".csv", ".tsv") or any(name in COLUMNS["image"] for name in header_of(path, text)):
        return [File(path, "line", table_rows(path, text), all_text=True)]
    of_voc = f" Name the folder: {path.parent}." if COMP4.fullmatch(path.name) else ""
    raise DataError(f"{path}: not results that melm knows.{of_voc} {UNDERSTOOD}")


Flat = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[Any], NDArray[Any]]  # images, classes, boxes (D, 4), scores


def _flat(file: File, images: Known, classes: Known, measured: int) -> tuple[NDArray[np.intp], Flat]:
    """The number of each row in one of the images measured, which come first, and what it says."""
    numbers, image, label, boxes, scores = [], [], [], [], []
    for number, asked, asked_class, box, score in file.rows:
        try:
            image.append(images.find(asked, file.all_text))
            label.append(classes.find(asked_class, file.all_text))
        except DataError as error:
            known = asked if len(image) > len(label) else None
            raise wrong(file.path, file.unit, number, str(error), known) from None
        if image[-1] >= measured:
            image.pop(), label.pop()
            continue
        numbers.append(number)
        boxes.append(box)
        scores.append(score)
    edges, scored = np.array(boxes, np.float64).reshape(-1, 4), np.array(scores, np.float64)
    return np.array(numbers, np.intp), (np.array(image, np.intp), np.array(label, np.intp), edges, scored)


def _checked(file: File, numbers: NDArray[np.intp], flat: Flat, truth: Truth, clip: bool) -> Flat:
    """Refuses what cannot be meant, and cuts boxes if asked to."""
    image, label, boxes, scores = flat
    ids = list(truth.images)
    sizes = np.array([truth.sizes.get(id, (0, 0)) for id in ids], np.intp).reshape(-1, 2)[image]  # (D, 2)
    low, high = boxes[:, :2], np.maximum(boxes[:, :2], boxes[:, 2:])
    known = sizes[:, :1] > 0  # (D, 1)
    inside = np.clip(low, 0, sizes), np.clip(high, 0, sizes)
    beyond = known[:, 0] & (np.maximum(-low, high - sizes) > BEYOND).any(axis=1)
    empty = (inside[1] <= inside[0]) & ((high > low) | (high < 0) | (low > sizes))
    faults: dict[str, Any] = {
        "the score is {score}; a finite number was expected": ~np.isfinite(scores),
        "{box} is not of finite numbers": ~np.isfinite(boxes).all(axis=1),
        "{box} has a negative width or height": (boxes[:, 2:] < low - ROUNDING).any(axis=1),
        "{box} lies outside the image, which has {size} pixels": beyond & empty.any(axis=1),
        "{box} reaches beyond the image, which has {size} pixels. --clip cuts boxes at the image's edge": beyond
        & (not clip),
    }
    if (first := np.any(list(faults.values()), axis=0)).any():
        i = int(first.argmax())
        x1, y1, x2, y2 = boxes[i].tolist()
        box, size = f"the box from x {x1:g} to {x2:g}, y {y1:g} to {y2:g}", f"{sizes[i, 0]} x {sizes[i, 1]}"
        what = next(words for words, bad in faults.items() if bad[i]).format(box=box, size=size, score=scores[i])
        raise wrong(file.path, file.unit, int(numbers[i]), what, ids[image[i]])
    if clip:
        low, high = np.where(known, inside[0], low), np.where(known, inside[1], high)
    return image, label, np.concatenate([low, high], axis=1), scores
