"""Labelled images for tests of exports, with names that break what can be broken."""

from pathlib import Path

import numpy as np

from melm.detect.detections import Detections
from melm.detect.labels import LabelledImage
from writers import save_image

NAMES = ("cat", 'dog, "big" & <wild>', "猫 科", "potted plant", "it's 50%; a|b")
SIZE = (60, 40)


def labelled(id, path, boxes=(), scores=(), classes=(), best=None, names=NAMES, size=SIZE):
    """One image; tags are the classes of its boxes, and a class's first box is the best of it."""
    arrays = np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(classes, np.intp)
    if best is None:
        best = [k not in classes[:i] for i, k in enumerate(classes)]
    tags = tuple(dict.fromkeys(names[k] for k in classes))
    return LabelledImage(id, Path(path), tags, Detections(*arrays, tuple(names), *size), np.array(best, bool))


def images_with_labels(root):
    """Files in `root` and their labels: ids with folders and blanks, one file name in two folders, an image without boxes,
    boxes at the edges, thinner than a pixel and over the edge by rounding."""
    images = [
        labelled("b/one", root / "b/one.png", [[0, 0, 10, 20], [12.25, 3.5, 48.3, 9]], [0.2, 0.9], [0, 2]),
        labelled("a/one", root / "a/one.jpg", [[0, 0, 60, 40]], [0.5], [1]),
        labelled("my photo (1)", root / "my photo (1).JPG", [[59.6, 39.7, 60.000004, 40]], [1e-7], [4]),
        labelled(
            "été & 猫",
            root / "été & 猫.png",
            [[1, 2, 3, 4], [20, 20, 50.5, 39], [1, 1, 9, 9]],
            [1, 0.6, 0.6],
            [3, 3, 0],
        ),
        labelled("b/nothing", root / "b/nothing.png"),
    ]
    for image in images:
        save_image(image.path, SIZE, seed=len(image.id))
    return images


def tree(folder):
    """Everything below a folder: the text of files, where links lead; what a killed writer left does not count."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.name.endswith(".tmp") or path.is_dir():
            continue
        found[path.relative_to(folder).as_posix()] = path.readlink() if path.is_symlink() else path.read_bytes()
    return found
