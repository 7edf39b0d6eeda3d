"""A finished run read back: its card, its configuration and its network with the learned weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from melm.errors import MelmError, UsageError
from melm.learn.checkpoint import load_pair, restore
from melm.learn.network import Network, build_network, default_branch
from melm.learn.presets import LearnConfig
from melm.learn.run_folder import RunFolder
from melm.learn.students import RetrainConfig, Students
from melm.model.backbones import InputConvention
from melm.model.student import FastRCNN


@dataclass(frozen=True)
class Learned:
    """What a run learned."""

    path: Path
    card: dict[str, Any]
    config: LearnConfig
    classes: tuple[str, ...]
    network: Network
    strength: float  # r
    students: Students | None = None  # of a retrained run


def load_model(path: Path) -> Learned:
    """The detector of a finished run."""
    tensors, card = _finished(path)
    try:
        config = LearnConfig.from_dict(card["config"])
        if config.trunk == "frozen" and "named_components" not in card["config"]:
            raise MelmError(
                f"{path}: learned by an earlier version of melm. Run its `melm train` again, with another --out"
            )
        classes = tuple(card["classes"])
        network = build_network(config, len(classes))
        network.trunk.backbone.convention = convention_of(card["convention"])
        strength = float(card["strength"])
    except (KeyError, TypeError, ValueError) as error:
        raise MelmError(f"{path / 'model.json'}: damaged ({type(error).__name__}: {error})") from None
    restore(network.tensors(), tensors, "", path / "model.json")
    students = None
    if card.get("retrained"):
        had_stages = any(name.startswith("students.students.0.tail.") for name in tensors)
        if "bins" not in card["retrained"] or (had_stages and card["retrained"]["tail_share"] == 0):
            raise MelmError(
                f"{path}: retrained by an earlier version of melm. Run its `melm retrain` again, with another --out"
            )
        try:
            settings = RetrainConfig.from_dict(card["retrained"])
            own = default_branch(config)
            students = Students(network, settings, len(classes), own, frozenset(card["keys"]))
            for student in students.students:
                if isinstance(student, FastRCNN):
                    student.backbone.convention = convention_of(card["student_convention"])
        except (KeyError, TypeError, ValueError) as error:
            raise MelmError(f"{path / 'model.json'}: damaged ({type(error).__name__}: {error})") from None
        restore(dict(students.named_parameters()), tensors, "students.", path / "model.json")
        restore(dict(students.named_buffers()), tensors, "students.", path / "model.json")
        students.eval()
    return Learned(path, card, config, classes, network.eval(), strength, students)


def convention_record(convention: InputConvention) -> dict[str, Any]:
    """What a card says of the numbers that a network was trained on."""
    return {**asdict(convention), "mean": list(convention.mean), "std": list(convention.std)}


def convention_of(kept: dict[str, Any]) -> InputConvention:
    return InputConvention(kept["order"], kept["highest"], tuple(kept["mean"]), tuple(kept["std"]))


def basis_of(path: Path, backbone: str) -> dict[str, Tensor]:
    """What the frozen trunk of an earlier run keeps, as `FrozenTrunk.fitted`. One of another backbone is of no use, even where it
    has the same shape."""
    tensors, card = _finished(path)
    if (own := card["config"]["backbone"]) != backbone:
        raise UsageError(f"{path}: its basis is that of another backbone, {own}; one of {backbone} was expected")
    kept = ("trunk.of_map.", "trunk.of_names.")
    found = {name.removeprefix("trunk."): value for name, value in tensors.items() if name.startswith(kept)}
    if not found:
        raise MelmError(f"{path}: a run whose trunk learned along has no basis")
    return found


def load_card(path: Path) -> dict[str, Any]:
    """What the card of a finished run says."""
    return _finished(path)[1]


def _finished(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_dir():
        raise MelmError(f"{path}: there is no such run; a folder that `melm train --out` made was expected")
    pair = load_pair(path, "model")
    if pair is None:
        about = RunFolder(path).about()
        command = "melm retrain" if about and "retrained" in about else "melm train"
        what = (
            f"this run is not finished: run its `{command}` again" if about is not None else "not the folder of a run"
        )
        raise MelmError(f"{path}: {what}")
    return pair
