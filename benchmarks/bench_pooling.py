"""How fast RoI max pooling is: our numba kernel, the plain PyTorch one, and torchvision's where it can be imported; and the means
of regions that a frozen trunk and students read, by our kernel, with corners shared and not, and by PyTorch's embedding bag.

    python benchmarks/bench_pooling.py --threads 1

All run in one process, in turn, on the same 2,000 boxes; each ends with the same numbers, which is checked. With more threads
than free cores the plain one, thousands of small operations, waits most of its time. Medians and ratios are printed and
written as JSON.
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

from melm.model import pooling
from melm.model.pooling import region_means, roi_pool, roi_pool_reference, torchvision_ops
from melm.model.trunks import region_parts

STRIDE = 16
CASES = ((512, 7), (256, 6))  # channels and bins of VGG16's pooling, and of VGG-F's
MEANS = ((1280, 0), (256, 3))  # channels, and parts down and across: of what a frozen trunk reads, and a student
PLAIN_REPEATS = 2  # it takes seconds
Pool = Callable[[Tensor, Tensor, int, float], Tensor]


def proposals(count: int, height: int, width: int) -> Tensor:
    """(count, 4) boxes of every size, small ones more often, inside the image."""
    whole = torch.tensor([width, height]) * float(STRIDE)
    extent = 20 + torch.rand(count, 2) ** 2 * (whole - 20)
    corner = torch.rand(count, 2) * (whole - extent)
    return torch.cat([corner, corner + extent], dim=1)


def torchvision_pool(features: Tensor, boxes: Tensor, size: int, scale: float) -> Tensor:
    """torchvision's, in the layout it likes best: (1, C, H, W) -> (N, C, size, size). Only called where it works."""
    ops = torchvision_ops()
    assert ops is not None
    pooled: Tensor = ops.roi_pool(features, [boxes], size, scale)
    return pooled


def once(pool: Pool, features: Tensor, boxes: Tensor, size: int) -> tuple[float, float, Tensor]:
    """Seconds forward, seconds backward, and the pooled features."""
    features.grad = None
    start = time.perf_counter()
    pooled = pool(features, boxes, size, 1 / STRIDE)
    forward = time.perf_counter() - start
    gradient = torch.ones_like(pooled)
    start = time.perf_counter()
    pooled.backward(gradient)
    return forward, time.perf_counter() - start, pooled.detach()


def compare(channels: int, size: int, count: int, repeats: int) -> dict[str, object]:
    """Medians in milliseconds, and how many times the kernel's each is."""
    torch.manual_seed(0)
    height, width = 37, 50
    features = torch.randn(height, width, channels, requires_grad=True)
    first_channels = features.detach().permute(2, 0, 1)[None].contiguous().requires_grad_()
    boxes = proposals(count, height, width)
    sides: dict[str, tuple[Pool, Tensor]] = {"numba": (roi_pool, features), "plain": (roi_pool_reference, features)}
    if torchvision_ops() is not None:
        sides["torchvision"] = (torchvision_pool, first_channels)
    once(roi_pool, features, boxes[:8], size)  # compiles
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(repeats):
        results = []
        for name, (pool, given) in sides.items():
            if name == "plain" and turn >= PLAIN_REPEATS:
                continue
            forward, backward, pooled = once(pool, given, boxes, size)
            times[name].append((forward, backward))
            results.append(pooled.permute(0, 2, 3, 1) if name == "torchvision" else pooled)
        assert all(torch.equal(results[0], other) for other in results[1:]), "they do not agree"
    medians = {name: [statistics.median(part) * 1000 for part in zip(*t, strict=True)] for name, t in times.items()}
    rows: dict[str, dict[str, float]] = {}
    for name, (forward, backward) in medians.items():
        ours = medians["numba"]
        rows[name] = {
            "forward_ms": round(forward, 1),
            "backward_ms": round(backward, 1),
            "forward_ratio": round(forward / ours[0], 2),
            "backward_ratio": round(backward / ours[1], 2),
            "ratio": round((forward + backward) / sum(ours), 2),
        }
        print(
            f"{channels} x {height} x {width}, {count} boxes, {size}x{size}  {name:12s} "
            f"forward {forward:7.1f} ms ({forward / ours[0]:5.2f}x)  backward {backward:7.1f} ms ({backward / ours[1]:5.2f}x)  "
            f"both {(forward + backward) / sum(ours):5.2f}x"
        )
    return {"map": [height, width, channels], "boxes": count, "size": size, "repeats": repeats, "median": rows}


def compare_means(channels: int, bins: int, count: int, repeats: int) -> dict[str, object]:
    """The same for the means over box, frame, ring and parts of an image's boxes at one scale, without a way back: by the kernel,
    by the kernel where it knows of no corners that parts share, and by PyTorch."""
    torch.manual_seed(0)
    height, width = 28, 38
    features = torch.randn(height, width, channels)
    outer, holes = region_parts(proposals(count, height, width), 3, bins)
    apart = outer.flatten(0, 1)[None], holes.flatten(0, 1)[None]
    serves = pooling._by_kernel
    times: dict[str, list[float]] = {"numba": [], "numba, apart": [], "plain": []}
    try:
        for turn in range(repeats + 1):
            results = []
            for name in times:
                pooling._by_kernel = serves if name != "plain" else lambda features: False
                regions, left_out = apart if name == "numba, apart" else (outer, holes)
                start = time.perf_counter()
                results.append(region_means(features, regions, 1 / STRIDE, left_out).flatten(0, 1))
                if turn:  # the first compiles
                    times[name].append(time.perf_counter() - start)
            assert all(torch.allclose(results[0], other, rtol=1e-6, atol=1e-6) for other in results), (
                "they do not agree"
            )
    finally:
        pooling._by_kernel = serves
    medians = {name: statistics.median(seconds) * 1000 for name, seconds in times.items()}
    rows = {name: {"ms": round(ms, 1), "ratio": round(ms / medians["numba"], 2)} for name, ms in medians.items()}
    listed = "  ".join(f"{name} {row['ms']:7.1f} ms ({row['ratio']:5.2f}x)" for name, row in rows.items())
    print(f"{channels} x {height} x {width}, {count} boxes, {3 + bins**2} means of each  {listed}")
    return {"map": [height, width, channels], "boxes": count, "means": 3 + bins**2, "median": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "pooling.json")
    parser.add_argument("--boxes", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="1 on a machine that is busy")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if torchvision_ops() is None:
        print("torchvision is not installed, or does not work beside this torch: left out")
    cases = [compare(channels, size, options.boxes, options.repeats) for channels, size in CASES]
    means = [compare_means(channels, bins, options.boxes // 6, options.repeats) for channels, bins in MEANS]
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "processor": platform.processor()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": machine, "cases": cases, "means": means}, indent=2) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
