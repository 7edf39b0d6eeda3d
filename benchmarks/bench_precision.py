"""How fast a CPU with instructions for bfloat16 works in it (`--precision bf16`, `model/precision.py`), and in single precision.

    python benchmarks/bench_precision.py

Both sides in one process, in turn, on the same numbers, one thread: a frozen trunk reading an image at the five scales of `fast`,
its 800 boxes and what students begin with; two students judging these boxes; and a step of ResNet-50 as a whole on 24 boxes,
forward and back. Medians and ratios are printed and written as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from melm.errors import MelmError
from melm.learn.looks import Look
from melm.learn.network import build_network, forward
from melm.learn.presets import learn_config
from melm.learn.students import RetrainConfig, Students
from melm.memory import keep_freed_memory
from melm.model.precision import bf16_is_fast, products
from melm.proposals import Proposals

SCALES = (192, 288, 416, 608, 896)
CPU = torch.device("cpu")


def work(backbone: str, precision: str, found: Proposals, pixels: np.ndarray) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    network = build_network(learn_config("fast", None, {"backbone": backbone, "precision": precision}), 20).eval()
    students = Students(network, RetrainConfig(scales=SCALES, precision=precision), 20, "all").eval()
    boxes = torch.from_numpy(found.boxes)
    network.trunk.fit(network.trunk.look_wide(pixels, boxes))
    regions, seen = students.look(network, pixels, boxes, None, False)
    output = forward(network, 0.6, regions, found)
    return {
        f"{backbone} reads an image": lambda: students.look(network, pixels, boxes, None, False),
        f"two students of {backbone} judge it": lambda: Look(students, seen, found).judged(output),
    }


def whole(precision: str, found: Proposals, pixels: np.ndarray) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    scales = (480,)
    config = RetrainConfig().with_(backbone="resnet50", weights="none", scales=scales, precision=precision)
    frozen = build_network(learn_config("fast", None, {"weights": "none"}), 20)
    student = Students(frozen, config, 20, "all").students[0].train()
    image, boxes = torch.from_numpy(pixels), torch.from_numpy(found.boxes[:24])

    def step() -> None:
        with products(precision, CPU):
            said = student([image], [boxes])
        (said.log_prob[:, 0].mean() + said.shift.abs().mean()).backward()
        student.zero_grad(set_to_none=True)

    return {"a step of ResNet-50": step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "precision.json")
    options = parser.parse_args()
    if not bf16_is_fast(CPU):
        raise MelmError("this CPU has no AVX-512 BF16, without which bf16 is refused")
    keep_freed_memory()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (360, 480, 3), np.uint8)
    corners = random.uniform(0, (380, 260), (800, 2))
    boxes = np.concatenate([corners, corners + random.uniform(20, 100, (800, 2))], axis=1).astype(np.float32)
    few = np.zeros(800, np.float32)
    found = Proposals(boxes=boxes, prior=few, score=few, width=480, height=360)
    results: dict[str, dict[str, float]] = {}
    for make in (
        lambda precision: work("lite0", precision, found, pixels),
        lambda precision: work("lite2", precision, found, pixels),
        lambda precision: whole(precision, found, pixels),
    ):
        sides = {precision: make(precision) for precision in ("fp32", "bf16")}
        for title in sides["fp32"]:
            seconds: dict[str, list[float]] = {precision: [] for precision in sides}
            for _ in range(options.rounds):
                for precision, works in sides.items():
                    started = time.perf_counter()
                    works[title]()
                    seconds[precision].append(time.perf_counter() - started)
            median = {precision: statistics.median(times[2:]) for precision, times in seconds.items()}
            slow, fast = median["fp32"], median["bf16"]
            print(
                f"{title:34s}{1e3 * slow:8.0f} ms in fp32{1e3 * fast:8.0f} ms in bf16: {slow / fast:.1f} times as fast"
            )
            results[title] = median
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({"torch": torch.__version__, "seconds": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
