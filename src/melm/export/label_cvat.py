"""Labels for CVAT, where people check and correct them: its own XML, "CVAT for images 1.1"."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from melm.detect.detections import Detections
from melm.detect.labels import LabelledImage
from melm.detect.lines import exact
from melm.export.export_folder import subfolder
from melm.export.export_settings import ExportSettings
from melm.export.image_files import image_name
from melm.export.text_files import whole_text
from melm.export.xml_text import attribute, element, require_xml

CONFIDENCE = {"name": "confidence", "input_type": "text", "default_value": ""}


def write_label_cvat(
    labels: Iterable[LabelledImage], names: Sequence[str], folder: Path, settings: ExportSettings
) -> Path:
    """`annotations.xml` to upload to a task, and `labels.json` to paste into the raw view of its labels; `images` to make the
    task of, if they are placed.

    CVAT finds the image of an annotation by its name in the task, the path under the folder from which the task was made. An
    image that it does not find by name it takes by number, so the names must be right. It turns photos by EXIF, and the boxes
    are those of the upright image. `confidence` is shown where the task's labels have such an attribute.
    """
    require_xml("class", names)
    path = folder / "annotations.xml"
    images = subfolder(folder, "images") if settings.images != "none" else folder
    with whole_text(folder / "labels.json") as file:
        attributes = [{**CONFIDENCE, "mutable": False, "values": []}]
        file.write(json.dumps([{"name": name, "attributes": attributes} for name in names], indent=1) + "\n")
    with whole_text(path) as file:
        file.write(cvat_head(names))
        for number, image in enumerate(labels):
            file.write(cvat_image(number, image_name(image, images, settings), image.found))
        file.write("</annotations>\n")
    return path


def cvat_head(names: Sequence[str]) -> str:
    """The version, and the labels with what may be said of each."""
    about = "".join(element(key, value) for key, value in {**CONFIDENCE, "mutable": "False", "values": ""}.items())
    attributes = f"<attributes><attribute>{about}</attribute></attributes>"
    labels = "".join(f"    <label>{element('name', name)}{attributes}</label>\n" for name in names)
    task = f"{element('name', 'labels by melm')}{element('mode', 'annotation')}<labels>\n{labels}    </labels>"
    meta = f"<meta><task>{task}</task></meta>"
    return f'<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  {element("version", "1.1")}\n  {meta}\n'


def cvat_image(number: int, file_name: str, found: Detections) -> str:
    """One image and its boxes, which end where ours end."""
    require_xml("file name", [file_name])
    limit = np.array([found.width, found.height] * 2, np.float32)
    boxes = exact(np.clip(found.boxes, 0, limit))
    lines = [
        f'  <image id="{number}" name={attribute(file_name)} width="{found.width}" height="{found.height}">\n',
    ]
    for name, sure, (x1, y1, x2, y2) in zip(found.class_names(), exact(found.scores), boxes, strict=True):
        corners = f'xtl="{x1}" ytl="{y1}" xbr="{x2}" ybr="{y2}"'
        lines.append(
            f'    <box label={attribute(name)} source="auto" occluded="0" {corners} z_order="0">'
            f'<attribute name="confidence">{sure}</attribute></box>\n'
        )
    return "".join([*lines, "  </image>\n"])
