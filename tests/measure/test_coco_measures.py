"""COCO's measures: equal to pycocotools in every figure."""

import contextlib
import io
import math

import numpy as np
import pytest
from measure_scenes import NAMES, found, objects, of_truth, random_scene

from melm.data import Source
from melm.errors import MelmError
from melm.measure.coco import coco_areas, coco_measures, coco_results
from melm.measure.gather import gather
from melm.measure.truth import Truth, read_truth

FIGURES = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]


def by_pycocotools(truth, detections):
    """The twelve figures, and the AP of each class; -1 where there is none."""
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    gathered = gather(truth, detections)
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = {
            "images": [{"id": i + 1} for i in range(len(truth.images))],
            "categories": [{"id": k + 1, "name": name} for k, name in enumerate(truth.classes)],
            "annotations": [
                {"id": n + 1, "image_id": i + 1, "category_id": k + 1, "area": area, "iscrowd": int(crowd)}
                | {"bbox": [x1, y1, x2 - x1, y2 - y1]}
                for n, (i, k, area, crowd, (x1, y1, x2, y2)) in enumerate(
                    zip(
                        gathered.object_image.tolist(),
                        gathered.object_class.tolist(),
                        coco_areas(gathered).tolist(),
                        gathered.crowd,
                        gathered.objects.tolist(),
                        strict=True,
                    )
                )
            ],
        }
        known.createIndex()
        evaluation = COCOeval(known, known.loadRes(coco_results(gathered)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]
    of_classes = [p[p > -1].mean() if (p > -1).any() else -1 for p in np.moveaxis(precision, 2, 0)]
    return evaluation.stats, of_classes


def assert_equal(truth, detections):
    result = coco_measures(truth, detections)
    stats, of_classes = by_pycocotools(truth, detections)
    assert list(result.figures()) == FIGURES
    assert [-1 if math.isnan(v) else v for v in result.figures().values()] == pytest.approx(stats.tolist(), abs=1e-12)
    assert [-1 if math.isnan(v) else v for v in result.per_class().values()] == pytest.approx(of_classes, abs=1e-12)
    return result


def grown(truth, detections, factor):
    """The same scene in larger pixels, so that all sizes occur."""
    for true in truth.images.values():
        true.boxes[:] *= factor
    for these in detections.values():
        these.boxes[:] *= factor
    return truth, detections


def test_equals_pycocotools_on_random_scenes():
    random = np.random.default_rng(0)
    seen = []
    for _ in range(200):
        scene = random_scene(random, images=int(random.integers(1, 20)), crowds=True, off=1)
        truth, detections = grown(*scene, float(random.uniform(0.5, 8)))
        if any(len(these) for these in detections.values()):  # pycocotools takes no empty list
            seen.append(assert_equal(truth, detections).ap)
    assert len(seen) > 150 and 0.1 < np.mean(seen) < 0.9


def test_equals_pycocotools_beyond_100_detections_in_an_image():
    random = np.random.default_rng(1)
    truth = Truth(NAMES, {"a": objects([[0, 0, 90, 90], [100, 100, 300, 300], [50, 0, 80, 40]], [0, 0, 1])})
    boxes = truth.images["a"].boxes[random.integers(0, 3, 400)] + random.normal(0, 5, (400, 4))
    rows = [("cat", s, *b) for s, b in zip(random.uniform(size=400).round(2), boxes, strict=True)]
    assert_equal(truth, {"a": found(rows)})


def test_truth_itself_is_perfect():
    random = np.random.default_rng(2)
    for _ in range(20):
        truth, _ = random_scene(random, images=8, crowds=True)
        figures = coco_measures(truth, of_truth(truth)).figures()
        assert [figures[name] for name in ("AP", "AP50", "AP75", "AR100")] == pytest.approx([1] * 4)


def test_a_difficult_object_is_found_without_gain_and_missed_without_loss():
    truth = Truth(NAMES, {"a": objects([[0, 0, 50, 50], [100, 100, 200, 200]], [0, 0], difficult=[True, False])})
    other = ("cat", 0.5, 100, 100, 200, 200)
    assert coco_measures(truth, {"a": found([other])}).ap == pytest.approx(1)
    assert coco_measures(truth, {"a": found([("cat", 0.9, 0, 0, 50, 50), other])}).ap == pytest.approx(1)
    # but a part of it is wrong, as it would not be in a crowd
    assert coco_measures(truth, {"a": found([("cat", 0.9, 0, 0, 20, 20), other])}).ap == pytest.approx(0.5)


def test_nothing_found_and_classes_without_objects():
    truth = Truth(NAMES, {"a": objects([[0, 0, 50, 50]], [0])})
    result = coco_measures(truth, {})
    assert result.figures()["AP"] == result.figures()["AR100"] == 0
    assert result.per_class()["cat"] == 0 and math.isnan(result.per_class()["dog"])
    assert math.isnan(result.figures()["APl"])  # no large object
    with pytest.raises(MelmError, match="no object to measure against"):
        coco_measures(Truth(NAMES, {"a": objects([], [])}), {})


@pytest.mark.slow
def test_equals_pycocotools_on_voc2007(voc2007):
    """Real objects, with detections that are shifted, doubled and mistaken."""
    truth = read_truth(Source(voc2007, split="val"))
    random = np.random.default_rng(0)
    detections = {}
    for id, true in truth.images.items():
        chosen = random.integers(0, len(true.boxes), 6)
        boxes = true.boxes[chosen] + random.normal(0, 8, (6, 4))
        classes = np.where(random.uniform(size=6) < 0.8, true.classes[chosen], random.integers(0, 20, 6))
        rows = [
            (truth.classes[k], s, *b) for k, s, b in zip(classes, random.uniform(size=6).round(2), boxes, strict=True)
        ]
        detections[id] = found(rows, truth.classes)
    assert 0.1 < assert_equal(truth, detections).ap < 0.9
    assert_equal(truth, of_truth(truth))
