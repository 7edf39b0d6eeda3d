"""Layers in bfloat16 on processors that have instructions for it: what a layer takes and gives, and the gradients of its weights,
have 8 bits there; weights, means over regions, losses and the optimizer stay in single precision
(`benchmarks/bench_precision.py`). Other processors take many times as long for it as for single precision.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)


def bf16_is_fast(device: torch.device) -> bool:
    """Whether this processor multiplies bfloat16 by instructions of its own: AVX-512 BF16 or AMX."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        return bool(torch.cpu._is_avx512_bf16_supported())  # processors with AMX have it too; not a public name
    except AttributeError:  # another PyTorch
        return False


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
