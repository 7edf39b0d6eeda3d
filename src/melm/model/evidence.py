"""Evidence for an object of any class that is not learned: it differs from what surrounds it, and the proposals' own score.

Each is in deviations from its mean over the image's proposals. It takes part where an object is chosen, to teach a branch or to
be detected, and not in the loss: learned through, the network leans on it and learns less itself (docs/results.md).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from melm.model.branches import Regions


@torch.no_grad()
def contrast(pooled: Regions) -> Tensor:
    """(N,) how much each box differs from its ring: less the cosine of what was pooled for the two."""
    if pooled.ring is None:
        raise ValueError("contrast needs what was pooled for the ring")
    return in_deviations(-F.cosine_similarity(pooled.box.flatten(1), pooled.ring.flatten(1), dim=1))


def in_deviations(values: Tensor) -> Tensor:
    """Values (N,) less their mean, in units of their deviation; 0 where all are alike."""
    spread = values.std(correction=0) if len(values) else values.new_zeros(())
    return (values - values.mean()) / spread if spread > 1e-6 else torch.zeros_like(values)
