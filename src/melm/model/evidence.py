"""Evidence for an object of any class that is not learned: it differs from what surrounds it, the proposals' own score, its size.

The first two are in deviations from their mean over the image's proposals. It takes part where an object is chosen, to teach a
branch or to be detected, and not in the loss: learned through, the network leans on it and learns less itself
(docs/experiments.md).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from melm.model.branches import Regions

MIDDLE, LEAST = 0.15, 0.01  # share of an image; smaller boxes than the least are no farther from the middle


@torch.no_grad()
def contrast(pooled: Regions) -> Tensor:
    """(N,) how much each box differs from its ring: less the cosine of what was pooled for the two."""
    if pooled.ring is None:
        raise ValueError("contrast needs what was pooled for the ring")
    return in_deviations(-F.cosine_similarity(pooled.box.flatten(1), pooled.ring.flatten(1), dim=1))


def from_middle_size(share: Tensor) -> Tensor:
    """(N,) how far each box is from the middle size, (log(share / MIDDLE))^2, of the share (N,) of the image that it covers.

    What learns from boxes that were found draws all sizes to the middle: a large object in to a part of it, a small one out to
    what lies around it, and the next to learn from these draws them further. This takes it back.
    """
    return (share.clamp(min=LEAST) / MIDDLE).log() ** 2


def in_deviations(values: Tensor) -> Tensor:
    """Values (N,) less their mean, in units of their deviation; 0 where all are alike."""
    spread = values.std(correction=0) if len(values) else values.new_zeros(())
    return (values - values.mean()) / spread if spread > 1e-6 else torch.zeros_like(values)
