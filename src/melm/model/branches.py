"""The two kinds of branches on top of the region features: object clique discovery and object localization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from melm.model.linear import Linear


@dataclass(frozen=True, slots=True)
class Regions:
    """What is read for each proposal: the box and, where the method looks there, the frame within and the ring around it."""

    box: Tensor  # (N, ...)
    frame: Tensor | None = None
    ring: Tensor | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> Regions:
        """The same change to box, frame and ring."""
        return Regions(*(None if part is None else change(part) for part in (self.box, self.frame, self.ring)))  # type: ignore[arg-type]

    def together(self, change: Callable[[Tensor], Tensor]) -> Regions:
        """The same for rows of features (N, D), all at once: three times as many rows are one product of matrices, not three."""
        parts = self.parts()
        if len(parts) != 3 or self.box.ndim != 2 or not len(self.box):
            return self.each(change)
        changed = change(torch.cat(parts))
        return Regions(*changed.view(3, -1, changed.shape[1]).unbind(0))  # N stays open where this is exported

    def parts(self) -> list[Tensor]:
        return [part for part in (self.box, self.frame, self.ring) if part is not None]

    def joined(self) -> Tensor:
        """Box, frame and ring beside each other: (N, 3 D)."""
        if len(self.parts()) < 3:
            raise ValueError("branch_sees_surround needs the features of frame and ring")
        return torch.cat(self.parts(), dim=1)


@dataclass(frozen=True, slots=True)
class Scores:
    """s(y, h) of the discovery branch, in one or two streams of logits (N, K)."""

    class_logits: Tensor
    location_logits: Tensor | None

    def each(self, change: Callable[[Tensor], Tensor]) -> Scores:
        location = None if self.location_logits is None else change(self.location_logits)
        return Scores(change(self.class_logits), location)

    def located(self, evidence: Tensor) -> Scores:
        """The same with evidence (N,) for an object of any class."""
        there = evidence[:, None].expand_as(self.class_logits)
        return Scores(self.class_logits, there if self.location_logits is None else self.location_logits + there)


class Discovery(nn.Module):
    """The object clique discovery branch: s(y, h) for every proposal."""

    def __init__(self, width: int, classes: int, streams: int, surround: bool, prior_weight: float) -> None:
        super().__init__()
        self.of_class = Linear(width, classes)
        self.of_location = Linear(width, classes, bias=not surround) if streams == 2 or surround else None
        self.surround, self.prior_weight = surround, prior_weight
        for layer in filter(None, (self.of_class, self.of_location)):
            start_small(layer)

    def forward(self, features: Regions, prior: Tensor | None) -> Scores:
        location = None
        if self.of_location is not None and self.surround:
            if features.frame is None or features.ring is None:
                raise ValueError("surround needs the features of frame and ring")
            location = self.of_location(features.frame) - self.of_location(features.ring)  # (N, K)
        elif self.of_location is not None:
            location = self.of_location(features.box)
        if self.prior_weight:
            if prior is None:
                raise ValueError("prior_weight is set, but no prior was given")
            return Scores(self.of_class(features.box), location).located(self.prior_weight * prior)
        return Scores(self.of_class(features.box), location)


class Localization(nn.Module):
    """An object localization branch: log p_t(y, h) (N, K+1), background last, from features (N, width)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.of_class = Linear(width, classes + 1)
        start_small(self.of_class)

    def forward(self, features: Tensor) -> Tensor:
        return F.log_softmax(self.of_class(features), dim=1)


def start_small(layer: nn.Linear) -> None:
    """As Fast R-CNN starts its last layers: all classes about equal."""
    nn.init.normal_(layer.weight, std=0.01)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
