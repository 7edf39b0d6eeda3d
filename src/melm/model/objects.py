"""Pseudo-objects h*: what a branch takes for an object while learning, and teaches the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from melm.model.cliques import Cliques
from melm.model.entropy import log_clique_weight


@dataclass(frozen=True, slots=True)
class PseudoObjects:
    """h*, P of them: a proposal, its class and how sure the branch was of it. No gradient flows through any of it."""

    index: Tensor  # (P,) into the N proposals
    classes: Tensor  # (P,)
    confidence: Tensor  # (P,) in 0 to 1

    def __len__(self) -> int:
        return len(self.index)


def discovered_cliques(clique_log_prob: Tensor, tagged: Tensor, weighted: bool = True) -> Tensor:
    """H_c* (P,): for each tag the clique with the largest w_Hc p(y, H_c)."""
    score = clique_log_prob + log_clique_weight(clique_log_prob) if weighted else clique_log_prob
    return score[:, tagged].argmax(dim=0)


def objects_of_discovery(
    log_prob: Tensor, clique_log_prob: Tensor, cliques: Cliques, tagged: Tensor, order: Tensor, weighted: bool = True
) -> PseudoObjects:
    """Eq. 8 for the discovery branch: in the discovered clique of each tag, the proposal with the largest p(y, h).

    log_prob (N, K), clique_log_prob (C, K), tagged (P,) class numbers. Its confidence is the clique's w_Hc.
    """
    log_prob, clique_log_prob = log_prob.detach(), clique_log_prob.detach()
    chosen = discovered_cliques(clique_log_prob, tagged, weighted)  # (P,)
    inside = log_prob.new_full((log_prob.shape[0], len(tagged)), -torch.inf)  # (N, P)
    member = cliques.ids[:, None] == chosen[None, :]  # (M, P)
    of_selected = log_prob[cliques.selected][:, tagged]
    inside[cliques.selected] = torch.where(member, of_selected, inside[cliques.selected])
    weight = log_clique_weight(clique_log_prob)[chosen, tagged].exp()
    return PseudoObjects(_argmax(inside, order), tagged, weight)


def top_objects(log_prob: Tensor, tagged: Tensor, order: Tensor, chosen: Tensor | None = None) -> PseudoObjects:
    """Eq. 8 for a localization branch, and OICR's choice: the proposal with the largest p(y, h) of all N, or the largest value of
    `chosen` (N, K). Its confidence is p(y, h)."""
    of_tag = log_prob.detach()[:, tagged]  # (N, P)
    index = _argmax(of_tag if chosen is None else chosen.detach()[:, tagged], order)
    return PseudoObjects(index, tagged, of_tag[index, torch.arange(len(tagged), device=index.device)].exp())


def all_objects(found: Sequence[PseudoObjects]) -> PseudoObjects:
    """Accumulated recurrent learning: everything that the branches before have found, the surest first.

    A proposal belongs to the one it overlaps most (`labels`); where two are equal, to the surest.
    """
    index, classes, confidence = (
        torch.cat([getattr(objects, name) for objects in found]) for name in ("index", "classes", "confidence")
    )
    order = torch.argsort(confidence, descending=True, stable=True)
    return PseudoObjects(index[order], classes[order], confidence[order])


def _argmax(values: Tensor, order: Tensor) -> Tensor:
    """(P,) rows of the largest values of (N, P); of equal ones, the first by coordinates."""
    if values.shape[1] == 0:
        return order.new_zeros(0)
    return order[values[order].argmax(dim=0)]
