"""A student: a Fast R-CNN detector that is taught boxes which another one found.

Either on a frozen trunk, whose maps are stored, with last stages of its own or with the trunk's (`Student`), or
a network of its own that learns as a whole (`FastRCNN`). Both read boxes at several scales and say what each is and how it has to
move, so that what they find is not bound to the proposals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from melm.model.backbones.backbone import Backbone
from melm.model.branches import start_small
from melm.model.linear import Linear
from melm.model.pooling import roi_pool
from melm.model.regions import map_of
from melm.model.trunks import FrozenTrunk, means, mlp, normal_scale, region_parts, side_strips

AT_ONCE = 128  # boxes that a whole network reads together: more of them take memory and save no time
SLIGHT_SHARE = 0.01  # below which it makes no difference how little of a box is of a class


@dataclass(frozen=True, slots=True)
class Said:
    """What a student says of n boxes."""

    log_prob: Tensor  # (n, K+1), background last
    shift: Tensor  # (n, 4), as `regression.moved` takes it


class Verdict(nn.Module):
    """The two layers at the end: what a box is, and how it moves (one way for all classes: few objects of each are known)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.of_class, self.of_place = Linear(width, classes + 1), Linear(width, 4)
        for layer in (self.of_class, self.of_place):
            start_small(layer)

    def forward(self, features: Tensor) -> Said:
        return Said(F.log_softmax(self.of_class(features), dim=1), self.of_place(features))


class CellNames(nn.Module):
    """What each cell of a map shows, by itself: a class or background.

    Boxes that are wrong in the same way in many images (the water under boats, the table around a bottle) teach a student of
    boxes to like them so. A cell knows of no box: what lies in boxes of a class here and outside them there is background.
    """

    def __init__(self, channels: int, components: int, hidden: int, dropout: float, classes: int) -> None:
        super().__init__()
        self.channels, self.components = channels, components
        self.neck = mlp(channels + components, hidden, dropout)
        self.of_class = Linear(hidden, classes + 1)
        start_small(self.of_class)

    def forward(self, cells: Tensor) -> Tensor:
        """Cells (..., M + D) of `FrozenTrunk.student_maps` -> log p, (..., K+1), background last."""
        first, last = cells[..., : self.channels], cells[..., self.channels :]
        seen = torch.cat([normalised(first, self.channels), normalised(last, self.components)], dim=-1)
        return F.log_softmax(self.of_class(self.neck(seen)), dim=-1)


def named_as(shares: Tensor, covering: Tensor) -> Tensor:
    """How well boxes agree with the names of cells, (N, K), 0 at best: much of a box has to be of the class, and more of its
    frame than of its ring. shares (3, N, K) of box, frame and ring; a box that is `covering` (N,) the picture has no ring."""
    box, frame, ring = shares.unbind(0)
    most = math.log(1 + SLIGHT_SHARE) + 1
    return (box + SLIGHT_SHARE).log() + torch.where(covering[:, None], 0.0, frame - ring) - most


