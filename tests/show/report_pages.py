"""Pages for tests of the report: a run's folder and labels written by hand, and a reader of what is on a page."""

import json
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from learners import small_config
from melm.detect.detections import Detections
from melm.detect.labels import LabelledImage, LabelsFile
from melm.learn.run_folder import versions
from writers import save_image

VOID = {"meta", "img", "input", "br", "rect", "line", "circle", "polyline"}


def write_run(folder, classes, data="photos", epochs=2, steps=3, **more):
    """The folder of a run that is not finished: run.json and a log."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "config": small_config().as_dict(),
        "classes": list(classes),
        "data": {"path": str(data), "split": None, "images": 9, "limit": None},
        "data_digest": "ab12",
        "basis": None,
        "left_out": [],
        "processes": 1,
        "device": "cpu",
        "versions": versions(),
        **more,
    }
    (folder / "run.json").write_text(json.dumps(about))
    lines = []
    for epoch in range(epochs):
        figures = {"loss": 3 / (epoch + 1), "discovery": 2 / (epoch + 1), "localization": 0.5, "global_entropy": 1.5}
        figures |= {"local_entropy": 0.1, "gradient_discovery": 10.0, "gradient_localization": 0.5}
        lines += [{"epoch": epoch, "step": step, **figures} for step in range(steps)]
        lines.append({"epoch": epoch, "mean": figures, "seconds": 1.0})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def labelled(id, path, classes, boxes, size=(160, 120)):
    """An image with boxes (class, confidence, x1, y1, x2, y2); the first of a class is its best."""
    names = [box[0] for box in boxes]
    found = Detections(
        np.array([box[2:] for box in boxes], np.float32).reshape(-1, 4),
        np.array([box[1] for box in boxes], np.float32),
        np.array([classes.index(name) for name in names], np.intp),
        tuple(classes),
        *size,
    )
    best = np.array([name not in names[:i] for i, name in enumerate(names)], bool)
    return LabelledImage(id, Path(path), tuple(dict.fromkeys(names)), found, best)


def write_labels(folder, classes, images, **settings):
    with LabelsFile(folder, classes, settings, {}) as file:
        for image in images:
            file.append(image)
    return folder


def write_many(folder, count):
    """A run with so many labelled images of pure noise, the hardest to make small; and the images."""
    size, classes, random = (280, 210), ("cat", "dog"), np.random.default_rng(1)
    photos = [save_image(folder / f"{i}.png", size) for i in range(7)]
    images = []
    for i in range(count):
        boxes = [(classes[i % 2], float(random.random()), 5, 5, 90, 90)]
        images.append(labelled(f"n{i:03d}", photos[i % 7], classes, boxes, size))
    run = write_run(folder / "run", classes)
    write_labels(run / "labels", classes, images)
    return run, images


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.balanced = [], [], True

    def handle_starttag(self, tag, attributes):
        element = SimpleNamespace(tag=tag, attributes=dict(attributes), text="", inside=list(self.open))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag in VOID:  # a rect that has a title
            return
        if not self.open or self.open[-1].tag != tag:
            self.balanced = False
            return
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element.text += data


class OnPage:
    """What is on a page, by tag and class."""

    def __init__(self, path):
        self.source = Path(path).read_text(encoding="utf-8")
        reader = _Reader()
        reader.feed(self.source)
        reader.close()
        self.elements, self.balanced = reader.elements, reader.balanced and not reader.open
        self.text = " ".join(" ".join(e.text for e in self.elements if e.tag == "body").split())

    def all(self, tag, style=None, inside=None):
        return [
            element
            for element in self.elements
            if element.tag == tag
            and (style is None or style in (element.attributes.get("class") or "").split())
            and (inside is None or any(outer.attributes.get("id") == inside for outer in element.inside))
        ]

    def sections(self):
        return [element.attributes["id"] for element in self.all("section")]
