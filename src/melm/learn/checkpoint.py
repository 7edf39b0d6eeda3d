"""Checkpoints and finished models: safetensors for the numbers, JSON for the rest, whole or not there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from melm.errors import MelmError
from melm.files import write_whole

Tensors = dict[str, Tensor]


@dataclass
class Position:
    """Where a run stands: the next step to take, and what has been added up in this epoch so far."""

    epoch: int = 0
    step: int = 0  # within the epoch
    sums: dict[str, float] = field(default_factory=dict)
    log_bytes: int = 0  # the log up to here
    seconds: float = 0.0  # of learning, over all starts
    scaler: dict[str, float] = field(default_factory=dict)  # of fp16's loss scaling


def save_pair(folder: Path, name: str, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
    """Numbers and card of a checkpoint. The card names the file of the numbers and is put in place last: a reader sees
    the old pair or the new one."""
    count = int(card["count"])
    numbers = folder / f"{name}-{count}.safetensors"
    packed = {key: value.detach().to("cpu").contiguous() for key, value in tensors.items()}
    path = numbers
    try:
        write_whole(numbers, save(packed))
        path = folder / f"{name}.json"
        write_whole(path, json.dumps({**card, "numbers": numbers.name}, indent=1, ensure_ascii=False).encode())
    except OSError as error:
        raise MelmError(
            f"{path}: cannot be written ({error.strerror}). The checkpoint before it is whole: "
            "make room and run the same command again"
        ) from None
    for old in folder.glob(f"{name}-*.safetensors"):
        if old != numbers:
            old.unlink(missing_ok=True)


def load_pair(folder: Path, name: str) -> tuple[Tensors, dict[str, Any]] | None:
    """The numbers and card of a checkpoint, or None where there is none."""
    path = folder / f"{name}.json"
    try:
        card = json.loads(path.read_text())
        path = folder / Path(str(card["numbers"])).name
        return load_file(path), card
    except FileNotFoundError as error:
        if Path(str(error.filename or path)).name == f"{name}.json":
            return None
        raise MelmError(f"{path}: this file is missing from the run; start anew with --overwrite") from None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise MelmError(f"{path}: damaged ({error}); start anew with --overwrite") from None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """The state of an optimizer as tensors by name."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer.{i}.{key}": torch.as_tensor(value) for i, kept in state.items() for key, value in kept.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Gives an optimizer the state that `optimizer_tensors` took from one like it."""
    state: dict[int, dict[str, Tensor]] = {}
    learned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            of = learned[int(number)] if int(number) < len(learned) else value
            # laid out as the parameter: fused optimizers go through both as they lie in memory
            laid_out = torch.empty_like(of, dtype=value.dtype).copy_(value) if value.shape == of.shape else value
            state.setdefault(int(number), {})[key] = laid_out
    kept = optimizer.state_dict()
    optimizer.load_state_dict({"state": state, "param_groups": kept["param_groups"]})


def restore(named: Mapping[str, Tensor], tensors: Tensors, prefix: str, path: Path) -> None:
    """Copies tensors by name into parameters and buffers; every one must be there with its shape."""
    with torch.no_grad():
        for name, own in named.items():
            value = tensors.get(f"{prefix}{name}")
            if value is None or value.shape != own.shape:
                found = "nothing" if value is None else f"shape {tuple(value.shape)}"
                raise MelmError(f"{path}: {found} for {name}; shape {tuple(own.shape)} was expected")
            own.copy_(value)
