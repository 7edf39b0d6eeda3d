"""From pixels to the regions a model reads: a frozen trunk read at several scales, or one that learns along at one scale.

Both have `look(pixels, boxes, scale, flip)` and give one row per box, whatever the view.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from melm.model.backbones.backbone import Backbone, Reading
from melm.model.branches import Regions
from melm.model.dropout import RectifiedDropout
from melm.model.linear import Linear, linear
from melm.model.pooling import frame_and_ring, region_means
from melm.model.precision import bf16_is_fast, products
from melm.model.regions import pool_regions

Pixels = NDArray[np.uint8]
UNLIKELY, NOISE = -12.0, 0.01  # log probability of a name, and deviation of such, below which there is only rounding


class FrozenTrunk(nn.Module):
    """A trunk that does not learn, read at several scales: each box at the one where it has about a normal size.

    Without fully connected layers that know whole objects, a box is recognised at the size the trunk was trained on and told
    from its parts by what surrounds it; so box, frame and ring are read, as means over the map. With them comes what the
    network's own classifier calls each: it was trained on whole objects. Few components of the map's channels, and few of these
    names' log probabilities, are kept, whitened (`fit`), so that what was read is small enough to store.
    """

    def __init__(
        self,
        backbone: Backbone,
        scales: tuple[int, ...],
        normal_size: float,
        components: int,
        named: int = 0,
        precision: str = "fp32",
    ) -> None:
        """`components` of the map and `named` of the names; 0 for a backbone without a classifier."""
        super().__init__()
        self.backbone = backbone.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.scales, self.normal_size = scales, normal_size
        self.precision = precision
        self._read_as: tuple[tuple[torch.dtype, tuple[tuple[int, int], ...]], Reading] | None = None
        self.of_map = Components(backbone.channels, components)
        names = backbone.classifier.out_features if backbone.classifier else 0
        self.of_names = Components(names, named, NOISE) if names and named else None

    @property
    def width(self) -> int:
        """Of what is kept of a region."""
        return self.of_map.kept + (self.of_names.kept if self.of_names else 0)

    @property
    def device(self) -> torch.device:
        return self.of_map.mean.device

    def fitted(self) -> dict[str, Tensor]:
        """All that `fit` decides, by name."""
        return {name: value for name, value in self.named_buffers() if not name.startswith("backbone.")}

    def train(self, mode: bool = True) -> FrozenTrunk:
        super().train(False)  # frozen is frozen
        return self

    def reading(self) -> Reading:
        """The backbone as it is now, arranged to be read; arranged anew when its weights have changed or moved."""
        weights = (*self.backbone.parameters(), *self.backbone.buffers())
        now = self.kind, tuple((t.data_ptr(), t._version) for t in weights)
        if self._read_as is None or self._read_as[0] != now:
            self._read_as = now, self.backbone.reading(self.kind)
        return self._read_as[1]

    @property
    def kind(self) -> torch.dtype:
        """Of the numbers it multiplies, where it is now."""
        return torch.bfloat16 if self.precision == "bf16" and bf16_is_fast(self.device) else torch.float32

    @torch.no_grad()
    def look(self, pixels: Pixels, boxes: Tensor, scale: int | None = None, flip: bool = False) -> Regions:
        """Box, frame and ring (N, width) of boxes (N, 4) in an RGB image. All scales are read; `scale` is not used."""
        with products(self.precision, self.device):
            return self._read(pixels, boxes, flip)[0].each(self.reduced)

    @torch.no_grad()
    def look_for_students(
        self, pixels: Pixels, boxes: Tensor, scales: tuple[int, ...], deep: bool, flip: bool = False
    ) -> tuple[Regions, list[Tensor]]:
        """What `look` and `student_maps` give, the latter of the mirrored image for `flip`: the image is read once for both."""
        with products(self.precision, self.device):
            regions, maps = self._read(pixels, boxes, flip, for_students=scales, deep=deep)
            return regions.each(self.reduced), maps

    @torch.no_grad()
    def student_maps(self, pixels: Pixels, scales: tuple[int, ...], deep: bool) -> list[Tensor]:
        """What a student begins with, of an image at each scale: what the first part of the trunk makes of it, (h, w, M) each;
        with `deep` the components of what the last part makes of that as well, (h, w, M + D)."""
        maps = []
        with products(self.precision, self.device):
            for scale in scales:
                first = self.reading().stem(self._image(resized(pixels, scale)))  # (1, M, h, w)
                maps.append(self._for_student(first, self.reading().tail(first) if deep else None))
        return maps

    @torch.no_grad()
    def look_wide(self, pixels: Pixels, boxes: Tensor) -> Tensor:
        """The boxes alone with all channels (N, C), to `fit` on."""
        with products(self.precision, self.device):
            return self._read(pixels, boxes, False, surround=False)[0].box

    def reduced(self, pooled: Tensor) -> Tensor:
        """What is kept (N, width) of the means of regions (N, C)."""
        kept: Tensor = self.of_map(pooled)
        return kept if self.of_names is None else torch.cat([kept, self.of_names(self.names(pooled))], dim=1)

    def names(self, pooled: Tensor) -> Tensor:
        """What the network calls the means of regions (N, C): log probabilities (N, names)."""
        assert self.backbone.classifier is not None
        return F.log_softmax(self.backbone.classifier(pooled), dim=1).clamp(min=UNLIKELY)

    def _read(
        self,
        pixels: Pixels,
        boxes: Tensor,
        flip: bool,
        surround: bool = True,
        for_students: tuple[int, ...] = (),
        deep: bool = False,
    ) -> tuple[Regions, list[Tensor]]:
        """The means of regions (N, C), and what students begin with at the scales they read, if any."""
        device, reading = self.device, self.reading()
        pixels, boxes = (mirrored(pixels), mirrored_boxes(boxes, pixels.shape[1])) if flip else (pixels, boxes)
        best = normal_scale(boxes, self.scales, max(pixels.shape[:2]), self.normal_size)
        parts = [torch.zeros(len(boxes), self.backbone.channels, device=device) for _ in range(3 if surround else 1)]
        maps = {}
        for scale in dict.fromkeys((*self.scales, *for_students)):
            rows = torch.nonzero(best == (self.scales.index(scale) if scale in self.scales else -1))[:, 0]
            wanted = scale in for_students
            if not len(rows) and not wanted:
                continue
            small = resized(pixels, scale)
            image = self._image(small)
            first = reading.stem(image) if wanted else None  # (1, M, h, w)
            last = None
            if len(rows) or deep:
                last = reading.trunk(image) if first is None else reading.tail(first)  # (1, C, h, w)
            if first is not None:
                maps[scale] = self._for_student(first, last if deep else None)
            if not len(rows):
                continue
            there = boxes[rows].to(device) * boxes.new_tensor(
                [small.shape[1] / pixels.shape[1], small.shape[0] / pixels.shape[0]]
            ).repeat(2).to(device)
            assert last is not None
            map = last[0].permute(1, 2, 0).float().contiguous()  # (h, w, C)
            for part, value in zip(
                parts, means(map, *region_parts(there, len(parts)), self.backbone.stride), strict=True
            ):
                part[rows.to(device)] = value
        if surround:
            whole = covers(boxes, pixels.shape[1], pixels.shape[0]).to(device)
            parts[2][whole] = parts[1][whole]
        return Regions(*parts), [maps[scale] for scale in for_students]

    def _image(self, pixels: Pixels) -> Tensor:
        """(1, 3, H, W) as the backbone reads it."""
        image: Tensor = self.backbone.normalise(torch.from_numpy(pixels).to(self.device))  # (3, H, W)
        return image[None].contiguous(memory_format=torch.channels_last)

    def _for_student(self, first: Tensor, last: Tensor | None) -> Tensor:
        """Maps of both parts of the trunk, (1, M, h, w) and (1, C, h, w), as a student reads them, (h, w, M or M + D)."""
        seen = [first[0].permute(1, 2, 0).float()]
        if last is not None:
            seen.append(self.of_map(last[0].permute(1, 2, 0).float()))
        return torch.cat(seen, dim=2).contiguous()

    @torch.no_grad()
    def fit(self, samples: Tensor) -> None:
        """Chooses what is kept, by the means of many regions (M, C)."""
        samples = samples.to(self.device)
        self.of_map.fit(samples)
        if self.of_names is not None:
            self.of_names.fit(torch.cat([self.names(some) for some in torch.split(samples, 4096)]))


class Components(nn.Module):
    """Whitened principal components: the few numbers that are kept of many."""

    mean: Tensor
    basis: Tensor

    def __init__(self, width: int, kept: int, noise: float = 0.0) -> None:
        """What varies by no more than `noise` is not blown up to vary as the rest."""
        super().__init__()
        self.kept, self.noise = min(kept, width), noise
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("basis", torch.zeros(width, self.kept))

    def forward(self, values: Tensor) -> Tensor:
        """(..., width) -> (..., kept)"""
        return linear(values - self.mean, self.basis.T)

    def fit(self, samples: Tensor) -> None:
        """To samples (M, width); components without variance are 0."""
        mean = samples.mean(dim=0, dtype=torch.float64)
        covariance = mean.new_zeros(len(mean), len(mean))
        for some in torch.split(samples, 4096):  # in double precision, but not all of it at once
            apart = some.double() - mean
            covariance += apart.T @ apart / max(len(samples) - 1, 1)
        try:
            values, vectors = torch.linalg.eigh(covariance)
            values, vectors = values.flip(0), vectors.flip(1)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            # of fewer regions than numbers it may not converge; this takes longer, and does
            vectors, values, _ = torch.linalg.svd(covariance)
        values, vectors = values[: self.kept], vectors[:, : self.kept]
        # a direction, not its sign, is what is found: the largest entry is made positive
        signs = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True)).sign()
        there = values > values[0].clamp(min=1e-12) * 1e-9
        scale = torch.where(there, (values + self.noise**2).clamp(min=1e-30).rsqrt(), 0)
        self.mean.copy_(mean)
        self.basis.copy_(vectors * signs * scale)


class TunedTrunk(nn.Module):
    """A trunk that learns along, as in the paper: one scale and perhaps a flip at a time, RoI max pooling."""

    def __init__(self, backbone: Backbone, surround: bool, precision: str = "fp32") -> None:
        super().__init__()
        backbone.freeze()
        self.backbone, self.surround, self.precision = backbone, surround, precision

    def look(self, pixels: Pixels, boxes: Tensor, scale: int | None, flip: bool = False) -> Regions:
        """What is pooled for boxes (N, 4) of an RGB image read with its larger side at `scale`: (N, P, P, C) each."""
        assert scale is not None
        device = next(self.backbone.parameters()).device
        boxes = mirrored_boxes(boxes, pixels.shape[1]) if flip else boxes
        small = resized(mirrored(pixels) if flip else pixels, scale)
        shrink = boxes.new_tensor([small.shape[1] / pixels.shape[1], small.shape[0] / pixels.shape[0]]).repeat(2)
        image = self.backbone.normalise(torch.from_numpy(small).to(device))
        with products(self.precision, device):
            return pool_regions(self.backbone, image, (boxes * shrink).to(device), self.surround)


class PooledHead(nn.Module):
    """The neck of a model on a tuned trunk: the backbone's fully connected layers."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, pooled: Tensor) -> Tensor:
        return self.backbone.head(pooled)


