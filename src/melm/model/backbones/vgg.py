"""The classic networks of the field: VGG-F, AlexNet and VGG16. Convolutions, then fc6 and fc7 on each pooled box.

The layers carry Caffe's names (conv1_1, fc6). Boxes arrive pooled as (N, P, P, C), so fc6 keeps its weights in that order:
weight files, which hold (C, P, P), are turned once when they are loaded and the many activations never.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from melm.model.backbones.backbone import MATCONVNET, TORCHVISION, Backbone
from melm.model.linear import Linear


class ClassicBackbone(Backbone):
    """Convolutions with ReLU, poolings between them, and two fully connected layers with dropout."""

    stride = 16
    head_layers = ("fc6", "fc7")

    def __init__(
        self, convolutions: dict[str, nn.Conv2d], steps: tuple[str, ...], pool: nn.MaxPool2d, features: int
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleDict(convolutions)
        self.norm: nn.Module = nn.Identity()
        self.steps = steps  # names of convolutions, "norm" and "pool" as they follow each other
        self.pool = pool
        self.features = features
        self.channels = convolutions[steps[-1]].out_channels
        self.fc6 = Linear(self.pooled_size**2 * self.channels, features)
        self.fc7 = Linear(features, features)

    def trunk(self, image: Tensor) -> Tensor:
        for step in self.steps:
            if step == "pool":
                image = self.pool(image)
            elif step == "norm":
                image = self.norm(image)
            else:
                image = F.relu(self.convolutions[step](image))
        return image

    def head(self, pooled: Tensor) -> Tensor:
        boxes = pooled.flatten(1)  # (N, P * P * C)
        boxes = F.dropout(F.relu(self.fc6(boxes)), 0.5, self.training)  # (N, D)
        return F.dropout(F.relu(self.fc7(boxes)), 0.5, self.training)


class VGGF(ClassicBackbone):
    """The fast network of Chatfield et al. 2014, as in MatConvNet's `imagenet-vgg-f.mat`."""

    name = "vgg-f"
    pooled_size = 6
    offset = 9.5  # conv1 does not pad, and the poolings begin at the edge
    frozen = ("convolutions.conv1",)
    convention = MATCONVNET

    def __init__(self, features: int = 4096) -> None:
        convolutions = {
            "conv1": nn.Conv2d(3, 64, 11, stride=4),
            "conv2": nn.Conv2d(64, 256, 5, padding=2),
            "conv3": nn.Conv2d(256, 256, 3, padding=1),
            "conv4": nn.Conv2d(256, 256, 3, padding=1),
            "conv5": nn.Conv2d(256, 256, 3, padding=1),
        }
        steps = ("conv1", "norm", "pool", "conv2", "norm", "pool", "conv3", "conv4", "conv5")
        # MatConvNet pads one row below and one column to the right ([0 1 0 1]), as Caffe rounds up: that is ceil_mode.
        super().__init__(convolutions, steps, nn.MaxPool2d(3, 2, ceil_mode=True), features)
        # MatConvNet's alpha of 1e-4 is for each of the 5 channels; PyTorch divides alpha by their number.
        self.norm = nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0)


class AlexNet(ClassicBackbone):
    """torchvision's one-tower AlexNet (Krizhevsky 2014)."""

    name = "alexnet"
    pooled_size = 6
    offset = 7.5  # the poolings do not pad
    frozen = ("convolutions.conv1",)
    convention = TORCHVISION

    def __init__(self, features: int = 4096) -> None:
        convolutions = {
            "conv1": nn.Conv2d(3, 64, 11, stride=4, padding=2),
            "conv2": nn.Conv2d(64, 192, 5, padding=2),
            "conv3": nn.Conv2d(192, 384, 3, padding=1),
            "conv4": nn.Conv2d(384, 256, 3, padding=1),
            "conv5": nn.Conv2d(256, 256, 3, padding=1),
        }
        steps = ("conv1", "pool", "conv2", "pool", "conv3", "conv4", "conv5")
        super().__init__(convolutions, steps, nn.MaxPool2d(3, 2), features)


class VGG16(ClassicBackbone):
    """The deep network of Simonyan and Zisserman 2015 (configuration D)."""

    name = "vgg16"
    pooled_size = 7
    offset = 0.0
    frozen = tuple(f"convolutions.{layer}" for layer in ("conv1_1", "conv1_2", "conv2_1", "conv2_2"))
    convention = TORCHVISION

    def __init__(self, features: int = 4096) -> None:
        convolutions: dict[str, nn.Conv2d] = {}
        steps: list[str] = []
        before = 3
        for stage, (layers, width) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), start=1):
            for layer in range(1, layers + 1):
                convolutions[f"conv{stage}_{layer}"] = nn.Conv2d(before, width, 3, padding=1)
                steps.append(f"conv{stage}_{layer}")
                before = width
            if stage < 5:  # the fifth pooling is the pooling of boxes
                steps.append("pool")
        super().__init__(convolutions, tuple(steps), nn.MaxPool2d(2, 2), features)
