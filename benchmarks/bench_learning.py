"""How fast a step of four images is: one image after another on all threads, and side by side, a thread each.

    python benchmarks/bench_learning.py

Both sides in turn, on the same images of VOC's size with random weights and numbers: a step of `fast` (stored features) and one
of retraining (stored maps). That both give the same weights is a test's. Medians and ratios are printed and written as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from melm.data.scenes import draw_scene
from melm.learn.items import Item
from melm.learn.lessons import Cells, Lesson, StudentStep
from melm.learn.loop import Learner, Step, one_step
from melm.learn.network import Network, build_network
from melm.learn.presets import LearnConfig, learn_config
from melm.learn.processes import ALONE
from melm.learn.run_folder import RunFolder
from melm.learn.students import RetrainConfig, Students
from melm.memory import keep_freed_memory
from melm.model.cliques import coordinate_order
from melm.model.student import at_scales
from melm.model.trunks import FrozenTrunk, normal_scale

CLASSES, WIDTH, HEIGHT = 20, 500, 375


def some_boxes(random: np.random.Generator, count: int) -> Tensor:
    corner = random.uniform(0, (WIDTH - 80, HEIGHT - 80), (count, 2))
    end = np.minimum(corner + random.uniform(20, 300, (count, 2)), (WIDTH, HEIGHT))
    return torch.tensor(np.concatenate([corner, end], axis=1), dtype=torch.float32)


def items_of(network: Network, config: LearnConfig, random: np.random.Generator) -> list[Any]:
    """What steps of `fast` see of some images."""
    made = []
    for index in range(config.accumulate):
        boxes = some_boxes(random, config.boxes_a_step)
        tags = torch.zeros(CLASSES)
        tags[index % CLASSES] = 1
        assert isinstance(network.trunk, FrozenTrunk)
        regions = network.trunk.look(draw_scene(index, (WIDTH, HEIGHT)).pixels, boxes)
        prior, score, share = torch.rand(3, len(boxes))
        order = coordinate_order(boxes)
        made.append(Item(index, boxes, prior, score, share, order, tags, torch.ones(CLASSES), regions))
    return made


def lessons_of(network: Network, config: RetrainConfig, random: np.random.Generator) -> list[Any]:
    """What steps of retraining see of them: boxes at all scales, or at two where the trunk's last stages learn."""
    made = []
    for index in range(config.accumulate):
        assert isinstance(network.trunk, FrozenTrunk)
        pixels, trunk = draw_scene(index, (WIDTH, HEIGHT)).pixels, network.trunk
        boxes = some_boxes(random, 4000)
        number = normal_scale(boxes, config.scales, WIDTH, trunk.normal_size)
        shown = range(4) if config.fixed else (index % 4, (index + 1) % 4)
        wanted = torch.isin(number, torch.tensor(shown)).nonzero()[:96, 0]
        there, _ = at_scales(boxes[wanted], number[wanted], config.scales, WIDTH, HEIGHT)
        with torch.no_grad():
            maps = trunk.student_maps(pixels, config.scales, config.fixed)
        seen = [map if len(some) else None for map, some in zip(maps, there, strict=True)]
        target = torch.from_numpy(random.integers(0, CLASSES + 1, len(wanted)))
        share = torch.ones(len(wanted)) / len(wanted)
        rest = torch.zeros(len(wanted), 4), share, share, torch.ones(CLASSES)
        cells = None
        if config.names_cells:
            some = maps[config.finest].flatten(0, 1)[: 2 * config.cells]
            cells = Cells(
                some, torch.from_numpy(random.integers(0, CLASSES + 1, len(some))), torch.ones(len(some)) / 256
            )
        made.append(Lesson(index, index % 2, seen, there, target, *rest, cells))
    return made


@contextmanager
def side_by_side(threads: int) -> Iterator[ThreadPoolExecutor]:
    torch.set_num_threads(1)
    with ThreadPoolExecutor(threads) as pool:
        yield pool
    torch.set_num_threads(threads)


def time_of_step(learner: Learner, images: list[Any], pool: ThreadPoolExecutor | None) -> float:
    started = time.perf_counter()
    one_step(learner, learner.step, enumerate(images), len(images), 0.3, pool)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "learning.json")
    options = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    random, threads = np.random.default_rng(0), torch.get_num_threads()
    config = learn_config("fast", None, {"weights": "none"})
    network = build_network(config, CLASSES)
    assert isinstance(network.trunk, FrozenTrunk)
    network.trunk.fit(torch.randn(3000, network.trunk.backbone.channels))
    folder = RunFolder(Path("none"))
    sides: dict[str, tuple[Learner, list[Any]]] = {
        "fast": (Learner(Step(network, config), config, [], ALONE, folder), items_of(network, config, random)),
    }
    for name, again in (("retraining", RetrainConfig()), ("stages learn", RetrainConfig(tail_share=0.1))):
        step = StudentStep(Students(network, again, CLASSES, "all"))
        sides[name] = Learner(step, again, [], ALONE, folder), lessons_of(network, again, random)
    seconds: dict[str, dict[str, list[float]]] = {name: {"one after another": [], "side by side": []} for name in sides}
    for name, (learner, images) in sides.items():
        learner.network.train()
        for _ in range(options.rounds):
            seconds[name]["one after another"].append(time_of_step(learner, images, None))
            with side_by_side(threads) as pool:
                seconds[name]["side by side"].append(time_of_step(learner, images, pool))
    results = {
        name: {side: statistics.median(times[1:]) for side, times in both.items()} for name, both in seconds.items()
    }
    for name, both in results.items():
        before, after = both["one after another"], both["side by side"]
        print(
            f"{name:12s}{1e3 * before:8.0f} ms one after another {1e3 * after:8.0f} ms side by side {before / after:6.2f}"
        )
    stay, learn = (results[name]["side by side"] for name in ("retraining", "stages learn"))
    print(f"a step of retraining where the trunk's stages learn, by one where they stay: {learn / stay:.2f}")
    options.out.parent.mkdir(exist_ok=True)
    kept = {"torch": torch.__version__, "threads": threads, "images": config.accumulate, "seconds": results}
    options.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
