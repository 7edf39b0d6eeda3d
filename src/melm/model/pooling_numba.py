"""Pooling on the processor: numba kernels, and the autograd function around that of RoI max pooling.

The layout is (H, W, C), so that the channels of a cell lie side by side and one comparison serves many of them. The work of max
pooling is dealt to as many threads as torch uses; who does what does not change a bit of the result. Means of regions are taken
on one thread, which holds no other back: where many images are read or learned from, each is on a thread of its own, and where
one is looked at, one thread is still faster than two of torch's own (benchmarks/bench_pooling.py).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SLIGHT_AREA = 1e-6  # of a cell; what is less is rounding


@numba.njit(cache=True, parallel=True, error_model="numpy")
def _forward(features, rows, columns, holes, threads, keep, pooled, argmax):  # type: ignore[no-untyped-def]
    """Fills `pooled` (N, P, P, C), and `argmax`, the cell y * W + x of each maximum (-1: empty bin), where `keep` asks for it.

    rows, columns: (N, P, 2) first cell of each bin and one past its last; holes: (N, 4) first and last cells left out.
    """
    _, width, channels = features.shape
    count, size = rows.shape[:2]
    for thread in numba.prange(threads):
        best = np.empty(channels, features.dtype)
        where = np.empty(
            channels, np.int32
        )  # as wide as a float32, whatever argmax is: one loop of vector instructions
        for n in range(thread, count, threads):  # large and small boxes in turn: threads finish together
            left, top, right, bottom = holes[n]
            for i in range(size):
                for j in range(size):
                    empty = True
                    for y in range(rows[n, i, 0], rows[n, i, 1]):
                        for x in range(columns[n, j, 0], columns[n, j, 1]):
                            if top <= y <= bottom and left <= x <= right:
                                continue
                            cell = np.int32(y * width + x)
                            values = features[y, x]
                            if empty:
                                best[:] = values
                                where[:] = cell
                                empty = False
                            elif keep:
                                for c in range(channels):
                                    value = values[c]
                                    better = value > best[c] or value != value  # NaN is passed on
                                    best[c] = value if better else best[c]
                                    where[c] = cell if better else where[c]
                            else:
                                for c in range(channels):
                                    value = values[c]
                                    better = value > best[c] or value != value
                                    best[c] = value if better else best[c]
                    if empty:
                        best[:] = 0
                        where[:] = -1
                    pooled[n, i, j] = best
                    if keep:
                        argmax[n, i, j] = where


@numba.njit(cache=True, parallel=True, error_model="numpy")
def _backward(gradient, argmax, threads, block, result):  # type: ignore[no-untyped-def]
    """Adds gradient (B, C) to the cells of result (H * W, C) that argmax (B, C) names.

    A thread owns `block` channels, so no two add to one number, and each number is added to in the order of the bins.
    """
    bins, channels = gradient.shape
    for thread in numba.prange(threads):
        for b in range(bins):
            for c in range(thread * block, min((thread + 1) * block, channels)):
                cell = argmax[b, c]
                if cell >= 0:
                    result[np.uint32(cell), c] += gradient[b, c]


def max_pool(features: Tensor, rows: Tensor, columns: Tensor, holes: Tensor) -> Tensor:
    """RoI max pooling of bins already placed: features (H, W, C) -> (N, P, P, C). The gradient goes to the features alone.

    rows, columns: (N, P, 2) first cell of each bin and one past its last; holes: (N, 4) first and last cells left out.
    """
    # where no gradient is wanted (a frozen trunk, detection) no argmax is kept
    keep = features.requires_grad and torch.is_grad_enabled()
    pooled: Tensor = _MaxPool.apply(features, rows, columns, holes, keep)  # type: ignore[no-untyped-call]
    return pooled


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, rows: Tensor, columns: Tensor, holes: Tensor, keep: bool) -> Tensor:
        height, width, channels = features.shape
        count, size = rows.shape[:2]
        pooled = features.new_empty(count, size, size, channels)
        # the argmax is as large as the output: two bytes where two will do
        kind = torch.int16 if height * width <= torch.iinfo(torch.int16).max else torch.int32
        argmax = torch.empty(pooled.shape if keep else (0, 0, 0, 0), dtype=kind)
        cells, down, across, out = (t.detach().contiguous().numpy() for t in (features, rows, columns, holes))
        threads = torch.get_num_threads()
        _forward(cells, down, across, out, threads, keep, pooled.numpy(), argmax.numpy())
        if torch.get_num_threads() != threads:  # numba's first parallel call resets OpenMP, which torch shares
            torch.set_num_threads(threads)
        ctx.save_for_backward(argmax)
        ctx.map_shape = features.shape
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        (argmax,) = ctx.saved_tensors
        height, width, channels = ctx.map_shape
        result = gradient.new_zeros(height * width, channels)
        flat = gradient.contiguous().view(-1, channels)  # (N * P * P, C)
        threads = torch.get_num_threads()
        block = -(-channels // (16 * threads)) * 16  # whole cache lines: threads do not share one
        _backward(flat.numpy(), argmax.view(-1, channels).numpy(), threads, block, result.numpy())
        return result.view(ctx.map_shape), None, None, None, None


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _running_sums(features, sums):  # type: ignore[no-untyped-def]
    height, width, channels = features.shape
    for y in range(height):
        row = np.zeros(channels)
        for x in range(width):
            for c in range(channels):
                row[c] += features[y, x, c]
                sums[y + 1, x + 1, c] = sums[y, x + 1, c] + row[c]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _means_of_sums(sums, outer, holes, result):  # type: ignore[no-untyped-def]
    parts, count = outer.shape[:2]
    rows, columns, channels = sums.shape
    places = np.empty((8 * parts, 2))
    values = np.empty((8 * parts, channels))
    total = np.empty(channels)
    for n in range(count):
        known = 0
        for p in range(parts):
            region, hole = outer[p, n], holes[p, n]
            left_out = max(hole[2] - hole[0], 0.0) * max(hole[3] - hole[1], 0.0)
            area = max(region[2] - region[0], 0.0) * max(region[3] - region[1], 0.0) - left_out
            if not area > SLIGHT_AREA:
                result[p, n] = 0
                continue
            total[:] = 0
            for corner in range(8 if left_out > 0 else 4):
                of = region if corner < 4 else hole
                x, y = of[2 * (corner & 1)], of[1 + (corner & 2)]
                at = 0
                while at < known and (places[at, 0] != x or places[at, 1] != y):
                    at += 1
                if at == known:
                    known += 1
                    places[at, 0], places[at, 1] = x, y
                    # between four sums: within a cell the map is constant, so that interpolating them is exact
                    column, row = int(x), int(y)
                    beside, below = min(column + 1, columns - 1), min(row + 1, rows - 1)
                    right, down = x - column, y - row
                    for c in range(channels):
                        upper = (1 - right) * sums[row, column, c] + right * sums[row, beside, c]
                        lower = (1 - right) * sums[below, column, c] + right * sums[below, beside, c]
                        values[at, c] = (1 - down) * upper + down * lower
                sign = 1.0 if (corner < 4) == (corner & 3 in (0, 3)) else -1.0
                for c in range(channels):
                    total[c] += sign * values[at, c]
            for c in range(channels):
                result[p, n, c] = total[c] / area


def running_sums(features: Tensor) -> Tensor:
    """(H, W, C) -> (H + 1, W + 1, C), double: the sum of all cells above and to the left."""
    height, width, channels = features.shape
    sums = torch.zeros(height + 1, width + 1, channels, dtype=torch.float64)
    _running_sums(features.detach().contiguous().numpy(), sums.numpy())
    return sums


def means_of_sums(sums: Tensor, outer: Tensor, holes: Tensor) -> Tensor:
    """(P, N, C) in single precision: the means over P parts of N boxes, less their holes (P, N, 4) both, in cells of the map
    whose `running_sums` these are. A corner that several parts of a box share is read once."""
    result = torch.empty(*outer.shape[:2], sums.shape[2])
    _means_of_sums(sums.numpy(), outer.contiguous().numpy(), holes.contiguous().numpy(), result.numpy())
    return result
