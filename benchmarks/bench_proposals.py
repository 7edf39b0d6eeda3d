"""How fast selective search is, and what it finds: ours and OpenCV's fast mode, image by image in turn.

    python benchmarks/bench_proposals.py --data VOC2007 --split val --images 150

One process, one thread, seconds of the processor: other work on the machine does not count. Images are taken evenly over the
split; without `--data` they are generated scenes. The search is timed where the product calls it, and proposals as a whole
(with the prior, which costs both the same for a box) around it. Recall, difficult objects left out, is that of proposals as
the product orders them, cut on each image to the smaller number of the two; beside it that of all. What is printed is
written as JSON too.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from melm.data import Source, read_image, read_tags
from melm.data.scenes import draw_scene, write_scenes
from melm.measure.recall import proposal_recall
from melm.measure.truth import Truth, read_truth
from melm.proposals import ProposalSettings, compute, compute_proposals

SIDES = {"selective-search": "selective_search", "selective-search-opencv": "selective_search_opencv"}
Boxes = dict[str, NDArray[np.floating]]


def timed(search: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The same search, which writes down how long it took."""

    def call(*given: Any, **options: Any) -> Any:
        start = time.process_time()
        result = search(*given, **options)
        seconds.append(time.process_time() - start)
        return result

    return call


def recall_of(truth: Truth, boxes: Boxes) -> dict[str, float]:
    recall = proposal_recall(truth, boxes.get)
    values = {"recall_50": recall.at(0.5), "recall_70": recall.at(0.7), "mabo": recall.mabo()}
    return {"boxes": round(recall.boxes_per_image, 1), **{name: round(value, 4) for name, value in values.items()}}


def compare(source: Source) -> dict[str, Any]:
    """Both sides on the images of the source: seconds, boxes and recall."""
    images = read_tags(source)
    search: dict[str, list[float]] = {method: [] for method in SIDES}
    whole: dict[str, list[float]] = {method: [] for method in SIDES}
    for method, name in SIDES.items():
        compute_proposals(draw_scene(0).pixels, ProposalSettings(method))  # compiles
        setattr(compute, name, timed(getattr(compute, name), search[method]))
    every: dict[str, Boxes] = {method: {} for method in SIDES}
    equal: dict[str, Boxes] = {method: {} for method in SIDES}
    for turn, image in enumerate(images):
        pixels = read_image(image.path)
        for method in list(SIDES)[:: 1 - 2 * (turn % 2)]:  # who is first changes
            start = time.process_time()
            every[method][image.id] = compute_proposals(pixels, ProposalSettings(method)).boxes
            whole[method].append(time.process_time() - start)
        least = min(len(every[method][image.id]) for method in SIDES)
        for method in SIDES:
            boxes = every[method][image.id]
            equal[method][image.id] = np.concatenate([boxes[: least - 1], boxes[-1:]])  # the whole image is the last
    truth = read_truth(source)
    sides: dict[str, Any] = {
        method: {
            "search_seconds": round(statistics.median(search[method]), 4),
            "proposals_seconds": round(statistics.median(whole[method]), 4),
            "as_many_boxes": recall_of(truth, equal[method]),
            "all_boxes": recall_of(truth, every[method]),
        }
        for method in SIDES
    }
    ours, theirs = (search[method] for method in SIDES)
    return {
        "images": len(images),
        "sides": sides,
        "ratio": round(statistics.median(theirs) / statistics.median(ours), 2),
        "median_of_ratios": round(statistics.median(b / a for a, b in zip(ours, theirs, strict=True)), 2),
        "least_ratio": round(min(b / a for a, b in zip(ours, theirs, strict=True)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a data set with boxes, as of PASCAL VOC; else generated scenes")
    parser.add_argument("--split", help="of --data")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "proposals.json")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    if options.data:
        result = compare(Source(options.data, split=options.split, limit=options.images))
        data = " ".join(filter(None, [options.data.name, options.split]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_scenes(Path(folder), options.images, 0, size=(500, 375))
            result = compare(Source(Path(folder) / "train.json"))
        data = "generated scenes, 500 x 375"
    print(f"{data}: {result['images']} images, one thread, medians of processor time")
    for method, side in result["sides"].items():
        print(f"{method:24s} search {side['search_seconds']:.3f} s, proposals {side['proposals_seconds']:.3f} s")
        for what in ("as_many_boxes", "all_boxes"):
            row = side[what]
            print(
                f"    {what.replace('_', ' '):14s}{row['boxes']:7.0f} boxes   recall {row['recall_50']:.3f} at 0.5, "
                f"{row['recall_70']:.3f} at 0.7   mean average best overlap {row['mabo']:.3f}"
            )
    print(
        f"OpenCV's takes {result['ratio']:.1f} times as long; at least {result['least_ratio']:.1f} times on each image"
    )
    machine = {"opencv": cv2.__version__, "threads": 1, "processor": platform.processor()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": machine, "data": data, **result}, indent=2) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
