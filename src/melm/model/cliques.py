"""Clique partition (Eq. 2): the best-scored proposals, split into sets that hang together by overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from melm.boxes import ranked
from melm.errors import MelmError


class NotFinite(MelmError):
    """A score that is not a finite number, so that nothing can be ordered by it."""


@dataclass(frozen=True, slots=True)
class Cliques:
    """H_c: which proposals were selected, best first, and the clique each of them is in."""

    selected: Tensor  # (M,) indices into the N proposals
    ids: Tensor  # (M,) clique of each selected proposal, 0 to C-1
    count: int  # C

    def members(self, clique: int) -> Tensor:
        """Indices into the N proposals."""
        return self.selected[self.ids == clique]

    def mean(self, values: Tensor) -> Tensor:
        """(C, K): the mean over each clique's members of (N, K) values."""
        chosen = values[self.selected]  # (M, K)
        total = chosen.new_zeros((self.count, values.shape[1])).index_add(0, self.ids, chosen)  # (C, K)
        return total / torch.bincount(self.ids, minlength=self.count)[:, None]


def partition_cliques(proposals: Tensor, object_score: Tensor, clique_iou: float = 0.7, top: int = 200) -> Cliques:
    """The cliques of the `top` proposals (N, 4) by score (N,), which takes no part in learning here.

    A clique grows from the best-scored free proposal and takes in every proposal that overlaps any member by at least
    `clique_iou` (single linkage). Equal scores are ordered by coordinates, so that the order of the proposals does not matter.
    """
    boxes = proposals.detach().cpu().double().numpy()
    if not bool(torch.isfinite(object_score).all()):
        raise NotFinite("a score is NaN or infinite: the features or the weights are")
    selected = _best(boxes, object_score.detach().cpu().double().numpy(), top)
    ids, count = _grow(boxes[selected], clique_iou)
    device = proposals.device
    return Cliques(torch.from_numpy(selected).to(device), torch.from_numpy(ids).to(device), int(count))


def every_proposal(proposals: Tensor) -> Cliques:
    """Every proposal (N, 4) a clique of its own: the method without Eq. 2. In the order of their coordinates."""
    count = len(proposals)
    each = torch.arange(count, device=proposals.device)
    return Cliques(coordinate_order(proposals), each, count)


def coordinate_order(proposals: Tensor) -> Tensor:
    """(N,) indices by coordinates: the order in which equal scores are told apart."""
    boxes = proposals.detach().cpu().double().numpy()
    return torch.from_numpy(ranked(boxes, np.zeros(len(boxes)))).to(proposals.device)


def _best(boxes: NDArray[np.float64], score: NDArray[np.float64], top: int) -> NDArray[np.int64]:
    """(M,) indices of the best scores, best first. Only what can be among them is sorted, which is what takes the time."""
    candidates = np.arange(len(score))
    if len(score) > top:
        candidates = np.flatnonzero(score >= np.partition(score, len(score) - top)[len(score) - top])
    return candidates[ranked(boxes[candidates], score[candidates])][:top]


@numba.njit(cache=True)
def _grow(boxes, clique_iou):  # type: ignore[no-untyped-def]
    """(M,) clique ids of boxes sorted best first, and their number."""
    count = len(boxes)
    ids = np.full(count, -1, np.int64)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    waiting = np.empty(count, np.int64)  # members whose neighbours are still to be found
    cliques = 0
    for seed in range(count):
        if ids[seed] >= 0:
            continue
        ids[seed] = cliques
        waiting[0], length = seed, 1
        while length > 0:
            length -= 1
            i = waiting[length]
            for j in range(seed + 1, count):  # all before the seed are taken
                if ids[j] >= 0:
                    continue
                width = min(boxes[i, 2], boxes[j, 2]) - max(boxes[i, 0], boxes[j, 0])
                height = min(boxes[i, 3], boxes[j, 3]) - max(boxes[i, 1], boxes[j, 1])
                if width <= 0 or height <= 0:
                    continue
                inter = width * height
                if inter >= clique_iou * (area[i] + area[j] - inter):
                    ids[j] = cliques
                    waiting[length] = j
                    length += 1
        cliques += 1
    return ids, cliques
