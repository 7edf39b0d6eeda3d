"""The network of a run, built from its configuration: a trunk and MELM on top."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from melm.config import reads_discovery
from melm.learn.presets import LearnConfig
from melm.model.backbones import Backbone, build_backbone
from melm.model.branches import Regions
from melm.model.melm import MELM, Output
from melm.model.precision import arranged, products
from melm.model.trunks import FrozenTrunk, PooledHead, TunedTrunk, mlp
from melm.proposals import Proposals


class Network(nn.Module):
    """What a run learns and a detector runs."""

    def __init__(self, trunk: FrozenTrunk | TunedTrunk, melm: MELM, precision: str = "fp32") -> None:
        super().__init__()
        self.trunk, self.melm, self.precision = trunk, melm, precision

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and buffer once, by name: a tuned backbone is part of both the trunk and MELM's neck."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}


def build_network(config: LearnConfig, classes: int, backbone: Backbone | None = None) -> Network:
    """A network with random layers above the backbone, drawn from PyTorch's current random state."""
    backbone = backbone or build_backbone(config.backbone)
    if config.trunk == "frozen":
        kept = config.components, config.named_components
        frozen = FrozenTrunk(backbone, config.scales, config.normal_size, *kept, config.precision)
        neck = mlp(frozen.width, config.hidden, config.dropout)
        return Network(frozen, MELM(neck, config.hidden, classes, config.settings), config.precision)
    tuned = TunedTrunk(arranged(backbone, config.precision), config.settings.reads_surround, config.precision)
    return Network(tuned, MELM(PooledHead(backbone), backbone.features, classes, config.settings), config.precision)


@torch.no_grad()
def forward(network: Network, strength: float, regions: Regions, proposals: Proposals) -> Output:
    """MELM on the regions of one image, as at detection. Where it feeds back the objectness of the preceding iteration, that of a
    first pass stands for it."""
    device = next(network.melm.parameters()).device
    given = (proposals.boxes, proposals.prior, proposals.score, proposals.share)
    boxes, prior, score, share = (torch.from_numpy(array).to(device) for array in given)
    regions = regions.each(lambda part: part.to(device))
    previous = None
    with products(network.precision, device):
        if network.melm.config.feedback == "previous":
            previous = network.melm(regions, boxes, prior, strength, score=score, share=share).objectness
        output: Output = network.melm(regions, boxes, prior, strength, previous, score, share)
    return output


def branches_of(config: LearnConfig) -> list[str]:
    """What can be asked for its opinion."""
    several = [f"localization {t + 1}" for t in range(config.settings.branches)]
    return ["discovery", *(["mean", "all"] if several else []), *several]


def default_branch(config: LearnConfig) -> str:
    """The branch that detects. On a frozen trunk the branches see the same features and differ in their faults: all of them
    together measure better than those for localization alone, which detect in the paper (docs/results.md)."""
    if reads_discovery(config.method) or config.settings.branches == 0:
        return "discovery"
    return "all" if config.trunk == "frozen" else "mean"
