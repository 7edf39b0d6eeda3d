"""From the names and orders of other projects' weight files to the layers here.

Which project a file is from shows in the names of its tensors, and with it what its network takes as input:

| names | origin | input |
|---|---|---|
| `features.0.weight`, `classifier.0.weight` | torchvision | RGB, 0 to 1, mean and std |
| the same with NaN for the fully connected layers | torchvision's VGG16 of features alone | RGB, 0 to 255 in effect |
| the same of VGG16 with `classifier.1` and `classifier.4` | Caffe's VGG16 as converted by J. Johnson | BGR, 0 to 255 |
| `conv1_1.weight`, `conv1_1_w`, `conv1_1/weights` | Caffe | BGR, 0 to 255 |
| `conv1_1_W` | Caffe by way of TensorFlow (D. Frossard's `vgg16_weights.npz`) | RGB, 0 to 255 |
| MatConvNet's layers | MatConvNet | RGB, 0 to 255, the file's own mean |
| ResNets, EfficientNet-Lite | torchvision, `efficientnet-lite-pytorch` | as those |

A Caffe VGG16 that was saved under torchvision's very names cannot be told from torchvision's; nor a Caffe ResNet. There the
convention has to be given to `load_weights`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from torch import Size, Tensor

from melm.errors import MelmError
from melm.model.backbones.backbone import (
    CAFFE,
    MATCONVNET,
    TORCHVISION,
    TORCHVISION_FEATURES,
    Backbone,
    InputConvention,
)
from melm.model.backbones.containers import Contents
from melm.model.backbones.efficientnet_lite import EfficientNetLite
from melm.model.backbones.vgg import VGGF, ClassicBackbone

# The numbers that torchvision gives to the convolutions in `features`, and to fc6, fc7 and fc8 in `classifier`.
NUMBERED = {
    "alexnet": ((0, 3, 6, 8, 10), (1, 4, 6)),
    "vgg16": ((0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28), (0, 3, 6)),
}
JOHNSON = (1, 4, 6)  # of `classifier` in the Caffe VGG16
NAMED = re.compile(r"(?:.*/)?(conv\d+(?:_\d+)?|fc[678])(?:[._/](weights?|kernel|bias(?:es)?)|_([wWb])|[./]([01]))")
PARTS = {"weight": "weight", "weights": "weight", "kernel": "weight", "w": "weight", "W": "weight", "0": "weight"}


@dataclass(frozen=True)
class Converted:
    """A file's tensors by the names of the backbone's own state, in its order and shapes."""

    origin: str
    tensors: dict[str, Tensor]
    convention: InputConvention
    unused: tuple[str, ...]  # names in the file that the backbone has no layer for, such as a classifier


def convert(contents: Contents, backbone: Backbone, path: Path) -> Converted:
    """Finds the layers of a backbone in a weight file, whoever wrote it."""
    if isinstance(backbone, ClassicBackbone):
        return _classic(contents, backbone, path)
    own = backbone.state_dict()
    origin, classifier = (
        ("efficientnet-lite-pytorch", "_fc.") if isinstance(backbone, EfficientNetLite) else ("torchvision", "fc.")
    )
    unused = [key for key in contents.tensors if key not in own]
    foreign = [key for key in unused if not key.startswith(classifier)]
    if foreign:
        raise _unknown(contents, backbone, path, foreign[0])
    tensors = {key: value for key, value in contents.tensors.items() if key in own}
    if any(value.shape != own[key].shape for key, value in tensors.items() if key.startswith(classifier)):
        unused += [key for key in tensors if key.startswith(classifier)]  # it knows other names than ImageNet's
        tensors = {key: value for key, value in tensors.items() if key not in unused}
    for key, value in tensors.items():
        if value.shape != own[key].shape:
            raise _mismatch(path, key, value.shape, own[key].shape)
    return Converted(f"{origin}, {contents.kind}", tensors, type(backbone).convention, tuple(unused))


def _classic(contents: Contents, backbone: ClassicBackbone, path: Path) -> Converted:
    """VGG-F, AlexNet and VGG16, which come from every corner."""
    own = backbone.state_dict()
    keys: dict[str, str] = {}  # own name -> name in the file
    unused: list[str] = []
    numbers = _numbered_layers(contents, backbone)
    for key in contents.tensors:
        match = NAMED.fullmatch(key)
        if match:
            layer, part = match[1], PARTS.get(match[2] or match[3] or match[4], "bias")
        else:
            layer, _, part = key.rpartition(".")
            layer = numbers.get(layer, layer)
        own_key = f"{layer}.{part}" if layer.startswith("fc") else f"convolutions.{layer}.{part}"
        if own_key in own:
            keys[own_key] = key
        elif layer.startswith(("conv", "features")):
            raise _unknown(contents, backbone, path, key)
        else:
            unused.append(key)
    if not keys:
        raise _unknown(contents, backbone, path, None)
    if contents.norm is not None and isinstance(backbone, VGGF):
        _check_norm(contents.norm, path)
    empty = [key for key, name in keys.items() if not contents.tensors[name].isfinite().all()]
    for own_key in empty:  # torchvision's VGG16 for features alone has NaN for fc6 and fc7: as good as absent
        unused.append(keys.pop(own_key))
    in_first = contents.kind == "MatConvNet" or _in_first(contents, backbone, keys)
    tensors = {
        own_key: _arranged(contents.tensors[key], own_key, key, backbone, in_first, path)
        for own_key, key in keys.items()
    }
    origin, convention = _origin(contents, keys)
    if empty and convention is TORCHVISION:
        convention = TORCHVISION_FEATURES
    return Converted(f"{origin}, {contents.kind}", tensors, convention, tuple(unused))


def _numbered_layers(contents: Contents, backbone: ClassicBackbone) -> dict[str, str]:
    """torchvision's numbers -> the names of the layers; empty for a network that torchvision has not."""
    if backbone.name not in NUMBERED:
        return {}
    features, classifier = NUMBERED[backbone.name]
    if _is_johnson(contents.tensors):
        classifier = JOHNSON
    names = {f"features.{n}": layer for n, layer in zip(features, backbone.convolutions, strict=True)}
    return names | {f"classifier.{n}": layer for n, layer in zip(classifier, ("fc6", "fc7", "fc8"), strict=True)}


