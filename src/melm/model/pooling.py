"""Region features: what the feature map says inside each box, its frame and its ring.

One image at a time. Feature maps are (H, W, C), boxes (N, 4) corners (x1, y1, x2, y2) in the pixels of the image, `scale` is
cells per pixel (1 / stride), and pooled features are (N, size, size, C). Boxes get no gradient.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from melm.model.pooling_numba import SLIGHT_AREA, max_pool, means_of_sums, running_sums

NOTHING = (1, 1, 0, 0)  # a hole with no cell in it


def roi_pool(features: Tensor, boxes: Tensor, size: int, scale: float, holes: Tensor | None = None) -> Tensor:
    """The largest value of each channel in each of size x size bins of each box: (H, W, C), (N, 4) -> (N, size, size, C).

    As torchvision.ops.roi_pool, to the bit for finite features: a box covers the cells from round(x1 * scale) to
    round(x2 * scale), both included (halves round away from zero) and at least one, so the cell in which a box ends belongs to
    it, as in Fast R-CNN; bins that meet inside a cell share it; cells outside the map do not count; a bin without cells is 0
    and gets no gradient; of equal values the first, row by row, gets the gradient.

    holes (N, 4) are left out of the boxes: the cells that lie wholly in them.
    NaN is passed on, as torch's own max pooling does (torchvision's operator, used on CUDA, drops it).
    """
    check(features, boxes, holes)
    if features.device.type == "cpu":
        rows, columns, out = bins(features, boxes, size, scale, holes)
        exact = features if features.dtype in (torch.float32, torch.float64) else features.float()
        return max_pool(exact, rows, columns, out).to(features.dtype)
    ready_made = torchvision_ops() if features.is_cuda and holes is None else None
    if ready_made is not None:
        exact = features.float() if features.dtype in (torch.float16, torch.bfloat16) else features
        pooled: Tensor = ready_made.roi_pool(
            exact.permute(2, 0, 1)[None].contiguous(), [boxes.to(exact.dtype)], size, scale
        )
        return pooled.permute(0, 2, 3, 1).contiguous().to(features.dtype)
    return roi_pool_reference(features, boxes, size, scale, holes)


def roi_pool_reference(features: Tensor, boxes: Tensor, size: int, scale: float, holes: Tensor | None = None) -> Tensor:
    """`roi_pool` in plain PyTorch, for any device and precision, and to check the others against."""
    check(features, boxes, holes)
    rows, columns, out = bins(features, boxes, size, scale, holes)
    height, width, channels = features.shape
    flat = features.reshape(height * width, channels)
    grid = torch.arange(height * width, device=features.device).view(height, width)
    where = torch.full((len(boxes), size, size, channels), -1, device=features.device)  # the cell of each maximum
    for n, (x1, y1, x2, y2) in enumerate(out.tolist()):
        counts = torch.ones_like(grid, dtype=torch.bool)
        counts[max(y1, 0) : max(y2 + 1, 0), max(x1, 0) : max(x2 + 1, 0)] = False
        for i, (top, bottom) in enumerate(rows[n].tolist()):
            for j, (left, right) in enumerate(columns[n].tolist()):
                cell = grid[top:bottom, left:right][counts[top:bottom, left:right]]  # (cells of the bin,)
                if len(cell):
                    where[n, i, j] = cell[flat.detach()[cell].max(dim=0).indices]  # the first, where several are equal
    # one read at the end, so that autograd's way back is one addition
    read = flat.gather(0, where.clamp(min=0).view(-1, channels)).view(where.shape)
    return torch.where(where >= 0, read, torch.zeros_like(read))


def bins(
    features: Tensor, boxes: Tensor, size: int, scale: float, holes: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Which cells each bin covers: rows and columns (N, size, 2), first cell and one past the last; holes (N, 4), first and last.

    The arithmetic runs in the precision of the features, as torchvision's does: in another one a bin may end a cell later.
    """
    height, width, _ = features.shape
    kind = torch.float64 if features.dtype == torch.float64 else torch.float32
    x1, y1, x2, y2 = cells(boxes.to(features.device, kind), scale).unbind(1)
    step = torch.arange(size + 1, device=features.device)
    parts = torch.full((1,), size, device=features.device, dtype=kind)  # CUDA divides by a plain number less exactly

    def along(first: Tensor, last: Tensor, limit: int) -> Tensor:
        length = (last - first + 1).clamp(min=1).to(kind) / parts  # (N,) of a bin
        start = (step[:-1] * length[:, None]).floor().long() + first[:, None]
        end = (step[1:] * length[:, None]).ceil().long() + first[:, None]
        return torch.stack([start, end], dim=2).clamp(0, limit)  # (N, size, 2)

    nothing = x1.new_tensor(NOTHING).expand(len(boxes), 4)
    out = nothing if holes is None else cells_within(holes.to(features.device, kind), scale)
    return along(y1, y2, height), along(x1, x2, width), out


