"""How the time of each part grows with images, boxes an image, classes and the size of images, on drawn scenes.

    python benchmarks/bench_growth.py --plot docs/figures/growth.png

Parts: `proposals` (edge boxes and their prior, one core), `features` (a frozen trunk at the preset's scales with box, frame and
ring pooled, one core), `step` (forward, back and the change of weights for one image, all threads) and `detect` (one image whose
features are stored: the network, suppression and voting, all threads). One thing is varied at a time, the rest is as the preset
`fast` on VOC 2007 has it. Medians are printed and written as JSON; `growth` is the exponent that fits them: 1 for linear,
0 for what does not grow.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from melm.data.scenes import draw_scene
from melm.detect.detector import suppressed
from melm.learn.network import Network, build_network, forward
from melm.learn.presets import learn_config
from melm.memory import keep_freed_memory
from melm.model.branches import Regions
from melm.model.melm import MinEntropyLoss
from melm.proposals import Proposals, compute_proposals

USUAL = {"images": 1, "boxes": 800, "classes": 20, "side": 500}
VARIED = {
    "images": (1, 2, 4, 8),
    "boxes": (200, 400, 800, 1600),
    "classes": (5, 20, 80, 320),
    "side": (250, 500, 1000, 2000),
}
PARTS = ("proposals", "features", "step", "detect")


def median(work: Callable[[], object], repeats: int = 3) -> float:
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def measured(images: int, boxes: int, classes: int, side: int) -> dict[str, float]:
    """Seconds of each part for so many images."""
    config = learn_config("fast", None, {"weights": "none"})
    settings = type(config.proposals)("edge-boxes", max_boxes=boxes)
    torch.manual_seed(0)
    network = build_network(config, classes)
    network.trunk.fit(torch.randn(2000, network.trunk.backbone.channels))  # type: ignore[operator]
    scenes = [draw_scene(i, (side, side * 3 // 4)).pixels for i in range(images)]
    found = [compute_proposals(scene, settings) for scene in scenes]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = {
        "proposals": median(lambda: [compute_proposals(scene, settings) for scene in scenes], 3),
        "features": median(
            lambda: [network.trunk.look(s, torch.from_numpy(f.boxes)) for s, f in zip(scenes, found, strict=True)],
            3,  # type: ignore[arg-type]
        ),
    }
    regions = network.trunk.look(scenes[0], torch.from_numpy(found[0].boxes))  # type: ignore[arg-type]
    torch.set_num_threads(threads)
    learn = one_step(network, regions, found[0], classes)
    seconds["step"] = median(lambda: [learn() for _ in range(images)])
    network.eval()
    names = tuple(str(k) for k in range(classes))

    def detect() -> None:
        scores = forward(network, 0.6, regions, found[0]).prob("all").numpy()
        suppressed(found[0].boxes, scores, names, found[0].width, found[0].height, 0.3, 0.0, 0.6)

    seconds["detect"] = median(lambda: [detect() for _ in range(images)])
    return seconds


def one_step(network: Network, regions: Regions, found: Proposals, classes: int) -> Callable[[], None]:
    """A step on as many boxes as the image has."""
    network.train()
    loss_of = MinEntropyLoss(network.melm.config)
    learned = [p for p in network.melm.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, fused=True)
    given = (found.boxes, found.prior, found.score, found.share)
    boxes, prior, score, share = (torch.from_numpy(a) for a in given)
    tags, known = torch.zeros(classes), torch.ones(classes)
    tags[1] = tags[3] = 1

    def step() -> None:
        output = network.melm(regions, boxes, prior, 0.3, score=score, share=share)
        loss_of(output, boxes, tags, known).total.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def growth(values: tuple[int, ...], seconds: list[float]) -> float:
    """The exponent a of seconds ~ value^a."""
    return float(np.polyfit(np.log(values), np.log(seconds), 1)[0])


def draw(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(results), figsize=(13, 3.4), sharey=True, layout="constrained")
    names = {"images": "images", "boxes": "boxes an image", "classes": "classes", "side": "larger side, pixels"}
    for axis, (name, result) in zip(axes, results.items(), strict=True):
        for part in PARTS:
            per_image = [
                s / (v if name == "images" else USUAL["images"])
                for v, s in zip(result["values"], result[part], strict=True)
            ]
            axis.plot(result["values"], [1e3 * s for s in per_image], marker="o", label=part)
        axis.set(xscale="log", yscale="log", xlabel=names[name])
        axis.set_xticks(result["values"], [f"{value:,}" for value in result["values"]], minor=False)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms an image")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "growth.json")
    parser.add_argument("--plot", type=Path, help="PNG to draw")
    options = parser.parse_args()
    keep_freed_memory()
    cv2.setNumThreads(1)
    results: dict[str, Any] = {}
    for name, values in VARIED.items():
        rows = [measured(**{**USUAL, name: value}) for value in values]
        results[name] = {"values": values, **{part: [row[part] for row in rows] for part in PARTS}}
        results[name]["growth"] = {part: round(growth(values, results[name][part]), 2) for part in PARTS}
        print(f"{name} (seconds for {'so many images' if name == 'images' else 'one image'})")
        for value, row in zip(values, rows, strict=True):
            print(f"  {value:>6,}  " + "  ".join(f"{part} {row[part]:.3f}" for part in PARTS))
        print("  growth  " + "  ".join(f"{part} {results[name]['growth'][part]:.2f}" for part in PARTS))
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "processor": platform.processor()}
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({"machine": machine, "usual": USUAL, "varied": results}, indent=2) + "\n")
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    main()