def _is_johnson(names: dict[str, Tensor]) -> bool:
    """AlexNet has the same `classifier` numbers, but no `features.2`."""
    return "features.2.weight" in names and "classifier.1.weight" in names and "classifier.0.weight" not in names


def _origin(contents: Contents, keys: dict[str, str]) -> tuple[str, InputConvention]:
    if contents.kind == "MatConvNet":
        return "Matlab layers", MATCONVNET.with_mean(contents.mean) if contents.mean else MATCONVNET
    if any(key.startswith("features.") for key in keys.values()):
        return ("Caffe (J. Johnson)", CAFFE) if _is_johnson(contents.tensors) else ("torchvision", TORCHVISION)
    if any(key.endswith("_W") for key in keys.values()):
        return "Caffe by way of TensorFlow", MATCONVNET
    return "Caffe", CAFFE


def _in_first(contents: Contents, backbone: ClassicBackbone, keys: dict[str, str]) -> bool:
    """Whether convolutions are written as height, width, in, out (TensorFlow's way) rather than out, in, height, width."""
    own_key = f"convolutions.{backbone.steps[0]}.weight"
    out, into, height, width = backbone.state_dict()[own_key].shape
    return own_key in keys and tuple(contents.tensors[keys[own_key]].shape) == (height, width, into, out)


def _arranged(value: Tensor, own_key: str, key: str, backbone: ClassicBackbone, in_first: bool, path: Path) -> Tensor:
    """A tensor of the file in the backbone's order: convolutions (out, in, height, width), fc6 (out, P * P * C)."""
    target = backbone.state_dict()[own_key].shape
    if own_key.endswith(".bias"):
        if value.numel() != target.numel():
            raise _mismatch(path, key, value.shape, target)
        return value.reshape(target)
    if own_key.startswith("convolutions."):
        out, into, height, width = target
        expected = (height, width, into, out) if in_first else tuple(target)
        if _without_ones(value.shape) != _without_ones(expected):  # Matlab drops sides of 1
            raise _mismatch(path, key, value.shape, expected)
        value = value.reshape(expected)
        return value.permute(3, 2, 0, 1) if in_first else value
    size = backbone.pooled_size if own_key == "fc6.weight" else 1
    out, into = target[0], target[1] // size**2
    spread = (size, size, into, out) if in_first else (out, into, size, size)
    flat = (into * size**2, out) if in_first else (out, into * size**2)
    if _without_ones(value.shape) not in (_without_ones(spread), _without_ones(flat)):
        raise _mismatch(path, key, value.shape, flat)
    value = value.reshape(spread)
    return (value.permute(3, 0, 1, 2) if in_first else value.permute(0, 2, 3, 1)).reshape(target)  # (out, P * P * C)


def _check_norm(norm: tuple[float, ...], path: Path) -> None:
    """MatConvNet also has a VGG-F of its own training, whose normalisation is another."""
    expected = (5.0, 2.0, 1e-4, 0.75)
    if any(abs(a - b) > 1e-3 * b for a, b in zip(norm, expected, strict=True)):
        raise MelmError(
            f"{path}: local response normalisation with size, kappa, alpha, beta {norm}; {expected} was expected. "
            "Use imagenet-vgg-f.mat, which was converted from the authors' network"
        )


def _without_ones(shape: Size | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(side for side in shape if side != 1)


def _mismatch(path: Path, key: str, found: Size, expected: Size | tuple[int, ...]) -> MelmError:
    return MelmError(
        f"{path}: layer {key} has the shape {tuple(found)}; {tuple(expected)} was expected. Is it for another network?"
    )


def _unknown(contents: Contents, backbone: Backbone, path: Path, key: str | None) -> MelmError:
    first = ", ".join(list(contents.tensors)[:5]) or "none"
    why = "no layer of it was found" if key is None else f"{key} is no part of it"
    return MelmError(
        f"{path}: not the layout of {backbone.name}: {why}. Its first names are {first}. "
        "Files of torchvision, MatConvNet, Caffe and efficientnet-lite-pytorch are known"
    )
