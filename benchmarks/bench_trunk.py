"""How fast a frozen trunk reads an image: as the network is learned, and as `melm` reads it.

    python benchmarks/bench_trunk.py

One image of VOC's size at the five scales of `fast`, one thread, in turn: the network with its batch normalisation, folded
(`model/backbones/folded.py`) with convolutions where PyTorch takes them, and folded with oneDNN for all of them; then the same
three with freed memory kept (`memory.py`), which cannot be taken back and so comes last. Then a pair of images, one after
another on two threads, and beside each other on a thread each. Medians and ratios are printed and written as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from melm.learn.network import build_network
from melm.learn.presets import learn_config
from melm.memory import keep_freed_memory
from melm.model.backbones import folded as folding
from melm.model.backbones.backbone import Reading


@torch.no_grad()
def read(network: Reading, images: list[Tensor]) -> list[Tensor]:
    return [network.trunk(image) for image in images]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "trunk.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    trunk = build_network(learn_config("fast", None, {"weights": "none"}), 20).trunk
    learned, folded = trunk.backbone.eval(), trunk.backbone.reading()
    images = [torch.randn(1, 3, round(s * 0.75), s).to(memory_format=torch.channels_last) for s in trunk.scales]  # type: ignore[union-attr]
    onednn = folding.onednn
    sides = {
        "as learned": (learned, onednn),
        "folded, PyTorch's choice": (folded, lambda x: False),
        "folded": (folded, onednn),
    }
    threads, results = torch.get_num_threads(), {}
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {}
    for kept in ("", ", memory kept"):
        if kept:
            keep_freed_memory()
        for _ in range(options.rounds):
            for name, (network, chosen) in sides.items():
                folding.onednn = chosen
                started = time.perf_counter()
                read(network, images)
                seconds.setdefault(name + kept, []).append(time.perf_counter() - started)
    for mine, his in zip(read(folded, images), read(learned, images), strict=True):
        torch.testing.assert_close(mine, his, rtol=1e-3, atol=1e-3)
    results["one thread"] = {name: statistics.median(times[2:]) for name, times in seconds.items()}
    pairs: dict[str, list[float]] = {"two threads an image": [], "an image a thread": []}
    with ThreadPoolExecutor(2) as pool:
        for _ in range(options.rounds):
            torch.set_num_threads(2)
            started = time.perf_counter()
            for _ in range(2):
                read(folded, images)
            pairs["two threads an image"].append(time.perf_counter() - started)
            torch.set_num_threads(1)
            started = time.perf_counter()
            list(pool.map(lambda _: (torch.set_num_threads(1), read(folded, images)), range(2)))
            pairs["an image a thread"].append(time.perf_counter() - started)
    torch.set_num_threads(threads)
    results["two images on two cores"] = {name: statistics.median(times[1:]) for name, times in pairs.items()}
    for title, times in results.items():
        slowest = max(times.values())
        print(title)
        for name, value in times.items():
            print(f"  {name:40s}{1e3 * value:8.0f} ms  {slowest / value:5.2f} times the slowest's speed")
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({"torch": torch.__version__, "seconds": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
