"""Labels against true boxes: what a report says of right and wrong, where the data has boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from melm.data import Source, read_tags
from melm.detect.detections import Detections
from melm.errors import MelmError
from melm.measure.average_precision import AveragePrecision, average_precision
from melm.measure.corloc import CorLoc, corloc
from melm.measure.error_analysis import CORRECT, NOT_COUNTED, ErrorAnalysis, analyse_errors
from melm.measure.truth import Truth, read_truth
from melm.show.report_commands import source_in
from melm.show.report_facts import Glance, RunFacts

NOT_JUDGED = -1  # a box of an image or class that the truth does not have


@dataclass(frozen=True)
class Scores:
    """How good labels are. Shares, not percent."""

    truth: Truth  # of the labelled images
    corloc: CorLoc
    precision: AveragePrecision  # VOC 2007's
    best_boxes: ErrorAnalysis  # of the best box of each tag
    every_box: ErrorAnalysis

    def rows(self) -> list[dict[str, float | str]]:
        """Class by class, and `mean` for the last: shares are nan where there is nothing to divide by."""
        images, hits, aps = self.corloc.images(), self.corloc.per_class(), self.precision.per_class()
        rows: list[dict[str, float | str]] = []
        for k, name in enumerate(self.truth.classes):
            counted = int(self.every_box.counts[k, :NOT_COUNTED].sum())
            right, objects = int(self.every_box.counts[k, CORRECT]), int(self.every_box.objects[k])
            if images[name] or counted or objects:
                rows.append(
                    {
                        "class": name,
                        "images": images[name],
                        "CorLoc": hits[name],
                        "AP": aps[name],
                        "boxes": counted,
                        "right": _share(right, counted),
                        "objects": objects,
                        "found": _share(right, objects),
                    }
                )
        mean: dict[str, float | str] = {"class": "mean", "CorLoc": self.corloc.mean, "AP": self.precision.mean}
        for name in ("images", "boxes", "objects"):
            mean[name] = sum(float(row[name]) for row in rows)
        for name in ("right", "found"):
            there = [float(row[name]) for row in rows if not np.isnan(float(row[name]))]
            mean[name] = float(np.mean(there)) if there else float("nan")
        return [*rows, mean]

    def kinds(self, id: str, found: Detections) -> NDArray[np.int8]:
        """(M,) what each box of an image is, in its own order: a number of `error_analysis.KINDS`, or NOT_JUDGED."""
        kinds = np.full(len(found), NOT_JUDGED, np.int8)
        gathered = self.every_box.gathered
        if id not in self.truth.images:
            return kinds
        column = np.array([_place(name, gathered.classes) for name in found.names], np.intp)[found.classes]
        judged = np.flatnonzero(column >= 0)
        boxes, scores = found.boxes[judged].astype(np.float64), found.scores[judged].astype(np.float64)
        rank = np.lexsort((*boxes.T[::-1], -scores, column[judged]))  # as `gather` has them within an image
        kinds[judged[rank]] = self.every_box.kind[gathered.image == gathered.image_ids.index(id)]
        return kinds


def _place(name: str, names: Sequence[str]) -> int:
    return names.index(name) if name in names else -1


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def score_labels(truth: Truth, found: Mapping[str, Detections], tags: Mapping[str, Sequence[str]]) -> Scores:
    """Measures labels by image id on those of their images whose true boxes are known."""
    there = {id: true for id, true in truth.images.items() if id in found}
    if not there:
        raise MelmError("none of the labelled images has true boxes")
    truth = replace(truth, images=there)
    labels = {id: found[id].only(truth.classes) for id in there}
    known = {id: [tag for tag in tags[id] if tag in truth.classes] for id in there}
    return Scores(
        truth,
        corloc(truth, labels, known),
        average_precision(truth, labels, "voc07"),
        analyse_errors(truth, labels, tags=known),
        analyse_errors(truth, labels),
    )


def same_images(truth: Truth, files: Mapping[str, Path]) -> bool:
    """Whether the labelled images, files by id, are all among the data's: by id and by the name of the file."""
    here = {**truth.left_out, **truth.files}
    return all(id in here and here[id].name == path.name for id, path in files.items())


def truth_for(run: RunFacts, data: Source | None, glance: Glance | None, notes: dict[str, list[str]]) -> Truth | None:
    """The true boxes of the data named, or else of the data that the run learned from, if it lies where it was."""
    if data is not None:
        try:
            truth = read_truth(data)
        except MelmError as error:
            read_tags(data)  # data that cannot be read at all is an error of its own
            notes["scores"] = [f"Not measured: {error}."]
            return None
        if glance and not any(id in truth.images for id in glance.files):
            raise MelmError(
                f"{data.path}: none of the labelled images is in it. Name the data that was labelled, "
                "with the same --split, --images and so on"
            )
        return truth
    if glance is None:
        return None
    source = source_in(run.about)
    if not source.path.exists():
        why = "is not there. Name data with boxes with --data"
    else:
        try:
            truth = read_truth(source)
            if same_images(truth, glance.files):
                return truth
            why = "does not hold the labelled images. Name the data that was labelled with --data"
        except MelmError as error:
            said = str(error).removeprefix(f"{source.path}: ")
            why = f"gives no boxes to measure against ({said})"
    notes["scores"] = [f"Not measured: {source.path}, which it learned from, {why}."]
    return None


def scores_for(truth: Truth | None, glance: Glance | None, notes: dict[str, list[str]]) -> Scores | None:
    """How good the labels are, where it is known."""
    if truth is None or glance is None:
        return None
    try:
        return score_labels(truth, glance.found, glance.tags)
    except MelmError as error:
        notes["scores"] = [f"Not measured: {error}."]
        return None
