"""What every backbone is to the rest of the model: a trunk that makes a map of the image, and a head that reads pooled boxes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from melm.errors import UsageError

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class InputConvention:
    """The numbers a network was trained on: (image - mean) / std, channels in `order`, pixels from 0 to `highest`."""

    order: Literal["rgb", "bgr"]
    highest: float  # 1 or 255: the unit of mean and std
    mean: Triple  # in `order`
    std: Triple

    def with_mean(self, mean: Triple) -> InputConvention:
        return replace(self, mean=mean)

    def __str__(self) -> str:
        mean = ", ".join(f"{value:.4g}" for value in self.mean)
        std = ", ".join(f"{value:.4g}" for value in self.std)
        divided = "" if self.std == (1.0, 1.0, 1.0) else f", divided by ({std})"
        return f"{self.order.upper()} from 0 to {self.highest:g}, less ({mean}){divided}"


TORCHVISION = InputConvention("rgb", 1.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TORCHVISION_FEATURES = InputConvention("rgb", 1.0, (0.48235, 0.45882, 0.40784), (1 / 255,) * 3)
CAFFE = InputConvention("bgr", 255.0, (103.939, 116.779, 123.68), (1.0, 1.0, 1.0))
MATCONVNET = InputConvention("rgb", 255.0, (123.68, 116.779, 103.939), (1.0, 1.0, 1.0))


class Reading(Protocol):
    """What a frozen trunk asks of a backbone."""

    def trunk(self, image: Tensor) -> Tensor: ...

    def stem(self, image: Tensor) -> Tensor: ...

    def tail(self, map: Tensor) -> Tensor: ...


class Backbone(nn.Module, ABC):
    """A convolutional network, cut where boxes are pooled.

    `trunk` runs once per image and `head` once per box. The box of map cell (i, j) is centred at
    `stride * (j + 0.5) + offset`, `stride * (i + 0.5) + offset` in the image; networks that do not pad have an offset.
    """

    name: str
    stride: int  # image pixels per cell of the map
    offset: float  # pixels by which the cells' centres lie right of and below a plain grid
    channels: int  # C, of the map
    pooled_size: int  # P: each box is pooled to P x P cells
    features: int  # D, of a box after `head`
    frozen: tuple[str, ...]  # submodules that fine-tuning leaves alone
    head_layers: tuple[str, ...]  # submodules that `head` runs; weight files may lack them
    convention: InputConvention  # what `normalise` makes; set anew by the weights that are loaded

    @property
    def classifier(self) -> nn.Linear | None:
        """What the network calls the mean of its map, where it was trained to call it something."""
        return None

    @abstractmethod
    def trunk(self, image: Tensor) -> Tensor:
        """The map that boxes are pooled from: (1, 3, H, W) -> (1, C, about H / stride, about W / stride)."""

    def reading(self, kind: torch.dtype = torch.float32) -> Reading:
        """The trunk for those who only read, with the weights it has now, perhaps in another kind of numbers."""
        return self

    def stem(self, image: Tensor) -> Tensor:
        """The first part of the trunk, up to a map at its stride: (1, 3, H, W) -> (1, M, h, w)."""
        raise UsageError(f"{self.name}: its trunk is not made in two parts. lite0 and lite2 are")

    def tail(self, map: Tensor) -> Tensor:
        """The rest of it: (1, M, h, w) -> (1, C, h, w)."""
        raise UsageError(f"{self.name}: its trunk is not made in two parts. lite0 and lite2 are")

    def split(self) -> tuple[nn.Module, int]:
        """The tail, (h, w, M) -> (h, w, C), as a module of its own with a copy of the weights; and M."""
        raise UsageError(f"{self.name}: its trunk is not made in two parts. lite0 and lite2 are")

    @abstractmethod
    def head(self, pooled: Tensor) -> Tensor:
        """The features of pooled boxes: (N, P, P, C) -> (N, D)."""

    @property
    def mean(self) -> Triple:
        return self.convention.mean

    @property
    def std(self) -> Triple:
        return self.convention.std

    def normalise(self, image: Tensor) -> Tensor:
        """Bytes of an RGB image, (H, W, 3) or (3, H, W), to the numbers that this network was trained on, (3, H, W)."""
        if image.dtype != torch.uint8 or image.ndim != 3 or 3 not in (image.shape[0], image.shape[2]):
            found = f"{tuple(image.shape)} of {image.dtype}"
            raise ValueError(f"an image of {found}; bytes (uint8) of shape (H, W, 3) or (3, H, W) were expected")
        if image.shape[2] == 3:  # first, as nobody has photos 3 pixels high
            image = image.permute(2, 0, 1)  # (3, H, W)
        if self.convention.order == "bgr":
            image = image.flip(0)
        unit = 255.0 / self.convention.highest
        mean = torch.tensor(self.mean, device=image.device) * unit
        std = torch.tensor(self.std, device=image.device) * unit
        return (image.float() - mean[:, None, None]) / std[:, None, None]

    def freeze(self) -> None:
        """Takes the layers named in `frozen` out of learning."""
        for name in self.frozen:
            for parameter in self.get_submodule(name).parameters():
                parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> Backbone:
        """As usual, but batch normalisation keeps the statistics it came with: one image a step gives none of use."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.training = False
        return self
