"""Labels as PASCAL VOC, for the devkit, labelImg and many others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from melm.detect.detections import Detections
from melm.detect.labels import LabelledImage
from melm.detect.lines import exact
from melm.export.export_folder import require_count, subfolder
from melm.export.export_settings import ExportSettings
from melm.export.image_files import flat_name, image_name
from melm.export.text_files import as_melm_error, whole_text, write_small
from melm.export.xml_text import element, require_xml

XML, IMAGES, LISTS = "Annotations", "JPEGImages", "ImageSets/Main"


def write_label_voc(
    labels: Iterable[LabelledImage], names: Sequence[str], folder: Path, settings: ExportSettings
) -> Path:
    """`Annotations` with an XML file per image, `JPEGImages` if images are placed, and `ImageSets/Main/trainval.txt`, in which
    the most doubtful images come first, written last. The folder is what readers are given.

    Files are named after the ids; `a/b` becomes a name without a folder, since VOC knows none. Images keep their endings, PNG
    too. Sizes and boxes are those of the upright image, as labelImg shows it and OpenCV reads it; the devkit shows photos as
    they are stored.
    """
    require_xml("class", names)
    annotations, lists = subfolder(folder, XML), subfolder(folder, LISTS)
    images = subfolder(folder, IMAGES) if settings.images != "none" else folder
    count = 0
    with whole_text(lists / "trainval.txt") as listed:
        for image in labels:
            count += 1
            name = flat_name(image.id)
            text = voc_xml(image_name(image, images, settings), image.found)
            with as_melm_error(annotations):
                write_small(annotations / f"{name}.xml", text)
            listed.write(f"{name}\n")
        require_count(folder, [XML], (".xml",), count)
    return folder


def voc_xml(file_name: str, found: Detections) -> str:
    """The annotation of one image. `score` is melm's own; readers look for elements by name, and pass over it."""
    require_xml("file name", [file_name])
    size = element("width", found.width) + element("height", found.height) + element("depth", 3)
    lines = [element("folder", IMAGES), element("filename", file_name)]
    lines += [
        f"<source>{element('database', 'labels by melm')}</source>",
        f"<size>{size}</size>",
        element("segmented", 0),
    ]
    for name, sure, box in zip(found.class_names(), exact(found.scores), pixels(found).tolist(), strict=True):
        corners = "".join(map(element, ("xmin", "ymin", "xmax", "ymax"), box))
        parts = [
            element("name", name),
            element("pose", "Unspecified"),
            element("truncated", 0),
            element("difficult", 0),
        ]
        lines.append(f"<object>{''.join(parts)}{element('score', sure)}<bndbox>{corners}</bndbox></object>")
    return "<annotation>\n" + "".join(f"  {line}\n" for line in lines) + "</annotation>\n"


def pixels(found: Detections) -> NDArray[np.intp]:
    """(M, 4) the first and the last pixel of each box, counted from 1: a box from 0 to 10, where it ends, is 1 to 10. Of a box
    thinner than a pixel, the pixel where it lies."""
    size = np.array([found.width, found.height])
    corners = found.boxes.astype(np.float64).reshape(-1, 2, 2)
    first, last = np.floor(corners + 0.5).astype(np.intp).transpose(1, 0, 2)
    thin, middle = last <= first, np.floor(corners.mean(axis=1)).astype(np.intp)
    first = np.clip(np.where(thin, middle, first), 0, size - 1)
    last = np.clip(np.where(thin, middle + 1, last), first + 1, size)
    return np.concatenate([first + 1, last], axis=1)
