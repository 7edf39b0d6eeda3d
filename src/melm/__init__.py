"""Object detectors learned from image tags alone: the Min-Entropy Latent Model (MELM).

import melm

melm.train("photos/", out="runs/birds")
found = melm.load("runs/birds")("photo.jpg")  # Detections: boxes, scores, classes
melm.label("runs/birds", "photos/", to=["yolo"])  # the boxes of the tags, for another tool
melm.evaluate("runs/birds", "photos-with-boxes/").summary()
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from melm.data import Source
    from melm.detect.detections import Detections
    from melm.detect.detector import DetectSettings, load
    from melm.detect.ensemble import Ensemble
    from melm.learn.presets import learn_config
    from melm.learn.train import train
    from melm.measure.subjects import measure as evaluate
    from melm.show.report import write_report as report
    from melm.tags_to_boxes import label

try:
    __version__ = version("melm")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "DetectSettings",
    "Detections",
    "Ensemble",
    "Source",
    "evaluate",
    "label",
    "learn_config",
    "load",
    "report",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for: PyTorch takes seconds, and `melm --help` has no need of it."""
    if name in ("load", "DetectSettings"):
        from melm.detect import detector

        return getattr(detector, name)
    if name == "Ensemble":
        from melm.detect.ensemble import Ensemble

        return Ensemble
    if name == "train":
        from melm.learn.train import train

        return train
    if name == "evaluate":
        from melm.measure.subjects import measure

        return measure
    if name == "label":
        from melm.tags_to_boxes import label

        return label
    if name == "report":
        from melm.show.report import write_report

        return write_report
    if name == "learn_config":
        from melm.learn.presets import learn_config

        return learn_config
    if name == "Detections":
        from melm.detect.detections import Detections

        return Detections
    if name == "Source":
        from melm.data import Source

        return Source
    raise AttributeError(f"module 'melm' has no attribute {name!r}")
