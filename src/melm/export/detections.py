"""Detections as files of other tools. Written as they come, in constant memory; the file is there when it is whole."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from melm.detect.detections import Detections
from melm.detect.lines import Result, exact
from melm.errors import MelmError, UsageError
from melm.export.text_files import DECIMALS, PlainLines, as_melm_error, beside, whole_text

HELD_LINES = 20_000  # of the comp4 files, before they are appended; one open file per class could be too many


def write_table(results: Iterable[Result], path: Path) -> None:
    """CSV with a line per box. An image where nothing was found has none."""
    with whole_text(path) as file:
        rows = csv.writer(PlainLines(file))
        rows.writerow(["image", "file", "class", "score", "x1", "y1", "x2", "y2"])
        for id, name, found in results:
            rows.writerows([id, name, label, score, *box] for label, score, box in _each(found))


def write_coco_results(
    results: Iterable[Result],
    path: Path,
    image_ids: Mapping[str, int] | None = None,
    category_ids: Mapping[str, int] | None = None,
) -> None:
    """COCO's results JSON: a list of image_id, category_id, bbox (x, y, width, height) and score.

    With no mapping, `image_id` is the image's id and `category_id` the class's name, both as text.
    """
    with whole_text(path) as file:
        between = "[\n"
        for id, _, found in results:
            image = id if image_ids is None else _mapped("image", id, image_ids)
            for label, score, (x1, y1, x2, y2) in _each(found):
                category = label if category_ids is None else _mapped("class", label, category_ids)
                bbox = [x1, y1, round(x2 - x1, DECIMALS), round(y2 - y1, DECIMALS)]
                entry = {"image_id": image, "category_id": category, "bbox": bbox, "score": score}
                file.write(between + json.dumps(entry))  # ASCII: any file name survives
                between = ",\n"
        file.write("[]\n" if between == "[\n" else "\n]\n")


def write_comp4(results: Iterable[Result], folder: Path, split: str, names: Sequence[str]) -> None:
    """The VOC devkit's `comp4_det_SPLIT_CLASS.txt`, a file per class, also for one that was never found.

    Lines are `id score x1 y1 x2 y2`. The devkit counts pixels from 1 and a box holds its last one, so a box from 0 to 10
    (where it ends) is 1 to 10.
    """
    require_comp4_names(names, split)
    place = beside(folder / "comp4")
    held: dict[str, list[str]] = {name: [] for name in names}
    count = 0
    with as_melm_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        place.mkdir()
        try:
            for id, _, found in results:
                if not id or id.split() != [id]:
                    raise MelmError(
                        f"{id!r}: VOC's files cannot hold an id with a blank. Write a table or COCO instead"
                    )
                for label, score, (x1, y1, x2, y2) in _each(found):
                    one = [round(x1 + 1, DECIMALS), round(y1 + 1, DECIMALS), x2, y2]
                    held[label].append(f"{id} {score} {' '.join(map(str, one))}\n")
                count += len(found)
                if count >= HELD_LINES:
                    _append(place, split, held)
                    count = 0
            _append(place, split, held)
            for name in names:
                file = comp4_name(split, name)
                (place / file).replace(folder / file)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def comp4_name(split: str, name: str) -> str:
    return f"comp4_det_{split}_{name}.txt"


def require_comp4_names(names: Sequence[str], split: str) -> None:
    """Refuses what cannot be in a file's name; ask before the work, rather than after it."""
    for what, text in (("split", split), *(("class", name) for name in names)):
        if not text or any(c in "/\\" or not c.isprintable() for c in text):
            raise UsageError(
                f"the {what} {text!r} cannot be in the name of one of VOC's files. Rename it, or write a table or COCO instead"
            )


def _append(folder: Path, split: str, held: dict[str, list[str]]) -> None:
    for name, lines in held.items():
        with (folder / comp4_name(split, name)).open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(lines)
        lines.clear()


def _each(found: Detections) -> Iterator[tuple[str, float, list[float]]]:
    """(class, score, box) of each."""
    return zip(found.class_names(), exact(found.scores), exact(found.boxes), strict=True)


def _mapped(what: str, name: str, numbers: Mapping[str, int]) -> int:
    if name not in numbers:
        raise MelmError(f"the {what} {name!r} has no number in the data set these results are written for")
    return numbers[name]
