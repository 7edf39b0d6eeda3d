"""Learns a handful of real images by heart, to see the two entropies fall and localization get better; draws the curves.

    python tools/overfit.py VOC2007 --out docs/figures/overfit.png

The trunk is a frozen EfficientNet-Lite0 read at five scales, each box at the one where it is about 160 pixels large, with its
frame and its ring. On a frozen trunk the location logit needs the surround and the prior, so both are on. Boxes of the data set
serve only to measure, after each epoch, in a function that `learn` knows nothing of.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from melm.boxes import iou
from melm.config import METHODS, MethodConfig
from melm.data import Source, read_image, read_tags
from melm.measure.truth import TrueBoxes, read_truth
from melm.model.backbones import build_backbone, load_weights
from melm.model.backbones.backbone import Backbone
from melm.model.branches import Regions
from melm.model.melm import MELM, MinEntropyLoss, Output
from melm.model.pooling import frame_and_ring, region_mean
from melm.model.recurrence import feedback_strength
from melm.proposals import ProposalSettings, compute_proposals

SCALES = (192, 288, 416, 608, 896)  # of the larger side
NORMAL = 160  # pixels: the size at which a box is read
VARIANTS = ("L+RL", "L2+ARL")
PANELS = ("global entropy", "local entropy", "accuracy", "variance", "tags localized")
Picture = tuple[Regions, Tensor, Tensor]  # what was read of an image, its proposals, their prior
CHANGES = {"surround": True, "branch_sees_surround": True, "prior_weight": 6.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--boxes", type=int, default=800, help="proposals per image")
    parser.add_argument("--out", type=Path, default=Path("overfit.png"))
    options = parser.parse_args()
    source = Source(options.data, split="train")
    images = read_tags(source)
    chosen = [i for i, image in enumerate(images) if len(image.tags) <= 2 and not image.unknown][: options.images]
    backbone = build_backbone("lite0").eval()
    print(load_weights(backbone, "package").summary())
    pictures = []
    for i in chosen:
        pixels = read_image(images[i].path)
        proposals = compute_proposals(pixels, ProposalSettings("edge-boxes", max_boxes=options.boxes))
        pictures.append(
            (
                read_regions(backbone, pixels, proposals.boxes),
                torch.from_numpy(proposals.boxes),
                torch.from_numpy(proposals.prior),
            )
        )
    tags, known = (torch.from_numpy(table[chosen]).float() for table in (images.tags(), images.known()))
    truth = read_truth(source).images
    truths = [truth[images[i].id] for i in chosen]
    curves = {}
    for name in VARIANTS:
        config = METHODS[name].with_(**CHANGES)
        measured: list[list[float]] = []

        def measure(outputs: list[Output], into: list[list[float]] = measured) -> None:
            rows = [
                row
                for output, picture, of_image, true in zip(outputs, pictures, tags, truths, strict=True)
                for row in localization(output, picture[1], of_image, true)
            ]
            into.append(np.mean(rows, axis=0).tolist())

        entropies = learn(config, pictures, tags, known, options.epochs, measure)
        columns = zip(*[[*a, *b] for a, b in zip(entropies, measured, strict=True)], strict=True)
        curves[name] = {key: list(values) for key, values in zip(PANELS, columns, strict=True)}
        ends = {key: [round(values[0], 3), round(values[-1], 3)] for key, values in curves[name].items()}
        print(name, json.dumps(ends))
    draw(curves, len(chosen), options.out)
    print(f"curves: {options.out}")


@torch.no_grad()
def read_regions(backbone: Backbone, pixels: np.ndarray, boxes: np.ndarray) -> Regions:
    """Box, frame and ring (N, C) of each proposal, on the scale where the box is nearest to its normal size."""
    height, width = pixels.shape[:2]
    sizes = np.sqrt((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
    scales = np.array(SCALES) / max(height, width)
    best = np.abs(np.log(sizes[:, None] * scales / NORMAL)).argmin(axis=1)
    parts = [torch.zeros(len(boxes), backbone.channels) for _ in range(3)]
    for s, scale in enumerate(scales):
        rows = torch.from_numpy(np.flatnonzero(best == s))
        if not len(rows):
            continue
        small = cv2.resize(pixels, (round(width * scale), round(height * scale)), interpolation=cv2.INTER_LINEAR)
        features = backbone.trunk(backbone.normalise(torch.from_numpy(small))[None])[0].permute(1, 2, 0).contiguous()
        there = torch.from_numpy(boxes)[rows] * float(scale)
        frame, hole, ring, inner = frame_and_ring(there)
        for part, (outer, left_out) in zip(parts, ((there, None), (frame, hole), (ring, inner)), strict=True):
            part[rows] = region_mean(features, outer, 1 / backbone.stride, left_out)
    return Regions(*parts)


def learn(
    config: MethodConfig,
    pictures: list[Picture],
    tags: Tensor,
    known: Tensor,
    epochs: int,
    after_epoch: Callable[[list[Output]], None],
) -> list[list[float]]:
    """Global and local entropy of each epoch; `after_epoch` is handed what the model then says of every picture."""
    torch.manual_seed(0)
    every = torch.cat([regions.box for regions, _, _ in pictures])
    width, channels = 256, every.shape[1]
    neck = nn.Sequential(Standard(every.mean(0), every.std(0)), nn.Linear(channels, width), nn.ReLU())
    model, loss_of = MELM(neck, width, tags.shape[1], config), MinEntropyLoss(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    curve = []
    for epoch in range(epochs):
        strength = feedback_strength(epoch / epochs, config.feedback_rate)
        entropies = []
        for i in torch.randperm(len(pictures)).tolist():
            regions, proposals, prior = pictures[i]
            losses = loss_of(model(regions, proposals, prior, strength), proposals, tags[i], known[i])
            optimizer.zero_grad()
            losses.total.backward()
            optimizer.step()
            entropies.append([float(losses.global_entropy), float(losses.local_entropy)])
        curve.append(np.mean(entropies, axis=0).tolist())
        with torch.no_grad():
            after_epoch([model(regions, proposals, prior, strength) for regions, proposals, prior in pictures])
    return curve


def localization(output: Output, proposals: Tensor, tags: Tensor, true: TrueBoxes) -> list[tuple[float, float, float]]:
    """For each tag: p-weighted mean and variance of the overlap with the objects of its class, and whether the best box hits."""
    prob = torch.stack([log_prob.exp() for log_prob in output.localization]).mean(0).numpy()
    result = []
    for y in torch.nonzero(tags)[:, 0].tolist():
        overlap = iou(proposals.numpy(), true.boxes[true.classes == y]).max(axis=1)
        weight = prob[:, y] / prob[:, y].sum()
        mean = float(weight @ overlap)
        result.append((mean, float(weight @ (overlap - mean) ** 2), float(overlap[prob[:, y].argmax()] >= 0.5)))
    return result


class Standard(nn.Module):
    """Features with mean 0 and deviation 1."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std + 1e-3)

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.std


def draw(curves: dict[str, dict[str, list[float]]], images: int, path: Path) -> None:
    figure = Figure(figsize=(11, 6), dpi=120, layout="constrained")
    for axes, key in zip(figure.subplots(2, 3).flat, PANELS, strict=False):
        for name, of_name in curves.items():
            axes.plot(range(1, len(of_name[key]) + 1), of_name[key], label=name)
        axes.set(
            title={"accuracy": "localization accuracy", "variance": "localization variance"}.get(key, key),
            xlabel="epoch",
        )
        axes.grid(alpha=0.3)
        axes.legend()
    figure.axes[-1].axis("off")
    figure.suptitle(f"{images} images of VOC 2007 train, learned by heart (with surround and prior)")
    figure.savefig(path)


if __name__ == "__main__":
    main()
