"""Linear layers, by oneDNN where it can: PyTorch gives single-precision products on a CPU to MKL, which takes twice as long on
processors that are not Intel's; on those the way back takes an eighth longer by oneDNN (`benchmarks/bench_linear.py`). The same
numbers up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from melm.model.precision import in_products

LEAST = 2**20  # multiplications, below which a call of oneDNN costs more than it saves


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., n) by weight (m, n), (..., m)."""
    if in_products(x.device):
        return F.linear(x, weight, bias).float()  # what comes after is in single precision
    if not suits(x, weight):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    product: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return product.reshape(*x.shape[:-1], len(weight))


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN can do it and is worth calling. A trace knows only what is PyTorch's own."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    return onednn(x) and x.dtype == weight.dtype == torch.float32 and x.numel() * len(weight) >= LEAST


def onednn(x: Tensor) -> bool:
    """Whether oneDNN can work on it."""
    there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return there and x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            _onednn(gradient, weight.T) if wanted[0] else None,
            _onednn(gradient.T, x.T) if wanted[1] else None,
            gradient.sum(dim=0) if wanted[2] else None,
        )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (N, n) by weight (m, n). PyTorch has no public name for it; its own compiler calls it by this one."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
