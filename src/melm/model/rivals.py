"""What other methods on this network do differently: PCL's proposal clusters. WSDDN's loss is `entropy.image_loss`, OICR's choice
`objects.top_objects` with hard labels, ContextLocNet's input the surround of `discovery`. See docs/methods.md."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from melm.boxes import iou, ranked
from melm.model.labels import Labels, overlaps
from melm.model.objects import PseudoObjects

GRAPH_IOU = 0.4  # two proposals of the top cluster are neighbours
MOST_CLUSTERS = 5  # per tag
IGNORED_BELOW = 0.1  # proposals that overlap no centre by so much say nothing


def proposal_clusters(log_prob: Tensor, proposals: Tensor, tagged: Tensor) -> PseudoObjects:
    """PCL (Tang et al., 2018): the centres of proposal clusters, several per tag.

    The highest-scored of three groups of proposals forms a graph by overlap; the proposal with most neighbours becomes a centre
    with the best score among them, they leave the graph, and so on.
    """
    prob = log_prob.detach().exp().cpu().double().numpy()
    boxes = proposals.detach().cpu().double().numpy()
    free = np.ones(len(boxes), bool)
    found: list[tuple[int, int, float]] = []
    for y in tagged.tolist():
        if not free.any():
            break
        left = np.flatnonzero(free)
        high = left[_highest_group(prob[left, y])]
        centres = _centres(boxes[high], prob[high, y])
        found += [(int(high[i]), y, score) for i, score in centres]
        free[[high[i] for i, _ in centres]] = False  # a proposal is the centre of one class only
    index, classes, score = zip(*found, strict=True) if found else ((), (), ())
    device = log_prob.device
    return PseudoObjects(
        torch.tensor(index, dtype=torch.long, device=device),
        torch.tensor(classes, dtype=torch.long, device=device),
        torch.tensor(score, dtype=log_prob.dtype, device=device),
    )


def _highest_group(values: NDArray[np.float64], rounds: int = 50) -> NDArray[np.bool_]:
    """Members of the highest of three groups, by k-means on a line started at the least, the middle and the largest value."""
    centres = np.array([values.min(), (values.min() + values.max()) / 2, values.max()])
    for _ in range(rounds):
        group = np.abs(values[:, None] - centres).argmin(axis=1)
        moved = np.array([values[group == g].mean() if (group == g).any() else centres[g] for g in range(3)])
        if np.array_equal(moved, centres):
            break
        centres = moved
    highest: NDArray[np.bool_] = group == group[values.argmax()]
    return highest


def _centres(boxes: NDArray[np.float64], scores: NDArray[np.float64]) -> list[tuple[int, float]]:
    """(index, score) of the cluster centres, best first."""
    near = iou(boxes, boxes) > GRAPH_IOU
    near[np.diag_indices(len(boxes))] = True  # an empty box is its own neighbour
    centres = []
    while near.any():
        degree = near.sum(axis=1)
        best = np.flatnonzero(degree == degree.max())
        i = int(best[ranked(boxes[best], scores[best])[0]])
        members = near[i].copy()
        centres.append((i, float(scores[members].max())))
        near[members] = False
        near[:, members] = False
    return sorted(centres, key=lambda centre: -centre[1])[:MOST_CLUSTERS]


@torch.no_grad()
def cluster_labels(
    objects: PseudoObjects, proposals: Tensor, log_prob: Tensor, object_iou: float
) -> tuple[Labels, Tensor]:
    """PCL's labels, and the cluster of each proposal (N,), -1 for background."""
    count, outputs = log_prob.shape
    overlap = overlaps(proposals, proposals[objects.index]).to(log_prob.dtype)
    best, which = overlap.max(dim=1)
    near = best >= object_iou
    target = log_prob.new_zeros((count, outputs))
    target[torch.arange(count), torch.where(near, objects.classes[which], outputs - 1)] = 1
    weight = torch.where(best >= IGNORED_BELOW, objects.confidence[which].to(log_prob.dtype), 0)
    return Labels(target, weight, torch.ones_like(near)), torch.where(near, which, -1)


def cluster_entropy(log_prob: Tensor, labels: Labels, cluster: Tensor) -> Tensor:
    """(N,) PCL's loss: a cluster is one bag, so each member pays the -log of the mean probability of its cluster."""
    own = (labels.target * log_prob).sum(dim=1)  # log p of the label
    result = -labels.weight * own
    for c in range(int(cluster.max()) + 1 if len(cluster) else 0):
        members = cluster == c
        if members.any():
            mean = torch.logsumexp(own[members], dim=0) - torch.log(members.sum().to(own.dtype))
            result = torch.where(members, -labels.weight * mean, result)
    return result