class Student(nn.Module):
    """On a frozen trunk. It begins as what the trunk sees, by the same basis.

    Each box is read at the scale where it has about a normal size, as the frozen trunk reads it: the mean over box, frame and
    ring; and over each of bins x bins parts of the box, which tell a whole object from a part of one. A cell of the last stage
    sees far around itself, so a box that is too large looks much like the right one there; `sharp` reads the parts, and strips
    along the sides of the box, on the map of the first stages as well, whose cells see less. With `fixed`, stages and basis
    stay as they came: a student has none of its own, all students read the trunk's, and every part they read is normalised.
    With `cells`, it names the cells of a map as well.
    """

    def __init__(
        self,
        trunk: FrozenTrunk,
        hidden: int,
        dropout: float,
        bins: int,
        sharp: bool,
        fixed: bool,
        cells: bool,
        classes: int,
    ) -> None:
        super().__init__()
        tail, self.channels = trunk.backbone.split()
        self.stride, self.bins, self.sharp, self.fixed = trunk.backbone.stride, bins, sharp, fixed
        begin = trunk.of_map
        self.components = begin.kept
        if not fixed:
            self.tail, self.reduce = tail, Linear(trunk.backbone.channels, begin.kept)
            with torch.no_grad():
                self.reduce.weight.copy_(begin.basis.T)
                # in double precision: the same bits on any number of threads
                self.reduce.bias.copy_(-begin.mean.double() @ begin.basis.double())
        width = (3 + bins * bins) * begin.kept + (
            len(self.sharp_parts(torch.zeros(0, 4))) * self.channels if sharp else 0
        )
        self.neck = mlp(width, hidden, dropout)
        self.verdict = Verdict(hidden, classes)
        self.cells = CellNames(self.channels, self.components, max(1, hidden // 2), dropout, classes) if cells else None

    def forward(self, maps: Sequence[Tensor | None], boxes: Sequence[Tensor]) -> Said:
        """maps of `FrozenTrunk.student_maps` by scale, or None where there are no boxes (n, 4) at it. Rows: the boxes of one
        scale after another."""
        return self.say(self.seen(maps, boxes))

    def seen(self, maps: Sequence[Tensor | None], boxes: Sequence[Tensor]) -> Tensor:
        """All that is read of each box, in a row. With `fixed` it is the same for all students of a run."""
        seen = []
        for map, there in zip(maps, boxes, strict=True):
            if map is not None and len(there):
                seen.append(torch.cat(self.read(map, there), dim=1))
        return torch.cat(seen)

    def say(self, seen: Tensor) -> Said:
        said: Said = self.verdict(self.neck(seen))
        return said

    def shares(self, map: Tensor, boxes: Tensor) -> Tensor:
        """How much of the box, frame and ring of boxes (n, 4) at the scale of a map shows each class, (3, n, K)."""
        return torch.stack(means(self.named(map).contiguous(), *region_parts(boxes), self.stride))

    def named(self, map: Tensor) -> Tensor:
        """p of each class in each cell of a map (h, w, M + D), (h, w, K)."""
        assert self.cells is not None
        log_prob: Tensor = self.cells(map)
        return log_prob[..., :-1].exp()

    def read(self, map: Tensor, boxes: Tensor) -> list[Tensor]:
        """The parts of boxes (n, 4) at the scale of a map (h, w, M or M + D): (n, D) of the last stage, then (n, M) of the first
        ones."""
        first, cells = self.stages(map)
        parts = means(cells, *region_parts(boxes, 3, self.bins), self.stride)
        if self.fixed:
            parts = [normalised(part, self.components) for part in parts]
        if self.sharp:
            sharp = self.sharp_parts(boxes)
            read = means(first, sharp, torch.zeros_like(sharp), self.stride)
            parts += [normalised(part, self.channels) for part in read]
        return parts

    def stages(self, map: Tensor) -> tuple[Tensor, Tensor]:
        """What the first stages say (h, w, M), and the components of what the last ones make of it (h, w, D)."""
        if self.fixed:
            return map[..., : self.channels].contiguous(), map[..., self.channels :].contiguous()
        return map, self.reduce(self.tail(map))

    def sharp_parts(self, boxes: Tensor) -> Tensor:
        """What is read of boxes (n, 4) on the map of the first stages, (parts, n, 4)."""
        strips = side_strips(boxes)
        return torch.cat([region_parts(boxes, 0, self.bins)[0], strips]) if self.bins else strips


def normalised(values: Tensor, channels: int) -> Tensor:
    """Values (..., channels) with mean 0 and deviation 1 over their channels."""
    return F.layer_norm(values, (channels,))  # the number is given, for a trace takes shapes for values


class FastRCNN(nn.Module):
    """A network of its own, as in the paper: RoI max pooling and the backbone's fully connected layers or last stage."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        backbone.freeze()
        self.backbone = backbone
        self.verdict = Verdict(backbone.features, classes)

    def forward(self, images: Sequence[Tensor | None], boxes: Sequence[Tensor]) -> Said:
        """images (h, w, 3), bytes, by scale, or None where there are no boxes (n, 4) at it. Rows as of `Student`."""
        seen = []
        for image, there in zip(images, boxes, strict=True):
            if image is not None and len(there):
                features = map_of(self.backbone, self.backbone.normalise(image))
                size, scale = self.backbone.pooled_size, 1 / self.backbone.stride
                for some in torch.split(there, AT_ONCE):
                    seen.append(self.backbone.head(roi_pool(features, some, size, scale)))
        said: Said = self.verdict(torch.cat(seen))
        return said


def by_scale(
    boxes: Tensor, scales: tuple[int, ...], width: int, height: int, normal_size: float
) -> tuple[list[Tensor], Tensor]:
    """Boxes (N, 4) of an image of width x height, in the pixels of the scale where each is read; and their rows in that order."""
    return at_scales(boxes, normal_scale(boxes, scales, max(width, height), normal_size), scales, width, height)


def at_scales(
    boxes: Tensor, number: Tensor, scales: tuple[int, ...], width: int, height: int
) -> tuple[list[Tensor], Tensor]:
    """The same where the scale of each box is known by its number (N,)."""
    larger = max(width, height)
    there, rows = [], []
    for s, scale in enumerate(scales):
        of_scale = torch.nonzero(number == s)[:, 0]
        small = [max(1, round(side * scale / larger)) / side for side in (width, height)]
        there.append(boxes[of_scale] * boxes.new_tensor(small).repeat(2))
        rows.append(of_scale)
    return there, torch.cat(rows)
