"""Several detectors as one. Those that share their proposals have their scores averaged proposal by proposal, before suppression;
what others find is fused box by box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melm.boxes import agreed, iou, ranked, supported
from melm.detect.detections import Detections, no_detections
from melm.detect.detector import Detector, pixels_of, suppressed
from melm.errors import UsageError
from melm.model.trunks import Pixels
from melm.proposals import Proposals, compute_proposals

Judged = tuple[NDArray[np.float32], Proposals]  # scores (N, K), and the proposals where they were moved to
SHARED = ("views", "nms", "vote", "agree", "min_score", "max_boxes")  # settings that all have alike
FUSED_IOU = 0.5  # overlap from which boxes of a class are one object, seen by several


class Ensemble:
    """Call it with an image, as an array or a path, for the `Detections` of all of them together."""

    def __init__(self, members: Sequence[Detector]) -> None:
        if len(members) < 2:
            raise UsageError("an ensemble has two detectors or more")
        self.members, first = tuple(members), members[0]
        for other in members[1:]:
            if other.classes != first.classes:
                raise UsageError(
                    f"{other.learned.path}: its classes are {', '.join(other.classes)}; those of {first.learned.path} are "
                    f"{', '.join(first.classes)}. Only runs of the same classes, in the same order, speak together"
                )
            apart = [name for name in SHARED if getattr(other.settings, name) != getattr(first.settings, name)]
            if apart:
                raise UsageError(f"{other.learned.path}: speaks with another {apart[0]} than {first.learned.path}")
        self.classes, self.settings, self.branch = first.classes, first.settings, first.branch

    def __call__(self, image: Pixels | Path | str, proposals: Proposals | None = None) -> Detections:
        """What is found in an upright RGB image (H, W, 3) or an image file. Given `proposals` serve all of them."""
        pixels = pixels_of(image)
        groups = grouped([None if proposals is not None else member.proposal_settings for member in self.members])
        judged = []
        for group in groups:
            members = [self.members[n] for n in group]
            found = compute_proposals(pixels, members[0].proposal_settings) if proposals is None else proposals
            if len(found):
                judged.append(
                    (group, self.together(group, [m.judged(m.outputs(pixels, found), found) for m in members]))
                )
        if not judged:
            return no_detections(self.classes, pixels.shape[1], pixels.shape[0])
        return self.chosen(judged, groups)

    def together(self, group: Sequence[int], judged: Sequence[Judged]) -> Judged:
        """What members that share proposals say of them. Where some of them move boxes, only these say where to."""
        moves = [self.members[n].moves for n in group]
        return together(judged, moves if any(moves) else [True] * len(group))

    def chosen(self, judged: Sequence[tuple[Sequence[int], Judged]], groups: Sequence[Sequence[int]]) -> Detections:
        """What is left of what each of `groups` said, those that found no proposal left out."""
        found, settings = [], self.settings
        for group, (scores, proposals) in judged:
            members = [self.members[n] for n in group]
            overlap, vote = max(m.overlap for m in members), max(m.vote for m in members)
            size = proposals.width, proposals.height
            scores = supported(proposals.boxes, scores, max(m.agree for m in members))
            found.append(suppressed(proposals.boxes, scores, self.classes, *size, overlap, 0.0, vote))
        result = found[0]
        if len(groups) > 1:
            result = fused(found, [len(group) for group, _ in judged], len(self.members))
        result = result.above(settings.min_score)
        return result.best(settings.max_boxes) if settings.max_boxes else result


def grouped(keys: Sequence[Any]) -> list[list[int]]:
    """The places of equal ones, in the order of the first of each."""
    groups: dict[Any, list[int]] = {}
    for n, key in enumerate(keys):
        groups.setdefault(key, []).append(n)
    return list(groups.values())


def together(judged: Sequence[Judged], moves: Sequence[bool]) -> Judged:
    """What detectors that share proposals agree on; of places, those that move boxes."""
    movers = [found.boxes for (_, found), there in zip(judged, moves, strict=True) if there]
    scores, places = agreed([scores for scores, _ in judged], movers)
    return scores, replace(judged[0][1], boxes=places)


def fused(found: Sequence[Detections], counts: Sequence[int], voices: int, overlap: float = FUSED_IOU) -> Detections:
    """What groups of detectors found on proposals of their own, by weighted boxes fusion (Solovyev et al. 2021): boxes of a class
    that overlap become one at their mean by score, whose score is their mean too. A group counts by how many are in it; of
    `voices` in all, those that are silent count as 0."""
    first = found[0]
    group = np.repeat(np.arange(len(found)), [len(one) for one in found])
    boxes, scores, classes = (
        np.concatenate([getattr(one, name) for one in found]) for name in ("boxes", "scores", "classes")
    )
    weights = np.maximum(scores.astype(np.float64), 1e-30) * np.asarray(counts, np.float64)[group]
    places, sure, kinds = [], [], []
    for k in range(len(first.names)):
        rows = np.flatnonzero(classes == k)
        rows = rows[ranked(boxes[rows], scores[rows])]
        cluster = clusters(iou(boxes[rows], boxes[rows]), group[rows], len(found), overlap)
        for number in range(cluster.max() + 1 if len(cluster) else 0):
            of = rows[cluster == number]
            places.append((weights[of, None] * boxes[of]).sum(axis=0) / weights[of].sum())
            sure.append(weights[of].sum() / voices)
            kinds.append(k)
    result = Detections(
        np.array(places, np.float32).reshape(-1, 4),
        np.array(sure, np.float32),
        np.array(kinds, np.intp),
        first.names,
        first.width,
        first.height,
    )
    return result[ranked(result.boxes, result.scores)]


def clusters(near: NDArray[np.float64], group: NDArray[np.intp], groups: int, overlap: float) -> NDArray[np.intp]:
    """(n,) to which object each of n boxes belongs, best first: that whose first box it overlaps most, of those that its group
    has not seen yet; or a new one. `near` (n, n) are the overlaps."""
    result = np.zeros(len(near), np.intp)
    heads: list[int] = []
    seen = np.zeros((len(near), groups), bool)  # objects, by group
    for row in range(len(near)):
        free = np.where(seen[: len(heads), group[row]], 0.0, near[row, heads])
        result[row] = free.argmax() if len(heads) and free.max() >= overlap else len(heads)
        if result[row] == len(heads):
            heads.append(row)
        seen[result[row], group[row]] = True
    return result
