"""A student: a detector on the last stages of the trunk, taught boxes that another one found.

The first stages of the trunk stay as they are and their maps are stored. Each box is read at the scale where it has about a
normal size, as a frozen trunk reads it: the mean over box, frame and ring. It begins as what the frozen trunk
sees, by the same basis.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from melm.model.branches import start_small
from melm.model.trunks import FrozenTrunk, means, mlp, normal_scale


class Student(nn.Module):
    """log p(y, h) (N, K+1) of boxes, background last, from the stem's maps."""

    def __init__(self, trunk: FrozenTrunk, hidden: int, dropout: float, classes: int) -> None:
        super().__init__()
        self.tail, _ = trunk.backbone.split()
        self.stride = trunk.backbone.stride
        self.reduce = nn.Linear(trunk.backbone.channels, trunk.components)
        with torch.no_grad():
            self.reduce.weight.copy_(trunk.basis.T)
            self.reduce.bias.copy_(-trunk.mean @ trunk.basis)
        self.neck = mlp(3 * trunk.components, hidden, dropout)
        self.of_class = nn.Linear(hidden, classes + 1)
        start_small(self.of_class)

    def forward(self, maps: Sequence[Tensor | None], boxes: Sequence[Tensor]) -> Tensor:
        """maps (h, w, M) by scale, or None where there are no boxes (n, 4) at it. Rows: the boxes of one scale after another."""
        seen = []
        for map, there in zip(maps, boxes, strict=True):
            if map is None or not len(there):
                continue
            cells = self.reduce(self.tail(map))  # (h, w, D)
            seen.append(torch.cat(means(cells, there, self.stride), dim=1))  # (n, 3 D)
        return F.log_softmax(self.of_class(self.neck(torch.cat(seen))), dim=1)


def by_scale(
    boxes: Tensor, scales: tuple[int, ...], width: int, height: int, normal_size: float
) -> tuple[list[Tensor], Tensor]:
    """Boxes (N, 4) of an image of width x height, in the pixels of the scale where each is read; and their rows in that order."""
    larger = max(width, height)
    number = normal_scale(boxes, scales, larger, normal_size)
    there, rows = [], []
    for s, scale in enumerate(scales):
        of_scale = torch.nonzero(number == s)[:, 0]
        small = [max(1, round(side * scale / larger)) / side for side in (width, height)]
        there.append(boxes[of_scale] * boxes.new_tensor(small).repeat(2))
        rows.append(of_scale)
    return there, torch.cat(rows)
