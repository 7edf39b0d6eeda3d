"""The XML file of one image, as PASCAL VOC, labelImg and ILSVRC write it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import parse

from melm.data.formats.listing import Object
from melm.data.records import DataError


@dataclass(frozen=True, slots=True)
class VocXml:
    size: tuple[int, int] | None
    objects: tuple[Object, ...]


def read_voc_xml(path: Path, boxes: bool, first_pixel: int = 1) -> VocXml:
    """The objects of an annotation file. Coordinates name the first and the last pixel, counted from `first_pixel`."""
    try:
        tree = parse(path, forbid_dtd=True).getroot()
    except ParseError as error:
        raise DataError(f"{path}: not well-formed XML ({error})") from None
    except DefusedXmlException:
        raise DataError(
            f"{path}: has a document type or entities, which annotation files do not need and are not read"
        ) from None
    except (OSError, ValueError, LookupError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if tree is None:
        raise DataError(f"{path}: an empty XML file")
    return VocXml(_size(tree, path), tuple(_object(node, path, boxes, first_pixel) for node in tree.iter("object")))


def _size(tree: Element, path: Path) -> tuple[int, int] | None:
    node = tree.find("size")
    if node is None:
        return None
    width, height = (_number(node, key, path) for key in ("width", "height"))
    return (int(width), int(height)) if width > 0 and height > 0 else None  # some tools write 0 x 0


def _object(node: Element, path: Path, boxes: bool, first_pixel: int) -> Object:
    name = (node.findtext("name") or "").strip()
    if not name:
        raise DataError(f"{path}: an object without a name")
    difficult = (node.findtext("difficult") or "0").strip() in ("1", "true", "True")
    if not boxes:
        return Object(name, difficult=difficult)
    corners = node.find("bndbox")
    if corners is None:
        raise DataError(f"{path}: an object ({name}) without a bndbox")
    x1, y1, x2, y2 = (_number(corners, key, path) for key in ("xmin", "ymin", "xmax", "ymax"))
    return Object(name, (x1 - first_pixel, y1 - first_pixel, x2 - first_pixel + 1, y2 - first_pixel + 1), difficult)


def _number(node: Element, key: str, path: Path) -> float:
    text = (node.findtext(key) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{path}: {node.tag}/{key} is {text!r}, a number was expected")
    return value
