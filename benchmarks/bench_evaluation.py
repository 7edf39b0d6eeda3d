"""Measuring detections: VOC AP, COCO's figures against pycocotools in one process, alternating, and a paired bootstrap.

python benchmarks/bench_evaluation.py
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from melm.detect.detections import Detections
from melm.measure.average_precision import average_precision
from melm.measure.coco import coco_areas, coco_measures, coco_results
from melm.measure.compare import bootstrap_ap
from melm.measure.gather import Gathered, gather
from melm.measure.truth import TrueBoxes, Truth

IMAGES, DETECTIONS, CLASSES, OBJECTS = 5000, 20, 20, 3  # detections and objects of each image
BOOTSTRAP_IMAGES, RESAMPLES = 2500, 1000


def random_set(images: int, seed: int) -> tuple[Truth, dict[str, Detections]]:
    """Objects of all sizes, and detections of which half are near an object of their class."""
    random = np.random.default_rng(seed)
    names = tuple(f"class {k}" for k in range(CLASSES))
    truth, detections = {}, {}
    for i in range(images):
        boxes = random_boxes(random, OBJECTS)
        classes = random.integers(0, CLASSES, OBJECTS)
        flags = random.uniform(size=(2, OBJECTS)) < [[0.1], [0.02]]
        truth[str(i)] = TrueBoxes(str(i), boxes, classes, flags[0], flags[1])
        chosen = random.integers(0, OBJECTS, DETECTIONS // 2)
        near = boxes[chosen] + random.normal(0, 10, (len(chosen), 4))
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        far = random_boxes(random, DETECTIONS - len(near))
        detections[str(i)] = Detections(
            np.concatenate([near, far]).astype(np.float32),
            random.uniform(size=DETECTIONS).astype(np.float32),
            np.concatenate([classes[chosen], random.integers(0, CLASSES, len(far))]),
            names,
            500,
            500,
        )
    return Truth(names, truth), detections


def random_boxes(random: np.random.Generator, count: int) -> np.ndarray:
    corner = random.uniform(0, 300, (count, 2))
    return np.concatenate([corner, corner + random.uniform(15, 200, (count, 2))], axis=1)


def coco_dataset(gathered: Gathered) -> dict[str, list[dict[str, object]]]:
    """As pycocotools wants it."""
    size = gathered.objects[:, 2:] - gathered.objects[:, :2]
    columns = {
        "image_id": gathered.object_image + 1,
        "category_id": gathered.object_class + 1,
        "area": coco_areas(gathered),
        "iscrowd": gathered.crowd.astype(int),
        "bbox": np.concatenate([gathered.objects[:, :2], size], axis=1),
        "id": np.arange(1, len(size) + 1),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return {
        "images": [{"id": i + 1} for i in range(len(gathered.image_ids))],
        "categories": [{"id": k + 1, "name": name} for k, name in enumerate(gathered.classes)],
        "annotations": [dict(zip(columns, row, strict=True)) for row in rows],
    }


def with_pycocotools(dataset: dict[str, list[dict[str, object]]], results: np.ndarray) -> np.ndarray:
    """The twelve figures."""
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = dataset
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "evaluation.json")
    options = parser.parse_args()
    truth, detections = random_set(IMAGES, 0)
    gathered = gather(truth, detections)
    dataset, results = coco_dataset(gathered), coco_results(gathered)
    small, first = random_set(BOOTSTRAP_IMAGES, 1)
    second = {id: these.above(0.1) for id, these in first.items()}
    average_precision(truth, detections)  # these compile
    bootstrap_ap(small, first, second, resamples=1)
    voc, ours, theirs, bootstrap = [], [], [], []
    for _ in range(options.rounds):
        voc.append(seconds(lambda: average_precision(truth, detections)))
        ours.append(seconds(lambda: coco_measures(truth, detections)))
        theirs.append(seconds(lambda: with_pycocotools(dataset, results)))
        bootstrap.append(seconds(lambda: bootstrap_ap(small, first, second, resamples=RESAMPLES)))
    figures = list(coco_measures(truth, detections).figures().values())
    assert np.allclose(figures, with_pycocotools(dataset, results), rtol=0, atol=1e-12)
    result = {
        "images": IMAGES,
        "detections": len(results),
        "classes": CLASSES,
        "voc_ap_s": statistics.median(voc),
        "coco_s": statistics.median(ours),
        "pycocotools_s": statistics.median(theirs),
        "coco_share_of_pycocotools": statistics.median(ours) / statistics.median(theirs),
        "bootstrap_images": BOOTSTRAP_IMAGES,
        "bootstrap_resamples": RESAMPLES,
        "bootstrap_s": statistics.median(bootstrap),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1))
    print(
        f"{IMAGES:,} images, {len(results):,} detections, {CLASSES} classes: VOC AP {result['voc_ap_s']:.2f} s; "
        f"COCO {result['coco_s']:.2f} s, pycocotools {result['pycocotools_s']:.2f} s, "
        f"{result['coco_share_of_pycocotools']:.3f} of its time"
    )
    print(f"paired bootstrap of mAP, {RESAMPLES:,} draws of {BOOTSTRAP_IMAGES:,} images: {result['bootstrap_s']:.2f} s")


if __name__ == "__main__":
    main()
