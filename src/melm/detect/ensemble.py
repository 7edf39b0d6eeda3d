"""Several detectors as one. Those that share their proposals have their scores averaged proposal by proposal, before suppression;
what others find is fused box by box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melm.boxes import iou, ranked
from melm.data.images import read_image
from melm.detect.detections import Detections, no_detections
from melm.detect.detector import Detector
from melm.errors import UsageError
from melm.model.trunks import Pixels
from melm.proposals import Proposals, compute_proposals

Judged = tuple[NDArray[np.float32], Proposals]  # scores (N, K), and the proposals where they were moved to
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
        self.classes, self.settings, self.branch = first.classes, first.settings, first.branch

    def __call__(self, image: Pixels | Path | str) -> Detections:
        pixels = image if isinstance(image, np.ndarray) else read_image(Path(image))
        groups = grouped([member.proposal_settings for member in self.members])
        judged = []
        for group in groups:
            found = compute_proposals(pixels, self.members[group[0]].proposal_settings)
            if len(found):
                of_group = [self.members[n] for n in group]
                judged.append(together([one.judged(one.outputs(pixels, found), found) for one in of_group]))
        if not judged:
            return no_detections(self.classes, pixels.shape[1], pixels.shape[0])
        return self.chosen(judged, len(groups))

    def chosen(self, judged: Sequence[Judged], groups: int) -> Detections:
        """What is left of the scores of each group of detectors, of so many in all (some may have found no proposal)."""
        first, most = self.members[0], self.settings.max_boxes
        found = [first.chosen(scores, proposals) for scores, proposals in judged]
        result = found[0] if groups == 1 else fused(found, groups)
        return result.best(most) if most else result


def grouped(keys: Sequence[Any]) -> list[list[int]]:
    """The places of equal ones, in the order of the first of each."""
    groups: dict[Any, list[int]] = {}
    for n, key in enumerate(keys):
        groups.setdefault(key, []).append(n)
    return list(groups.values())


def together(judged: Sequence[Judged]) -> Judged:
    """Of detectors that share proposals: the geometric mean of their scores, for which it does not matter that one is surer of
    everything than another, and the mean of where they move the boxes."""
    logs = [np.log(np.maximum(scores, 1e-30)) for scores, _ in judged]
    scores = np.exp(np.stack(logs).mean(axis=0, dtype=np.float64)).astype(np.float32)
    boxes = np.stack([found.boxes for _, found in judged]).mean(axis=0, dtype=np.float64).astype(np.float32)
    return scores, replace(judged[0][1], boxes=boxes)


def fused(found: Sequence[Detections], voices: int, overlap: float = FUSED_IOU) -> Detections:
    """What `voices` detectors found on proposals of their own, by weighted boxes fusion (Solovyev et al. 2021): boxes of a class
    that overlap become one at their mean by score, whose score is their mean too, 0 for every voice that is silent."""
    first = found[0]
    voice = np.repeat(np.arange(len(found)), [len(one) for one in found])
    boxes, scores, classes = (
        np.concatenate([getattr(one, name) for one in found]) for name in ("boxes", "scores", "classes")
    )
    places, sure, kinds = [], [], []
    for k in range(len(first.names)):
        rows = np.flatnonzero(classes == k)
        rows = rows[ranked(boxes[rows], scores[rows])]
        clusters: list[list[int]] = []
        for row in rows:
            heads = np.array([cluster[0] for cluster in clusters], np.intp)
            free = np.array([voice[row] not in voice[cluster] for cluster in clusters], bool)
            near = iou(boxes[[row]], boxes[heads])[0] if len(heads) else np.zeros(0)
            near = np.where(free, near, 0.0)
            if len(near) and near.max() >= overlap:
                clusters[int(near.argmax())].append(int(row))
            else:
                clusters.append([int(row)])
        for cluster in clusters:
            weight = np.maximum(scores[cluster].astype(np.float64), 1e-30)
            places.append((weight[:, None] * boxes[cluster]).sum(axis=0) / weight.sum())
            sure.append(scores[cluster].sum(dtype=np.float64) / voices)
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
