"""Where the time of one learning step goes, part by part, for one image of VOC's size.

    python benchmarks/profile_step.py --preset fast --boxes 2000
    python benchmarks/profile_step.py --preset paper-vggf --boxes 2000

Every part is run by itself on the same numbers, with random weights, and the median of some repeats is printed. Proposals and a
frozen trunk are paid once for an image, the rest at every step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from melm.data.scenes import draw_scene
from melm.learn.network import Network, build_network
from melm.learn.presets import learn_config
from melm.learn.region_store import RegionStore
from melm.model.branches import Regions
from melm.model.cliques import coordinate_order
from melm.model.melm import MinEntropyLoss
from melm.model.pooling import roi_pool
from melm.model.trunks import FrozenTrunk, resized
from melm.proposals import ProposalSettings, compute_proposals

CLASSES = 20
Times = dict[str, float]


def median(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--boxes", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    pixels = draw_scene(0, (500, 375)).pixels
    random = np.random.default_rng(0)
    corner = random.uniform(0, (420, 300), (options.boxes, 2))
    end = np.minimum(corner + random.uniform(20, 300, (options.boxes, 2)), (500, 375))
    boxes = torch.tensor(np.concatenate([corner, end], axis=1), dtype=torch.float32)
    config = learn_config(options.preset, "L2+ARL", {"weights": "none"})
    network = build_network(config, CLASSES).train()
    once: Times = {}
    for method in ("selective-search", "edge-boxes"):
        settings = ProposalSettings(method)
        once[f"proposals, {method}"] = median(lambda s=settings: compute_proposals(pixels, s), 3)  # type: ignore[misc]
    every: Times = {}
    if isinstance(network.trunk, FrozenTrunk):
        regions = frozen_parts(network.trunk, pixels, boxes, config.proposals, options.repeats, once, every)
        maps = None
    else:
        scale = sorted(config.scales)[len(config.scales) // 2]
        regions, maps = tuned_parts(network, pixels, boxes, scale, options.repeats, every)
    step_parts(network, regions, boxes, options.repeats, every, maps)
    total = sum(every.values())
    print(f"{options.preset}, {options.boxes} boxes, {CLASSES} classes, {torch.get_num_threads()} threads")
    for name, seconds in once.items():
        print(f"  once an image   {name:34s}{1e3 * seconds:9.1f} ms")
    for name, seconds in every.items():
        print(f"  every step      {name:34s}{1e3 * seconds:9.1f} ms {100 * seconds / total:5.1f} %")
    print(f"  every step      {'all of it':34s}{1e3 * total:9.1f} ms")
    if options.out:
        options.out.write_text(json.dumps({"once": once, "every_step": every, "boxes": options.boxes}, indent=1))


def frozen_parts(
    trunk: FrozenTrunk,
    pixels: np.ndarray,
    boxes: Tensor,
    settings: ProposalSettings,
    repeats: int,
    once: Times,
    every: Times,
) -> Regions:
    trunk.fit(torch.randn(3000, trunk.backbone.channels))
    images = [trunk.backbone.normalise(torch.from_numpy(resized(pixels, scale)))[None] for scale in trunk.scales]
    images = [image.to(memory_format=torch.channels_last) for image in images]

    @torch.no_grad()
    def maps() -> list[Tensor]:
        return [trunk.backbone.trunk(image)[0].permute(1, 2, 0).contiguous() for image in images]

    once["trunk, five scales"] = median(maps, 3)
    once["trunk, and its regions pooled"] = median(lambda: trunk.look(pixels, boxes), 3)
    regions = trunk.look(pixels, boxes)
    with tempfile.TemporaryDirectory() as folder:
        store = RegionStore(trunk, settings, Path(folder))
        store.prepare()
        store.put("00aa", regions)
        every["input (regions from the store)"] = median(lambda: store.regions("00aa"), repeats)
    return regions


def tuned_parts(
    network: Network, pixels: np.ndarray, boxes: Tensor, scale: int, repeats: int, every: Times
) -> tuple[Regions, tuple[Tensor, Tensor]]:
    backbone = network.trunk.backbone
    every["input (resize, normalise)"] = median(
        lambda: backbone.normalise(torch.from_numpy(resized(pixels, scale))), repeats
    )
    image = backbone.normalise(torch.from_numpy(resized(pixels, scale)))[None]
    every["trunk, forward"] = median(lambda: backbone.trunk(image), 3)
    there = boxes * (scale / 500)
    map = backbone.trunk(image)
    flat = map[0].permute(1, 2, 0).contiguous().detach().requires_grad_()
    pool = lambda: roi_pool(flat, there, backbone.pooled_size, 1 / backbone.stride)  # noqa: E731
    every["pooling, forward"] = median(pool, repeats)
    pooled = pool()
    slope = torch.randn_like(pooled)
    every["pooling, backward"] = median(lambda: torch.autograd.grad(pooled, flat, slope, retain_graph=True), repeats)
    weights = [p for p in backbone.parameters() if p.requires_grad and p.ndim == 4]
    back = torch.randn_like(map)
    every["trunk, backward"] = median(lambda: torch.autograd.grad(map, weights, back, retain_graph=True), 3)
    return Regions(pooled.detach().requires_grad_()), (flat, back)


def step_parts(
    network: Network, regions: Regions, boxes: Tensor, repeats: int, every: Times, maps: tuple[Tensor, Tensor] | None
) -> None:
    melm, loss_of = network.melm, MinEntropyLoss(network.melm.config)
    prior = torch.rand(len(boxes))
    tags, known = torch.zeros(CLASSES), torch.ones(CLASSES)
    tags[3] = tags[7] = 1
    order = coordinate_order(boxes)  # made with the input, in a thread of its own
    learned = [p for p in melm.parameters() if p.requires_grad and (maps is None or p.ndim < 4)]
    output = melm(regions, boxes, prior, 0.3)
    logits = [
        part
        for part in (output.scores.class_logits, output.scores.location_logits, *output.localization)
        if part is not None
    ]

    def scored() -> tuple[Tensor, Tensor]:
        return melm.prob_of(output.scores), melm.prob_of(output.scores.each(output.cliques.mean))

    whole = median(lambda: melm(regions, boxes, prior, 0.3), repeats)
    cliques = median(lambda: melm.partition(boxes, output.log_prob), repeats)
    probabilities = median(scored, repeats)
    every["layers, forward"] = whole - cliques - probabilities
    every["cliques"] = cliques
    every["probabilities and entropies, forward"] = probabilities + median(
        lambda: loss_of(output, boxes, tags, known, order), repeats
    )
    total = loss_of(output, boxes, tags, known, order).total
    every["entropies, backward"] = median(lambda: torch.autograd.grad(total, logits, retain_graph=True), repeats)
    slopes = torch.autograd.grad(total, logits, retain_graph=True)
    wanted = learned + ([regions.box] if maps is not None else [])
    every["layers, backward"] = median(
        lambda: torch.autograd.grad(logits, wanted, slopes, retain_graph=True, allow_unused=True), repeats
    )
    for parameter, slope in zip(learned, torch.autograd.grad(logits, learned, slopes, allow_unused=True), strict=True):
        parameter.grad = slope
    optimizer = torch.optim.AdamW(learned) if maps is None else torch.optim.SGD(learned, momentum=0.9, lr=1e-4)
    every["optimizer"] = median(optimizer.step, repeats)


if __name__ == "__main__":
    main()