def cells(corners: Tensor, scale: float) -> Tensor:
    """The cells in which corners lie: `corners * scale` rounded as C does, halves away from zero."""
    scaled = corners.detach() * scale
    whole = scaled.trunc()
    return (whole + scaled.sign() * ((scaled - whole).abs() >= 0.5)).long()


def cells_within(corners: Tensor, scale: float) -> Tensor:
    """First and last cells that lie wholly in each box: a hole takes no cell that it only touches, or frames would be empty."""
    scaled = corners.detach() * scale
    return torch.cat([scaled[:, :2].ceil(), scaled[:, 2:].floor() - 1], dim=1).long()


def roi_align(features: Tensor, boxes: Tensor, size: int, scale: float, sampling: int = 2) -> Tensor:
    """The mean of sampling x sampling interpolated points in each of size x size bins: (H, W, C), (N, 4) -> (N, size, size, C).

    As torchvision.ops.roi_align with aligned=True and that sampling_ratio. Points more than a cell outside the map are 0.
    """
    check(features, boxes)
    ready_made = torchvision_ops() if features.is_cuda else None
    if ready_made is not None:
        pooled: Tensor = ready_made.roi_align(
            features.permute(2, 0, 1)[None].contiguous(), [boxes.to(features.dtype)], size, scale, sampling, True
        )
        return pooled.permute(0, 2, 3, 1).contiguous()
    height, width, channels = features.shape
    kind = torch.float64 if features.dtype == torch.float64 else torch.float32
    corners = boxes.detach().to(features.device, kind) * scale - 0.5  # the centre of the first cell is at 0
    length = ((corners[:, 2:] - corners[:, :2]) / size)[:, :, None, None]  # (N, 2, 1, 1) of a bin: across, down
    number = torch.arange(size, device=features.device, dtype=kind)[:, None]
    middle = torch.arange(sampling, device=features.device, dtype=kind) + 0.5
    # in torchvision's order: a point on the very edge, where the value jumps to 0, must round alike
    points = (corners[:, :2, None, None] + number * length + middle * length / sampling).flatten(
        2
    )  # (N, 2, size * sampling)
    column, across = (t.view(len(boxes), size, 2 * sampling) for t in _neighbours(points[:, 0], width))
    row, down = (t.view(len(boxes), size, 2 * sampling) for t in _neighbours(points[:, 1], height))
    cell = row[:, :, None, :, None] * width + column[:, None, :, None, :]  # (N, size, size, 2 sampling, 2 sampling)
    weight = down[:, :, None, :, None] * across[:, None, :, None, :] / sampling**2
    flat = features.reshape(height * width, channels).to(kind)
    sums = _weighted_sums(flat, cell.view(-1, 4 * sampling**2), weight.view(-1, 4 * sampling**2))
    return sums.view(len(boxes), size, size, channels).to(features.dtype)


