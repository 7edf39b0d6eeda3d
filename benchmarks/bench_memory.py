"""How fast threads work that have arenas of the C library's each (`memory.py`), and that share one.

    python benchmarks/bench_memory.py

The C library settles how many arenas there are when a process has its first thread, so that each side is a process of its own, in
turn, on the same random numbers: steps of retraining on stored maps, four images side by side while those of the next steps are
loaded; and a frozen trunk reading an image a thread. Images of 24 sizes are read before, as in a recipe: the longer a process has
worked, the longer a search for free memory takes. Medians, ratios and the most memory are printed and written as JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from bench_learning import CLASSES, HEIGHT, WIDTH, lessons_of, side_by_side, some_boxes

from melm.data.scenes import draw_scene
from melm.files import packed
from melm.learn.lessons import StudentStep
from melm.learn.loop import Learner, one_step
from melm.learn.network import build_network
from melm.learn.presets import learn_config
from melm.learn.processes import ALONE
from melm.learn.run_folder import RunFolder
from melm.learn.students import RetrainConfig, Students
from melm.memory import M_ARENA_MAX, keep_freed_memory
from melm.model.trunks import FrozenTrunk

SIDES = ("one for all", "one each")
SCALES = (192, 288, 416, 608, 896)


def works(threads: int) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    network = build_network(learn_config("fast", None, {"weights": "none"}), CLASSES)
    trunk = network.trunk
    assert isinstance(trunk, FrozenTrunk)
    trunk.fit(torch.randn(3000, trunk.backbone.channels))
    config = RetrainConfig(scales=SCALES, folds=4, judges=2)
    learner = Learner(
        StudentStep(Students(network, config, CLASSES, "all").train()), config, [], ALONE, RunFolder(Path("none"))
    )
    lessons = lessons_of(network, config, random)
    images = [(draw_scene(seed, (WIDTH, HEIGHT)).pixels, some_boxes(random, 800)) for seed in range(threads)]
    before = [
        (draw_scene(seed, (WIDTH - 9 * seed, HEIGHT - 5 * seed)).pixels, some_boxes(random, 700 + seed))
        for seed in range(24)
    ]
    with torch.inference_mode(), side_by_side(threads) as pool:
        list(pool.map(lambda one: trunk.student_maps(one[0], SCALES, True) and trunk.look(*one, None), before))

    with torch.no_grad():
        maps = trunk.student_maps(images[0][0], SCALES, True)
    stored = packed({str(number): map.half().numpy() for number, map in enumerate(maps)})

    def load() -> list[torch.Tensor]:
        with np.load(io.BytesIO(stored), allow_pickle=False) as kept:
            return [torch.from_numpy(kept[name]).float() for name in kept]

    def step() -> None:
        with side_by_side(threads) as pool, ThreadPoolExecutor(1) as loader:
            for _ in range(40):
                coming = [loader.submit(load) for _ in lessons]
                one_step(learner, learner.step, enumerate(lessons), len(lessons), 0.3, pool)
                for one in coming:
                    one.result()

    def read() -> None:
        with torch.inference_mode(), side_by_side(threads) as pool:
            for _ in range(3):
                list(pool.map(lambda one: trunk.look(*one, None), images))

    return {"40 steps of retraining": step, "3 images a thread read": read}


def timed(side: str, threads: int) -> dict[str, float]:
    keep_freed_memory()
    if side == SIDES[0]:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    seconds = {}
    for title, work in works(threads).items():
        work()
        started = time.perf_counter()
        work()
        seconds[title] = time.perf_counter() - started
    return {**seconds, "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", choices=SIDES, help="this side alone, in this process, once")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "memory.json")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    if options.side:
        print(json.dumps(timed(options.side, threads)))
        return
    measured: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(options.rounds):
        for side in SIDES:
            command = [sys.executable, __file__, "--side", side]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            measured[side].append(json.loads(said.splitlines()[-1]))
    median = {
        side: {title: statistics.median(one[title] for one in several) for title in several[0]}
        for side, several in measured.items()
    }
    shared, own = (median[side] for side in SIDES)
    for title in shared:
        unit = title if title == "MB" else "s"
        print(
            f"{title:24s}{shared[title]:9.2f} {unit} {SIDES[0]}{own[title]:9.2f} {unit} {SIDES[1]}"
            f": {shared[title] / own[title]:.2f}"
        )
    options.out.write_text(
        json.dumps({"torch": torch.__version__, "threads": threads, "median": median}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
