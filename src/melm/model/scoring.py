"""Eq. 4 in its two forms: from logits to the probability of a class in a proposal or a clique.

Each form also gives log(1 - p), from the logits and not from p: where p rounds to 1, that is where there is most to unlearn.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Joint:
    """As printed: one softmax over all classes and all proposals or cliques. It sums to one over both."""

    @staticmethod
    def log_prob(class_logits: Tensor, location_logits: Tensor | None) -> Tensor:
        """log p(y, h) (M, K)."""
        return F.log_softmax(Joint._scores(class_logits, location_logits).flatten(), dim=0).view_as(class_logits)

    @staticmethod
    def log_not(class_logits: Tensor, location_logits: Tensor | None) -> Tensor:
        """log(1 - p(y, h)) (M, K)."""
        return log_not_softmax(Joint._scores(class_logits, location_logits).flatten(), dim=0).view_as(class_logits)

    @staticmethod
    def image(class_logits: Tensor, location_logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """log P and log(1 - P) (K,) of the image: P(y) is the sum over proposals."""
        of_class = torch.logsumexp(Joint._scores(class_logits, location_logits), dim=0)
        return F.log_softmax(of_class, dim=0), log_not_softmax(of_class, dim=0)

    @staticmethod
    def _scores(class_logits: Tensor, location_logits: Tensor | None) -> Tensor:
        return class_logits if location_logits is None else class_logits + location_logits  # s(y, h)


class TwoStream:
    """As released: a softmax over classes times one over proposals or cliques; with one class, a sigmoid for the first."""

    @staticmethod
    def log_prob(class_logits: Tensor, location_logits: Tensor | None) -> Tensor:
        """log p(y, h) (M, K)."""
        return _of_class(class_logits)[0] + F.log_softmax(_required(location_logits), dim=0)

    @staticmethod
    def log_not(class_logits: Tensor, location_logits: Tensor | None) -> Tensor:
        """log(1 - p(y, h)) (M, K): with p = a b, 1 - p = (1 - a) + a (1 - b)."""
        of_class, not_class = _of_class(class_logits)
        return torch.logaddexp(not_class, of_class + log_not_softmax(_required(location_logits), dim=0))

    @staticmethod
    def image(class_logits: Tensor, location_logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """log P and log(1 - P) (K,) of the image: P(y) is the sum over proposals, whose second factor sums to 1."""
        of_class, not_class = _of_class(class_logits)
        location = F.log_softmax(_required(location_logits), dim=0)
        return torch.logsumexp(of_class + location, dim=0), torch.logsumexp(not_class + location, dim=0)


def log_class(logits: Tensor) -> Tensor:
    """log a (M, K) of the first stream: of one class alone a softmax would be 1 for every proposal."""
    return F.logsigmoid(logits) if logits.shape[1] == 1 else F.log_softmax(logits, dim=1)


def _of_class(logits: Tensor) -> tuple[Tensor, Tensor]:
    """log a and log(1 - a) of the first stream."""
    return log_class(logits), F.logsigmoid(-logits) if logits.shape[1] == 1 else log_not_softmax(logits, dim=1)


def _required(location_logits: Tensor | None) -> Tensor:
    if location_logits is None:
        raise ValueError("two_stream needs location logits")
    return location_logits


def log_not_softmax(logits: Tensor, dim: int) -> Tensor:
    """log(1 - softmax). Only the largest entry can be near 1: for it, the others are summed.

    A softmax over one entry is 1 for good; what stands for log 0 there is a large negative constant.
    """
    log_prob = F.log_softmax(logits, dim=dim)
    largest = torch.zeros_like(logits, dtype=torch.bool).scatter(dim, logits.argmax(dim=dim, keepdim=True), True)
    small = torch.log1p(-log_prob.masked_fill(largest, -1).exp())
    if logits.shape[dim] == 1:
        return torch.full_like(logits, torch.finfo(logits.dtype).min / 1e30)
    others = torch.logsumexp(logits.masked_fill(largest, -torch.inf), dim=dim, keepdim=True)
    return torch.where(largest, others - torch.logsumexp(logits, dim=dim, keepdim=True), small)
