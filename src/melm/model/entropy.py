"""Equations 3 to 11 as functions of tensors. Everything is kept as logarithms, so that no finite score gives NaN or infinity.

N proposals, K classes, C cliques. `tags` (K,) is 1 where the image has the class; `known` (K,) is 0 where nobody knows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def log_clique_weight(clique_log_prob: Tensor) -> Tensor:
    """Eq. 6: log w_Hc (C, K), the share of a class in the probability of a clique."""
    return F.log_softmax(clique_log_prob, dim=1)


def global_entropy(clique_log_prob: Tensor, weighted: bool = True) -> Tensor:
    """Eq. 5: E(H_c) (K,), -log of the weighted probability of all cliques; Eq. 3 without the weight."""
    weight = log_clique_weight(clique_log_prob) if weighted else 0
    return -torch.logsumexp(clique_log_prob + weight, dim=0)


def discovery_loss(
    clique_log_prob: Tensor, log_not: Tensor, tags: Tensor, known: Tensor, weighted: bool = True
) -> Tensor:
    """Eq. 7: the global entropy of every tag, and for every class known to be absent the loss of all N proposals.

    clique_log_prob (C, K); log_not = log(1 - p(y, h)) (N, K). The second term is summed over classes and proposals.
    """
    present = (tags * known).to(log_not.dtype)
    absent = ((1 - tags) * known).to(log_not.dtype)
    return torch.dot(present, global_entropy(clique_log_prob, weighted)) - torch.dot(absent, log_not.sum(dim=0))


def kernel(overlap: Tensor, a: float) -> Tensor:
    """g(h, h*) = exp(-a (1 - O(h, h*))^2): 1 where two boxes are the same, less the less they overlap."""
    return torch.exp(-a * (1 - overlap) ** 2)


def neighbour_mean(prob: Tensor, kernel_to_object: Tensor) -> Tensor:
    """w_h p(y, h) of Eq. 10 as printed, from p(y, h) (M,) and g(h, h*) (M,) around h*: one number for all of them."""
    return (kernel_to_object * prob).sum() / kernel_to_object.sum()


def neighbour_weight(prob: Tensor, kernel_to_object: Tensor) -> Tensor:
    """Eq. 10 as printed: w_h (M,)."""
    return neighbour_mean(prob, kernel_to_object) / prob


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


def image_loss(log_image: Tensor, log_not_image: Tensor, tags: Tensor, known: Tensor) -> Tensor:
    """WSDDN's loss: the binary cross-entropy of each known class, from log P and log(1 - P) (K,) of the image."""
    return -(known * torch.where(tags > 0, log_image, log_not_image)).sum()
