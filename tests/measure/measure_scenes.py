"""Small truths and detections for the tests of measures: made by hand, or at random."""

import numpy as np

from melm.detect.detections import Detections
from melm.measure.truth import TrueBoxes, Truth

NAMES = ("cat", "dog", "cow")


def objects(boxes, classes, difficult=None, crowd=None):
    """The objects of one image."""
    flags = [np.array(f if f is not None else [False] * len(boxes), bool) for f in (difficult, crowd)]
    return TrueBoxes("", np.array(boxes, float).reshape(-1, 4), np.array(classes, np.intp), *flags)


def found(rows, names=NAMES, size=(500, 500)):
    """Detections of one image, from rows of (class name, score, x1, y1, x2, y2)."""
    boxes = np.array([row[2:] for row in rows], np.float32).reshape(-1, 4)
    scores = np.array([row[1] for row in rows], np.float32)
    return Detections(boxes, scores, np.array([names.index(row[0]) for row in rows], np.intp), tuple(names), *size)


def of_truth(truth, with_ignored=True):
    """The truth itself as detections."""
    result = {}
    for id, true in truth.images.items():
        kept = np.flatnonzero(with_ignored | ~(true.difficult | true.crowd))
        result[id] = found([(truth.classes[true.classes[i]], 0.9, *true.boxes[i]) for i in kept], truth.classes)
    return result


def random_boxes(random, count, size=60, side=30):
    corner = random.integers(0, size, (count, 2))
    return np.concatenate([corner, corner + random.integers(1, side, (count, 2))], axis=1).astype(float)


def random_scene(random, images=6, names=NAMES, crowds=False, off=4):
    """A truth and detections in whole pixels, crowded enough for duplicates, ties, difficult objects and empty images.

    Most detections are near an object: at most `off` pixels away on each side.
    """
    truth, detections = {}, {}
    for i in range(images):
        id, count = f"image{i}", int(random.integers(0, 5))
        flags = random.uniform(size=(2, count)) < 0.2
        boxes = random_boxes(random, count)
        truth[id] = objects(boxes, random.integers(0, len(names), count), flags[0], flags[1] & ~flags[0] & crowds)
        if random.uniform() < 0.15:
            continue  # no entry at all
        chosen = random.integers(0, count, int(random.integers(0, 8))) if count else np.zeros(0, int)
        near = boxes[chosen] + random.integers(-off, off + 1, (len(chosen), 4))
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        far = random_boxes(random, int(random.integers(0, 4)))
        classes = np.concatenate([truth[id].classes[chosen], random.integers(0, len(names), len(far))])
        mistaken = random.uniform(size=len(classes)) < 0.2
        classes[mistaken] = random.integers(0, len(names), int(mistaken.sum()))
        scores = random.integers(1, 9, len(classes)) / 8  # few values: many ties
        shuffled = tuple(random.permutation(names).tolist())
        boxes = np.concatenate([near, far])
        rows = [(names[k], score, *box) for k, score, box in zip(classes, scores, boxes, strict=True)]
        detections[id] = found(rows, shuffled)
    if not any((~(true.difficult | true.crowd)).any() for true in truth.values()):
        truth["image0"] = objects([[0, 0, 10, 10]], [0])
    return Truth(tuple(names), truth), detections
