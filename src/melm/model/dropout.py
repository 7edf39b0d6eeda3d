"""ReLU and dropout in one, at little cost on a CPU. PyTorch's dropout draws one slow random number after another: it took a third
of a step of the `fast` preset (2,000 boxes, three regions, two layers of 512)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numba
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_own = threading.local()  # the random state of a thread that has one


@contextmanager
def seeded(seed: int, everywhere: bool) -> Iterator[None]:
    """What is dropped in here depends on the seed alone, in this thread. `everywhere`: that of all layers which draw, by
    PyTorch's own random state, of which there is one for all threads."""
    if everywhere:
        torch.manual_seed(seed)
        yield
        return
    _own.random = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _own.random = None


class RectifiedDropout(nn.Module):
    """As `nn.ReLU` and `nn.Dropout` after it, with the share of values dropped rounded to a 256th. Seeded by PyTorch's own
    random state, or by `seeded`."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.dropped = min(round(share * 256), 255)  # of the 256 values of a random byte

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.dropped:
            return F.relu(x)
        if x.device.type != "cpu" or x.dtype != torch.float32:
            return F.dropout(F.relu(x), self.share)
        result: Tensor = _Kept.apply(x, self.dropped)  # type: ignore[no-untyped-call]
        return result


class _Kept(torch.autograd.Function):
    """Where a value was kept and above 0, the result is above 0: nothing else has to be remembered for the way back."""

    @staticmethod
    def forward(ctx, x, dropped):  # type: ignore[no-untyped-def]
        seed = int(torch.randint(2**62, (), generator=getattr(_own, "random", None)))
        drawn = np.frombuffer(np.random.Generator(np.random.SFC64(seed)).bytes(x.numel()), np.uint8)
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        ctx.scale = 256 / (256 - dropped)
        _keep(x.detach().contiguous().view(-1).numpy(), drawn, dropped, np.float32(ctx.scale), y.view(-1).numpy())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, slope):  # type: ignore[no-untyped-def]
        (y,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(slope, y, 0).mul_(ctx.scale), None


@numba.njit(cache=True, nogil=True)
def _keep(x, drawn, dropped, scale, y):  # type: ignore[no-untyped-def]
    zero = np.float32(0)
    for i in range(len(x)):
        value = max(x[i], zero) * scale
        y[i] = value if drawn[i] >= dropped else zero
