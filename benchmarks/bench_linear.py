"""How fast a linear layer is by oneDNN (`model/linear.py`), and as PyTorch does it on a CPU.

    python benchmarks/bench_linear.py --threads 2

The shapes are those of a run on a frozen trunk: the components of a map, and the two layers of a neck, of a run and of students.
Both sides in one process, in turn, forward and backward, on the same numbers; that they end with the same ones is checked.
Medians and ratios are printed and written as JSON. What is the faster depends on the processor: on Intel's there is little
between them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from melm.model.linear import linear, suits

# rows, inputs and outputs
SHAPES = {
    "components of a map": (2400, 1280, 256),
    "neck, first layer": (1200, 384, 512),
    "neck, second layer": (1200, 512, 512),
    "students, first layer": (800, 3840, 512),
}
Product = Callable[[Tensor, Tensor, Tensor], Tensor]


def once(product: Product, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[float, float, list[Tensor]]:
    """Seconds forward, seconds backward, and the product with its gradients."""
    start = time.perf_counter()
    y = product(x, weight, bias)
    forward = time.perf_counter() - start
    start = time.perf_counter()
    gradients = torch.autograd.grad(y, (x, weight, bias), y.detach())
    return forward, time.perf_counter() - start, [y.detach(), *gradients]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "linear.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    sides: dict[str, Product] = {"PyTorch": F.linear, "ours": linear}
    results = {}
    for title, (rows, inputs, outputs) in SHAPES.items():
        x, weight, bias = (torch.randn(shape) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
        assert suits(x, weight), "this PyTorch has no oneDNN: both sides would be the same"
        asked = [t.requires_grad_() for t in (x, weight, bias)]
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            made = []
            for name, product in sides.items():
                forward, backward, values = once(product, *asked)
                seconds[name].append((forward, backward))
                made.append(values)
            for one, other in zip(*made, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2 * float(other.abs().mean()))
        medians = {
            name: [statistics.median(way) for way in zip(*times[3:], strict=True)] for name, times in seconds.items()
        }
        for way, (his, mine) in zip(("forward", "back"), zip(*medians.values(), strict=True), strict=True):
            print(f"{title:24s}{way:8s}{1e3 * his:7.2f} and {1e3 * mine:6.2f} ms: {his / mine:.2f} times as fast")
        results[title] = {"shape": [rows, inputs, outputs], "seconds": medians}
    about = {"torch": torch.__version__, "threads": options.threads, "machine": platform.machine()}
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({**about, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