def _neighbours(position: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """The two of `limit` places between which each position (N, K) along one side lies, and their weights: (N, K, 2) both."""
    inside = (position >= -1) & (position <= limit)
    position = position.clamp(0, limit - 1)
    low = position.floor()
    rest = position - low
    place = torch.stack([low, (low + 1).clamp(max=limit - 1)], dim=2).long()
    return place, torch.stack([1 - rest, rest], dim=2) * inside[..., None]


def _weighted_sums(table: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """(M, C): for each of M, the sum of the rows of table (R, C) that index (M, K) names, times weight (M, K)."""
    # an embedding bag is just this, and never holds the (M, K, C) rows
    return F.embedding_bag(index, table.contiguous(), mode="sum", per_sample_weights=weight)


def region_mean(features: Tensor, boxes: Tensor, scale: float, holes: Tensor | None = None) -> Tensor:
    """The mean of the map over each box less its hole: (H, W, C), (N, 4) -> (N, C).

    Every cell counts by the share of it that the region covers. What lies outside the map does not count; a region with
    nothing on the map is 0.
    """
    check(features, boxes, holes)
    return region_means(features, boxes[None], scale, None if holes is None else holes[None])[0]


def region_means(features: Tensor, outer: Tensor, scale: float, holes: Tensor | None = None) -> Tensor:
    """The same for P parts of each box, of whose corners many are the same: (H, W, C), (P, N, 4) -> (P, N, C)."""
    height, width, channels = features.shape
    limit = torch.tensor([width, height, width, height], device=features.device)
    nothing = torch.zeros_like(limit, dtype=torch.float64)
    # sums from the top left corner, in float64 since a sum over a large map and a difference of two follow: (H + 1, W + 1, C)
    region = (outer.detach().to(features.device, torch.float64) * scale).clamp(min=nothing, max=limit)
    hole = nothing.expand_as(region)
    if holes is not None:
        hole = holes.detach().to(features.device, torch.float64) * scale
        hole = torch.cat(
            [torch.maximum(hole[..., :2], region[..., :2]), torch.minimum(hole[..., 2:], region[..., 2:])], dim=2
        )
    if _by_kernel(features):
        return means_of_sums(running_sums(features), region, hole)
    integral = F.pad(features.double().cumsum(0).cumsum(1), (0, 0, 1, 0, 1, 0))
    index, weight, area = _corner_terms(region.flatten(0, 1), width, height)
    if holes is not None:
        hole_index, hole_weight, hole_area = _corner_terms(hole.flatten(0, 1), width, height)
        index, weight = torch.cat([index, hole_index], dim=1), torch.cat([weight, -hole_weight], dim=1)
        area = area - hole_area
    there = area > SLIGHT_AREA
    weight = torch.where(there[:, None], weight / area[:, None].where(there[:, None], 1), 0)
    means = _weighted_sums(integral.view(-1, channels), index, weight)
    return means.to(features.dtype).view(*outer.shape[:2], channels)


def _by_kernel(features: Tensor) -> bool:
    """Whether numba's kernels serve: on a processor, in single precision, and nothing to go back."""
    grad = features.requires_grad and torch.is_grad_enabled()
    return features.device.type == "cpu" and features.dtype == torch.float32 and not grad


def _corner_terms(box: Tensor, width: int, height: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions in the integral image and their weights, (N, 16) both, that add up to the integral over boxes (N, 4) in cells.

    Each corner falls between four sums. Within a cell the map is constant, so interpolating the sums is exact. Also areas (N,).
    """
    column, across = _neighbours(box[:, 0::2], width + 1)  # (N, 2, 2): begin and end, neighbours
    row, down = _neighbours(box[:, 1::2], height + 1)
    sign = box.new_tensor([-1, 1])[:, None]  # where a box begins is taken from where it ends
    across, down = (across * sign).flatten(1), (down * sign).flatten(1)  # (N, 4)
    index = row.flatten(1)[:, :, None] * (width + 1) + column.flatten(1)[:, None, :]  # (N, 4, 4)
    weight = down[:, :, None] * across[:, None, :]
    area = (box[:, 2:] - box[:, :2]).clamp(min=0).prod(dim=1)
    there = (area > 0)[:, None]  # a box inside out would count backwards
    return index.flatten(1), weight.flatten(1) * there, area


def frame_and_ring(boxes: Tensor, factor: float = 1.8) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Just inside and just outside each box, for ContextLocNet (Kantorov et al. 2016): frame, its holes, ring, its holes.

    The frame is the box less itself shrunk by `factor` about its centre; the ring is the box grown by `factor` less the box.
    All (N, 4). A ring may leave the image.
    """
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    half = (boxes[:, 2:] - boxes[:, :2]) / 2
    inner = torch.cat([centre - half / factor, centre + half / factor], dim=1)
    outer = torch.cat([centre - half * factor, centre + half * factor], dim=1)
    return boxes, inner, outer, boxes


def check(features: Tensor, boxes: Tensor, holes: Tensor | None = None) -> None:
    """Says what was expected when shapes do not fit."""
    if features.ndim != 3 or 0 in features.shape:
        raise ValueError(f"features have shape {tuple(features.shape)}; expected (H, W, C), the map of one image")
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes have shape {tuple(boxes.shape)}; expected (N, 4)")
    if holes is not None and holes.shape != boxes.shape:
        raise ValueError(f"holes have shape {tuple(holes.shape)}; expected {tuple(boxes.shape)}, one for each box")


@functools.cache
def torchvision_ops() -> ModuleType | None:
    """torchvision.ops where it works. Beside a torch built for other hardware, importing it is a RuntimeError."""
    try:
        import torchvision.ops  # type: ignore[import-not-found, import-untyped]
    except (ImportError, RuntimeError):
        return None
    ops: ModuleType = torchvision.ops
    return ops
