"""The networks that look at the image, chosen by name, and the weights they start from."""

from __future__ import annotations

from collections.abc import Callable

from melm.errors import one_of
from melm.model.backbones.backbone import Backbone, InputConvention
from melm.model.backbones.efficientnet_lite import lite0, lite2
from melm.model.backbones.resnet import resnet18, resnet50, resnet101
from melm.model.backbones.vgg import VGG16, VGGF, AlexNet
from melm.model.backbones.weights import LoadedWeights, load_weights

BACKBONES: dict[str, Callable[[], Backbone]] = {
    "vgg-f": VGGF,
    "alexnet": AlexNet,
    "vgg16": VGG16,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "lite0": lite0,
    "lite2": lite2,
}


def build_backbone(name: str) -> Backbone:
    """A backbone with random weights; `load_weights` gives it those of a file or a package."""
    return BACKBONES[one_of("backbone", name, BACKBONES)]()


__all__ = ["BACKBONES", "Backbone", "InputConvention", "LoadedWeights", "build_backbone", "load_weights"]