def normal_scale(boxes: Tensor, scales: tuple[int, ...], larger_side: int, normal_size: float) -> Tensor:
    """(N,) the number of the scale at which each box is nearest to its normal size."""
    sizes = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1).prod(dim=1).sqrt()  # (N,)
    shrinks = torch.tensor(scales, dtype=sizes.dtype, device=boxes.device) / larger_side
    return (sizes[:, None] * shrinks / normal_size).log().abs().argmin(dim=1)


def means(map: Tensor, outer: Tensor, holes: Tensor, stride: int) -> list[Tensor]:
    """The map's mean over each part of the boxes, (N, C) each; `outer` and `holes` (parts, N, 4) are of `region_parts`, in the
    pixels that the map was made of. Sums of the map are made once for all."""
    return list(region_means(map, outer, 1 / stride, holes))


def region_parts(boxes: Tensor, parts: int = 3, bins: int = 0) -> tuple[Tensor, Tensor]:
    """Box, frame and ring of boxes (N, 4), or the first of them, then each of bins x bins equal pieces of the box, row by row;
    and the holes in them: (parts + bins * bins, N, 4) both."""
    frame, inner, ring, within = frame_and_ring(boxes)
    nothing = torch.zeros_like(boxes)
    outer, holes = [boxes, frame, ring][:parts], [nothing, inner, within][:parts]
    low, step = boxes[:, :2], (boxes[:, 2:] - boxes[:, :2]) / max(bins, 1)
    # pieces that meet have the very same corners, so that these are read once
    edges = [*(low + step * number for number in range(bins)), boxes[:, 2:]]
    for row in range(bins):
        for column in range(bins):
            ends = (edges[column][:, 0], edges[row][:, 1], edges[column + 1][:, 0], edges[row + 1][:, 1])
            outer.append(torch.stack(ends, dim=1))
            holes.append(nothing)
    return torch.stack(outer), torch.stack(holes)


