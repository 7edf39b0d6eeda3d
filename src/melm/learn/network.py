"""The network of a run, built from its configuration: a trunk and MELM on top."""

from __future__ import annotations

from torch import Tensor, nn

from melm.learn.presets import LearnConfig
from melm.model.backbones import Backbone, build_backbone
from melm.model.melm import MELM
from melm.model.trunks import FrozenTrunk, PooledHead, TunedTrunk, mlp


class Network(nn.Module):
    """What a run learns and a detector runs."""

    def __init__(self, trunk: FrozenTrunk | TunedTrunk, melm: MELM) -> None:
        super().__init__()
        self.trunk, self.melm = trunk, melm

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and buffer once, by name: a tuned backbone is part of both the trunk and MELM's neck."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}


def build_network(config: LearnConfig, classes: int, backbone: Backbone | None = None) -> Network:
    """A network with random layers above the backbone, drawn from PyTorch's current random state."""
    backbone = backbone or build_backbone(config.backbone)
    if config.trunk == "frozen":
        frozen = FrozenTrunk(backbone, config.scales, config.normal_size, config.components)
        neck = mlp(frozen.components, config.hidden, config.dropout)
        return Network(frozen, MELM(neck, config.hidden, classes, config.settings))
    tuned = TunedTrunk(backbone, config.settings.reads_surround)
    return Network(tuned, MELM(PooledHead(backbone), backbone.features, classes, config.settings))
