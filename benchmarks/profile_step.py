"""Where the time of one learning step goes, part by part, for one image of VOC's size, and how near that comes to the peak.

    python benchmarks/profile_step.py --preset fast
    python benchmarks/profile_step.py --preset paper-vggf

Every part is run by itself on the same numbers, with random weights, and the median of some repeats is printed. Proposals and a
frozen trunk are paid once for an image, the rest at every step. GFLOP are those of convolutions and matrix products, as
PyTorch counts them; the peak is that of a large matrix product on the same threads, measured before and after.
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
from torch.utils.flop_counter import FlopCounterMode

from melm.data.scenes import draw_scene
from melm.learn.network import Network, build_network
from melm.learn.presets import learn_config
from melm.learn.region_store import RegionStore
from melm.memory import keep_freed_memory
from melm.model.branches import Regions
from melm.model.cliques import coordinate_order
from melm.model.melm import MinEntropyLoss
from melm.model.pooling import roi_pool
from melm.model.trunks import FrozenTrunk, resized
from melm.proposals import ProposalSettings, compute_proposals

CLASSES = 20
Times = dict[str, float]


WORK: Times = {}  # GFLOP of the parts that are arithmetic


def gflop(work: Callable[[], object]) -> float:
    """Of convolutions and matrix products."""
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops()) / 1e9


def matmul_peak(side: int = 2048, repeats: int = 7) -> float:
    """GFLOP/s of a large matrix product, the best of some."""
    a, b = torch.randn(side, side), torch.randn(side, side)
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - started)
    return 2 * side**3 / best / 1e9


def timed(every: Times, name: str, work: Callable[[], object], repeats: int) -> None:
    """Notes how long a part takes and how much arithmetic it is."""
    every[name], WORK[name] = median(work, repeats), gflop(work)


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
    parser.add_argument("--boxes", type=int, help="an image; the preset's if not given")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    config = learn_config(options.preset, None, {"weights": "none"})
    options.boxes = options.boxes or config.boxes_a_step or config.proposals.max_boxes
    pixels = draw_scene(0, (500, 375)).pixels
    random = np.random.default_rng(0)
    corner = random.uniform(0, (420, 300), (options.boxes, 2))
    end = np.minimum(corner + random.uniform(20, 300, (options.boxes, 2)), (500, 375))
    boxes = torch.tensor(np.concatenate([corner, end], axis=1), dtype=torch.float32)
    peak = matmul_peak()
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
    peak = max(peak, matmul_peak())
    total = sum(every.values())
    method = f"{config.method}, {options.boxes} boxes, {CLASSES} classes"
    print(f"{options.preset}, {method}, {torch.get_num_threads()} threads, matmul peak {peak:.0f} GFLOP/s")
    for name, seconds in once.items():
        print(f"  once an image   {name:34s}{1e3 * seconds:9.1f} ms")
    for name, seconds in every.items():
        said = f"  every step      {name:34s}{1e3 * seconds:9.1f} ms {100 * seconds / total:5.1f} %"
        if name in WORK:
            said += f"  {WORK[name]:8.2f} GFLOP, {100 * WORK[name] / seconds / peak:3.0f} % of peak"
        print(said)
    arithmetic = sum(WORK[name] for name in every if name in WORK)
    layers = [name for name in every if name.startswith("layers")]
    share, of_layers = (
        100 * sum(WORK.get(name, 0.0) for name in names) / sum(every[name] for name in names) / peak
        for names in (list(every), layers)
    )
    print(
        f"  every step      {'all of it':34s}{1e3 * total:9.1f} ms         {arithmetic:8.2f} GFLOP, {share:3.0f} % of peak"
    )
    print(f"  layers above pooling, forward and backward: {of_layers:.0f} % of peak")
    if options.out:
        kept = {"once": once, "every_step": every, "gflop": WORK, "peak_gflops": peak, "boxes": options.boxes}
        options.out.write_text(
            json.dumps({**kept, "preset": options.preset, "threads": torch.get_num_threads()}, indent=1)
        )


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
        return [trunk.reading().trunk(image)[0].permute(1, 2, 0).contiguous() for image in images]

    once[f"trunk, {len(images)} scales"] = median(maps, 5)
    print(f"trunk: {gflop(maps):.1f} GFLOP an image")
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
    timed(every, "trunk, forward", lambda: backbone.trunk(image), 3)
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
    timed(every, "trunk, backward", lambda: torch.autograd.grad(map, weights, back, retain_graph=True), 3)
    return Regions(pooled.detach().requires_grad_()), (flat, back)


def step_parts(
    network: Network, regions: Regions, boxes: Tensor, repeats: int, every: Times, maps: tuple[Tensor, Tensor] | None
) -> None:
    melm, loss_of = network.melm, MinEntropyLoss(network.melm.config)
    prior, score, share = torch.rand(3, len(boxes))
    tags, known = torch.zeros(CLASSES), torch.ones(CLASSES)
    tags[3] = tags[7] = 1
    order = coordinate_order(boxes)  # made with the input, in a thread of its own
    learned = [p for p in melm.parameters() if p.requires_grad and (maps is None or p.ndim < 4)]
    output = melm(regions, boxes, prior, 0.3, score=score, share=share)
    logits = [
        part
        for part in (output.scores.class_logits, output.scores.location_logits, *output.localization)
        if part is not None
    ]

    def scored() -> tuple[Tensor, Tensor]:
        return melm.prob_of(output.scores), melm.prob_of(output.scores.each(output.cliques.mean))

    whole = median(lambda: melm(regions, boxes, prior, 0.3, score=score, share=share), repeats)
    cliques = median(lambda: melm.partition(boxes, output.log_prob), repeats)
    probabilities = median(scored, repeats)
    every["layers, forward"] = whole - cliques - probabilities
    WORK["layers, forward"] = gflop(lambda: melm(regions, boxes, prior, 0.3, score=score, share=share))
    every["cliques"] = cliques
    every["probabilities and entropies, forward"] = probabilities + median(
        lambda: loss_of(output, boxes, tags, known, order), repeats
    )
    total = loss_of(output, boxes, tags, known, order).total
    every["entropies, backward"] = median(lambda: torch.autograd.grad(total, logits, retain_graph=True), repeats)
    slopes = torch.autograd.grad(total, logits, retain_graph=True)
    wanted = learned + ([regions.box] if maps is not None else [])
    back = lambda: torch.autograd.grad(logits, wanted, slopes, retain_graph=True, allow_unused=True)  # noqa: E731
    timed(every, "layers, backward", back, repeats)
    for parameter, slope in zip(learned, torch.autograd.grad(logits, learned, slopes, allow_unused=True), strict=True):
        parameter.grad = slope
    adam = maps is None
    optimizer = (
        torch.optim.AdamW(learned, fused=True) if adam else torch.optim.SGD(learned, momentum=0.9, lr=1e-4, fused=True)
    )
    every["optimizer"] = median(optimizer.step, repeats)


if __name__ == "__main__":
    main()
