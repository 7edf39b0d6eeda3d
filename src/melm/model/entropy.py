"""Equations 3 to 11 as functions of tensors. Everything is kept as logarithms, so that no finite score gives NaN or infinity.

N proposals, K classes, C cliques. `tags` (K,) is 1 where the image has the class; `known` (K,) is 0 where nobody knows.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def joint(class_logits: Tensor, location_logits: Tensor | None) -> Tensor:
    """Eq. 4 as printed: log p (M, K), one softmax over all classes and all proposals or cliques. It sums to one over both."""
    scores = class_logits if location_logits is None else class_logits + location_logits  # s(y, h)
    return F.log_softmax(scores.flatten(), dim=0).view_as(scores)


def two_stream(class_logits: Tensor, location_logits: Tensor | None) -> Tensor:
    """Eq. 4 as released: log p (M, K), a softmax over classes times a softmax over proposals or cliques.

    With one class the first softmax would always be 1; a sigmoid takes its place.
    """
    if location_logits is None:
        raise ValueError("two_stream needs location logits")
    of_class = F.logsigmoid(class_logits) if class_logits.shape[1] == 1 else F.log_softmax(class_logits, dim=1)
    return of_class + F.log_softmax(location_logits, dim=0)


def log_clique_weight(clique_log_prob: Tensor) -> Tensor:
    """Eq. 6: log w_Hc (C, K), the share of a class in the probability of a clique."""
    return F.log_softmax(clique_log_prob, dim=1)


def global_entropy(clique_log_prob: Tensor, weighted: bool = True) -> Tensor:
    """Eq. 5: E(H_c) (K,), -log of the weighted probability of all cliques; Eq. 3 without the weight."""
    weight = log_clique_weight(clique_log_prob) if weighted else 0
    return -torch.logsumexp(clique_log_prob + weight, dim=0)


def log_not(log_prob: Tensor) -> Tensor:
    """log(1 - p), kept finite where p rounds to 1."""
    return torch.log1p(-log_prob.exp() * (1 - torch.finfo(log_prob.dtype).eps))


def discovery_loss(
    clique_log_prob: Tensor, log_prob: Tensor, tags: Tensor, known: Tensor, weighted: bool = True
) -> Tensor:
    """Eq. 7: the global entropy of every tag, and for every class known to be absent the loss of all N proposals.

    clique_log_prob (C, K), log_prob (N, K). The second term is summed over classes and proposals.
    """
    present = (tags * known).to(log_prob.dtype)
    absent = ((1 - tags) * known).to(log_prob.dtype)
    return present @ global_entropy(clique_log_prob, weighted) - absent @ log_not(log_prob).sum(dim=0)


def kernel(overlap: Tensor, a: float) -> Tensor:
    """g(h, h*) = exp(-a (1 - O(h, h*))^2): 1 where two boxes are the same, less the less they overlap."""
    return torch.exp(-a * (1 - overlap) ** 2)


def neighbour_weight(prob: Tensor, kernel_to_object: Tensor) -> Tensor:
    """Eq. 10 as printed: w_h (M,) for the neighbours of h*, from p(y, h) (M,) and g(h, h*) (M,).

    w_h p(y, h) is the same for every h: the mean of p around h*. See `labels.literal`.
    """
    mean = (kernel_to_object * prob).sum() / kernel_to_object.sum()
    return mean / prob.clamp_min(torch.finfo(prob.dtype).tiny)


def local_entropy(log_prob: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Eq. 9 for each proposal: E(h) (N,), -weight sum_y target(y, h) log p(y, h), for log_prob and target (N, K+1)."""
    return -weight * (target * log_prob).sum(dim=1)


def localization_loss(entropy: Tensor, averaged: bool = True) -> Tensor:
    """Eq. 11: the local entropy over Omega, averaged over its proposals, or summed as printed."""
    total = entropy.sum()
    return total / max(len(entropy), 1) if averaged else total


def min_entropy_loss(discovery: Tensor, localization: list[Tensor], weight: float) -> Tensor:
    """Eq. 1: discovery + lambda x the sum over the localization branches."""
    return discovery + weight * sum(localization, discovery.new_zeros(()))


def image_loss(log_prob: Tensor, tags: Tensor, known: Tensor) -> Tensor:
    """WSDDN's loss: the binary cross-entropy of each known class with the sum over proposals of p(y, h)."""
    log_image = torch.logsumexp(log_prob, dim=0).clamp_max(math.log1p(-torch.finfo(log_prob.dtype).eps))  # (K,)
    of_class = tags * log_image + (1 - tags) * log_not(log_image)
    return -(known * of_class).sum()
