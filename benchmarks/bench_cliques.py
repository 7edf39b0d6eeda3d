"""Clique partition of an image's proposals: ours (numba) against scipy's connected components, in one process, alternating.

python benchmarks/bench_cliques.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components

from melm.boxes import iou
from melm.model.cliques import partition_cliques

PROPOSALS, TOP, TAU = 2000, 200, 0.7


def with_scipy(boxes: np.ndarray, score: np.ndarray) -> np.ndarray:
    chosen = np.argsort(-score, kind="stable")[:TOP]
    return connected_components(iou(boxes[chosen], boxes[chosen]) >= TAU, directed=False)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cliques.json")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    corners = random.uniform(0, 500, (PROPOSALS, 2, 2))
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    score = random.uniform(size=PROPOSALS)
    tensors = torch.from_numpy(boxes), torch.from_numpy(score)
    ours, theirs = [], []
    assert partition_cliques(*tensors, TAU, TOP).count == with_scipy(boxes, score).max() + 1  # and compiles
    for _ in range(options.rounds):
        started = time.perf_counter()
        partition_cliques(*tensors, TAU, TOP)
        between = time.perf_counter()
        with_scipy(boxes, score)
        theirs.append(time.perf_counter() - between)
        ours.append(between - started)
    result = {
        "proposals": PROPOSALS,
        "ours_ms": 1e3 * statistics.median(ours),
        "scipy_ms": 1e3 * statistics.median(theirs),
        "ratio": statistics.median(theirs) / statistics.median(ours),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1))
    print(
        f"cliques of {TOP} of {PROPOSALS:,} proposals: {result['ours_ms']:.3f} ms, "
        f"scipy {result['scipy_ms']:.3f} ms, {result['ratio']:.1f} times faster"
    )


if __name__ == "__main__":
    main()
