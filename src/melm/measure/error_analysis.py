"""What goes wrong: every detection in one of eight kinds, and the objects that were missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numba
import numpy as np
from numpy.typing import NDArray

from melm.boxes import ranked
from melm.detect.detections import Detections
from melm.measure.gather import Gathered, gather
from melm.measure.matching import IGNORED, RIGHT, Matches, match
from melm.measure.truth import Truth

KINDS = ("correct", "duplicate", "wrong class", "part", "too large", "misplaced", "background", "ignored")
CORRECT, DUPLICATE, WRONG_CLASS, PART, TOO_LARGE, MISPLACED, BACKGROUND, NOT_COUNTED = range(len(KINDS))
INSIDE = 0.8  # share of one box that must lie in the other to call it inside
NEAR = 0.1  # IoU from which a box is held to mean an object


@dataclass(frozen=True)
class ErrorAnalysis:
    """The kind of every detection that was looked at, in the order of `gathered`, and counts by class.

    The first kind that fits, with overlap as IoU and "its object" the object of its own class that it overlaps most:

    - `ignored`: overlaps its object by at least `min_overlap`, and that is difficult or a crowd. Counted nowhere else.
    - `correct`: overlaps its object by at least `min_overlap`, and no higher score found that object.
    - `duplicate`: so, but a higher score found it.
    - `wrong class`: overlaps an object of another class, of whatever sort, by at least `min_overlap`.
    - `part`: at least 0.8 of the box's area lies inside an object of its class; of several, the one it overlaps most.
    - `too large`: it holds at least 0.8 of the area of an object of its class.
    - `misplaced`: overlaps its object by at least 0.1; neither inside nor around it.
    - `background`: everything else.

    An object that is neither difficult nor a crowd is missed if no detection is correct for it.
    """

    gathered: Gathered
    kind: NDArray[np.int8]  # (D,) into KINDS
    meant: NDArray[np.intp]  # (D,) its object, into gathered.objects; where the class is wrong, of another; -1: none
    counts: NDArray[np.intp]  # (K, 8) detections of each class by kind
    objects: NDArray[np.intp]  # (K,) that count
    missed: NDArray[np.intp]  # (K,) of them

    def shares(self) -> dict[str, float]:
        """Share of each kind among all detections that are not ignored."""
        totals = self.counts[:, :NOT_COUNTED].sum(axis=0)
        return dict(zip(KINDS, (totals / max(totals.sum(), 1)).tolist(), strict=False))

    def rows(self) -> list[dict[str, object]]:
        """Class by class: detections of each kind, objects, and how many were missed."""
        rows = []
        for k, name in enumerate(self.gathered.classes):
            kinds = dict(zip(KINDS, self.counts[k].tolist(), strict=True))
            rows.append({"class": name, **kinds, "objects": int(self.objects[k]), "missed": int(self.missed[k])})
        return rows

    def confusion(self) -> NDArray[np.intp]:
        """(K + 1, K + 1): detections by the class of the object they are on (rows) and their own class (columns).

        On the diagonal are the correct ones, beside it those of the wrong class. The last row has the detections that are on
        no object: parts, too large, misplaced, background and duplicates. The last column has the objects missed, whether or not
        some other class was detected on them, so that rows need not sum to the number of objects.
        """
        k = len(self.gathered.classes)
        table = np.zeros((k + 1, k + 1), np.intp)
        counted = self.kind != NOT_COUNTED
        on_object = (self.kind == CORRECT) | (self.kind == WRONG_CLASS)
        row = np.full(len(self.kind), k)
        row[on_object] = self.gathered.object_class[self.meant[on_object]]
        np.add.at(table, (row[counted], self.gathered.detected_class[counted]), 1)
        table[:k, k] = self.missed
        return table


def analyse_errors(
    truth: Truth,
    detections: Mapping[str, Detections],
    min_score: float | None = None,
    tags: Mapping[str, Sequence[str]] | None = None,
    min_overlap: float = 0.5,
    as_many_as_objects: bool = False,
) -> ErrorAnalysis:
    """Sorts detections, by image id, into kinds of right and wrong.

    Looked at are all, or those with a score of at least `min_score`. With `tags` by image id, only the best detection of each
    tag of each image, as for CorLoc. With `as_many_as_objects`, of each class as many of the best as there are objects of it that
    count (Hoiem et al., ECCV 2012), those of ignored objects aside: a detector without errors has these and no others.
    """
    chosen = dict(detections)
    if min_score is not None:
        chosen = {id: these.above(min_score) for id, these in chosen.items()}
    if tags is not None:
        chosen = {id: _best_of_each(these, tags.get(id, ())) for id, these in chosen.items()}
    gathered = gather(truth, chosen)
    matches = match(gathered, "voc", min_overlap)
    if as_many_as_objects:
        gathered, matches = _first_of_each_class(gathered, matches)
    start = gathered.object_range()[:: max(len(gathered.classes), 1)]  # of each image
    kind, meant = _kinds(
        gathered.boxes,
        gathered.image,
        gathered.detected_class,
        gathered.objects,
        gathered.object_class,
        start,
        min_overlap,
    )
    own = matches.overlap >= min_overlap
    kind[own] = np.where(matches.verdict[own] == RIGHT, CORRECT, DUPLICATE)
    kind[matches.verdict == IGNORED] = NOT_COUNTED
    meant[own] = matches.nearest[own]
    counts = np.zeros((len(gathered.classes), len(KINDS)), np.intp)
    np.add.at(counts, (gathered.detected_class, kind), 1)
    objects = gathered.object_counts()
    return ErrorAnalysis(gathered, kind, meant, counts, objects, objects - counts[:, CORRECT])


def _best_of_each(found: Detections, names: Sequence[str]) -> Detections:
    """The best detection of each of these classes."""
    order = ranked(found.boxes, found.scores)
    wanted = [k for k, name in enumerate(found.names) if name in names]
    first = [these[0] for k in wanted if len(these := order[found.classes[order] == k])]
    return found[np.array(first, np.intp)]


def _first_of_each_class(gathered: Gathered, matches: Matches) -> tuple[Gathered, Matches]:
    """The best detections of each class that are not ignored, as many as it has objects that count."""
    counted = matches.verdict != IGNORED
    before = np.concatenate([[0], np.cumsum(counted)])  # of all classes
    rank = before[:-1] - before[gathered.class_range()[gathered.detected_class]]
    kept = counted & (rank < gathered.object_counts()[gathered.detected_class])
    names = ("boxes", "scores", "image", "detected_class")
    chosen = replace(gathered, **{name: getattr(gathered, name)[kept] for name in names})
    return chosen, Matches(matches.verdict[kept], matches.nearest[kept], matches.overlap[kept])


@numba.njit(cache=True)
def _kinds(boxes, image, own_class, objects, object_class, start, min_overlap):  # type: ignore[no-untyped-def]
    """The kind of each detection as if it found no object of its class, and the object it means."""
    kind = np.full(len(boxes), BACKGROUND, np.int8)
    meant = np.full(len(boxes), -1, np.intp)
    for d in range(len(boxes)):
        box = boxes[d]
        size = (box[2] - box[0]) * (box[3] - box[1])
        most = 0.0  # overlap with the object meant so far
        for o in range(start[image[d]], start[image[d] + 1]):
            other = objects[o]
            width = min(box[2], other[2]) - max(box[0], other[0])
            height = min(box[3], other[3]) - max(box[1], other[1])
            if width <= 0 or height <= 0:
                continue
            inter = width * height
            other_size = (other[2] - other[0]) * (other[3] - other[1])
            overlap = inter / (size + other_size - inter)
            if object_class[o] != own_class[d]:
                this = WRONG_CLASS if overlap >= min_overlap else BACKGROUND
            elif inter >= INSIDE * size:
                this = PART
            elif inter >= INSIDE * other_size:
                this = TOO_LARGE
            else:
                this = MISPLACED if overlap >= NEAR else BACKGROUND
            if this < kind[d] or (this == kind[d] and this != BACKGROUND and overlap > most):
                kind[d], meant[d], most = this, o, overlap
    return kind, meant
