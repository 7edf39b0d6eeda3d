"""Eq. 10: what a localization branch is told about each proposal, in the readings that the text allows.

A label is a target over K+1 classes, background last, and a weight. It never takes part in back-propagation.

soft              g(h, h*) on the class, the rest on background; below `object_iou` a hard negative; weighted by h*'s confidence
confident_target  the same with the confidence multiplied into the target instead
literal           w_h p(y, h) as printed: around h* one constant on the class, the kernel-weighted mean of p; no background
smoothed          the same mean centred at each h instead of h*, the rest on background
hard              1 on the class from `object_iou` on, else background (the conference version, and OICR)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from melm.model.cliques import Cliques
from melm.model.entropy import kernel, neighbour_mean
from melm.model.objects import PseudoObjects


@dataclass(frozen=True, slots=True)
class Labels:
    target: Tensor  # (N, K+1)
    weight: Tensor  # (N,)
    inside: Tensor  # (N,) whether a proposal is in Omega


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    """(N, P) intersection over union; 0 for empty boxes."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = (high - low).clamp_min(0).prod(dim=2)
    area_a, area_b = ((x[:, 2:] - x[:, :2]).clamp_min(0).prod(dim=1) for x in (a, b))
    union = area_a[:, None] + area_b[None, :] - inter
    return torch.where(union > 0, inter / union.clamp_min(torch.finfo(inter.dtype).tiny), 0)


@torch.no_grad()
def make_labels(
    objects: PseudoObjects,
    proposals: Tensor,
    log_prob: Tensor,
    reading: str,
    a: float,
    object_iou: float = 0.5,
    cliques: Cliques | None = None,
) -> Labels:
    """Labels for a branch with log_prob (N, K+1), from objects found before it. `cliques` narrows Omega to those of the objects.

    An image without objects is background all over; where Omega is the clique, or nothing is ever background (`literal`), it
    teaches nothing.
    """
    count, outputs = log_prob.shape
    everywhere = torch.ones(count, dtype=torch.bool, device=log_prob.device)
    target = log_prob.new_zeros((count, outputs))
    if len(objects) == 0:
        target[:, -1] = 1
        teaches = cliques is None and reading != "literal"
        return Labels(target, torch.ones_like(target[:, -1]), everywhere if teaches else ~everywhere)
    inside = everywhere if cliques is None else neighbourhood(objects, cliques, count)
    overlap = overlaps(proposals, proposals[objects.index]).to(log_prob.dtype)  # (N, P)
    best, which = overlap.max(dim=1)  # (N,) each proposal belongs to the object it overlaps most
    near = (best >= object_iou) & inside
    if reading == "literal" and cliques is not None:
        near = inside  # as printed, all of Omega
    classes, confidence = objects.classes[which], objects.confidence[which].to(log_prob.dtype)
    weight = torch.ones_like(best) if reading in ("confident_target", "literal", "smoothed") else confidence
    if reading in ("soft", "confident_target"):
        on_class = kernel(best, a) * (confidence if reading == "confident_target" else 1)
    elif reading == "hard":
        on_class = torch.ones_like(best)
    elif reading == "literal":
        prob = log_prob.gather(1, classes[:, None])[:, 0].exp()  # (N,) p(y*, h)
        on_class = _mean_around_object(prob, best, near, which, len(objects), a)
    else:
        prob = log_prob.gather(1, classes[:, None])[:, 0].exp()
        on_class = _mean_around_each(prob, proposals, near, which, len(objects), a)
    on_class = torch.where(near, on_class, 0)
    target.scatter_(1, classes[:, None], on_class[:, None])
    if reading == "literal":
        weight = torch.where(near, weight, 0)  # as printed, nothing is ever background
    else:
        target[:, -1] = 1 - on_class
    return Labels(target, weight, inside)


def neighbourhood(objects: PseudoObjects, cliques: Cliques, count: int) -> Tensor:
    """Omega_h* (N,): the cliques that the objects are in; an object outside all of them is alone."""
    inside = torch.zeros(count, dtype=torch.bool, device=objects.index.device)
    inside[objects.index] = True
    holds = torch.isin(cliques.ids, cliques.ids[torch.isin(cliques.selected, objects.index)])
    inside[cliques.selected[holds]] = True
    return inside


def _mean_around_object(prob: Tensor, overlap: Tensor, near: Tensor, which: Tensor, objects: int, a: float) -> Tensor:
    result = torch.zeros_like(prob)
    for p in range(objects):
        around = near & (which == p)
        if around.any():
            result[around] = neighbour_mean(prob[around], kernel(overlap[around], a))
    return result


def _mean_around_each(prob: Tensor, proposals: Tensor, near: Tensor, which: Tensor, objects: int, a: float) -> Tensor:
    result = torch.zeros_like(prob)
    for p in range(objects):
        around = near & (which == p)
        if around.any():
            g = kernel(overlaps(proposals[around], proposals[around]).to(prob.dtype), a)  # (M, M)
            result[around] = (g * prob[around]).sum(dim=1) / g.sum(dim=1)
    return result
