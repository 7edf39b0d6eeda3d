"""One image's detections as a line of JSON, and back without the loss of a bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melm.detect.detections import Detections
from melm.errors import MelmError, damaged

Result = tuple[str, str, Detections]  # the image's id, its file, and what was found in it


def exact(values: NDArray[np.float32]) -> list[Any]:
    """float32 numbers as Python's, nested like the array, each with the fewest digits that give the same float32 again."""
    values = np.asarray(values, np.float32)
    short = np.array([float(str(v)) for v in values.ravel()], np.float64).reshape(values.shape)
    # Rounded twice, to a double and then to a float, a few shortest numbers (7.038531e-26) miss by one bit.
    result: list[Any] = np.where(short.astype(np.float32) == values, short, values.astype(np.float64)).tolist()
    return result


def line_of(id: str, file: str, detections: Detections) -> bytes:
    """One image as a line, with its end."""
    if not (np.isfinite(detections.boxes).all() and np.isfinite(detections.scores).all()):
        raise MelmError(f"{file}: a box or a score that is not a finite number came out of the detector")
    record = {
        "id": id,
        "file": file,
        "width": detections.width,
        "height": detections.height,
        "boxes": exact(detections.boxes),
        "scores": exact(detections.scores),
        "classes": detections.class_names(),
    }
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"  # ASCII: any file name survives


def parsed(path: Path, number: int, line: bytes, names: tuple[str, ...]) -> Result:
    """The image of a line; `path` and `number` are for the words of an error."""
    try:
        record = json.loads(line)
        id, file, width, height = (record[key] for key in ("id", "file", "width", "height"))
        if not (isinstance(id, str) and isinstance(file, str) and isinstance(width, int) and isinstance(height, int)):
            raise ValueError("id and file should be text, width and height whole numbers")
        strange = next((name for name in record["classes"] if name not in names), None)
        if strange is not None:
            raise ValueError(f"the class {strange!r} is not among the detector's")
        classes = np.array([names.index(name) for name in record["classes"]], np.intp)
        boxes, scores = _numbers(record["boxes"]), _numbers(record["scores"])
        return id, file, Detections(boxes if len(boxes) else boxes.reshape(0, 4), scores, classes, names, width, height)
    except KeyError as error:
        raise damaged(path, number, f"{error.args[0]!r} is missing") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged(path, number, str(error)) from None


def _numbers(values: Any) -> NDArray[np.float32]:
    array = np.array(values)
    if array.dtype.kind not in "fiu":
        raise ValueError("boxes and scores should be numbers")
    with np.errstate(over="ignore"):
        result = array.astype(np.float32)
    if not np.isfinite(result).all():
        raise ValueError("boxes and scores should be finite numbers")
    return result