def side_strips(boxes: Tensor, share: float = 1 / 6) -> Tensor:
    """(8, N, 4): along the left, right, top and bottom side of boxes (N, 4) a strip just inside and one just outside, each as
    wide as this share of the box."""
    x1, y1, x2, y2 = boxes.unbind(1)
    across, down = (x2 - x1) * share, (y2 - y1) * share
    strips = [
        *((x1, y1, x1 + across, y2), (x1 - across, y1, x1, y2)),
        *((x2 - across, y1, x2, y2), (x2, y1, x2 + across, y2)),
        *((x1, y1, x2, y1 + down), (x1, y1 - down, x2, y1)),
        *((x1, y2 - down, x2, y2), (x1, y2, x2, y2 + down)),
    ]
    return torch.stack([torch.stack(strip, dim=1) for strip in strips])


def covers(boxes: Tensor, width: int, height: int) -> Tensor:
    """(N,) whether a box covers the picture: it has no ring, so there is no contrast with it either."""
    return (boxes[:, :2] <= 0).all(dim=1) & (boxes[:, 2:] >= boxes.new_tensor([width, height])).all(dim=1)


def mlp(width: int, hidden: int, dropout: float) -> nn.Module:
    """The neck of a model on a frozen trunk: two layers in the place of fc6 and fc7."""
    layers: list[nn.Module] = []
    for before in (width, hidden):
        layer = Linear(before, hidden)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
        layers += [layer, RectifiedDropout(dropout), nn.Identity()]  # three: weights are named by their place
    return nn.Sequential(*layers)


def resized(pixels: Pixels, larger_side: int) -> Pixels:
    height, width = pixels.shape[:2]
    shrink = larger_side / max(height, width)
    size = (max(1, round(width * shrink)), max(1, round(height * shrink)))
    result: Pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR)
    return result


def mirrored(pixels: Pixels) -> Pixels:
    return np.ascontiguousarray(pixels[:, ::-1])


def mirrored_boxes(boxes: Tensor, width: int) -> Tensor:
    return torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], dim=1)
