"""Products in bfloat16 on processors that are made for it: sums, stored numbers and everything between products stay in single
precision. Seven times as many multiplications a second where there is AMX (`benchmarks/bench_precision.py`); on processors
without it, many times fewer than in single precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)


def bf16_is_fast(device: torch.device) -> bool:
    """Whether this processor multiplies matrices of bfloat16 by instructions of its own (AMX)."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    abilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # not there before PyTorch 2.10
    return bool(abilities.get("amx_bf16"))


def products(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """While this lasts (in this thread), layers multiply in the precision of a run, if that is bf16 and this processor is made
    for it; in single precision otherwise, so that a run can be used anywhere."""
    if precision == "bf16" and bf16_is_fast(device):
        # without the cache of rounded weights: threads share it, and one that is done would clear it for the others, so that
        # which gradients are added in which precision would depend on who is first
        return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
    return nullcontext()


def arranged(network: Kind, precision: str) -> Kind:
    """The same network, its weights in the order in which convolutions in this precision read them: channels last for bf16, which
    learns in two thirds of the time so."""
    return network.to(memory_format=torch.channels_last) if precision == "bf16" else network  # type: ignore[call-overload]


def in_products(device: torch.device) -> bool:
    """Whether `products` in bfloat16 are on, on a processor."""
    return device.type == "cpu" and torch.is_autocast_enabled("cpu")
