"""Recurrent learning (Alg. 1): what the localization branch takes for objects weighs the features of the discovery branch."""

from __future__ import annotations

import math

from torch import Tensor


def object_score(log_prob: Tensor) -> Tensor:
    """s(h) (N,): the largest foreground probability of a localization branch (N, K+1), background last. Never learned through."""
    return log_prob[:, :-1].detach().exp().amax(dim=1)


def aggregate(features: Tensor, objectness: Tensor, strength: float) -> Tensor:
    """phi_h <- phi_h ((1 - r) + r s(h)): r = 1 is Alg. 1, r = 0 leaves the features (N, D) alone."""
    return features * ((1 - strength) + strength * objectness)[:, None]


def feedback_strength(progress: float, rate: float = 1.0) -> float:
    """r after a share `progress` (0 to 1) of all epochs: 0 at first, 1 - 1/e = 0.63 at the end."""
    return 1 - math.exp(-progress * rate)
