"""labelImg folders: an XML file beside each image, in any depth of folders."""

from __future__ import annotations

from pathlib import Path

from melm.data.formats.listing import (
    Entry,
    Listing,
    Source,
    choose_split,
    classes_of,
    image_id,
    is_leftover,
    split_folders,
    tags_of,
    walk_images,
)
from melm.data.formats.voc_xml import read_voc_xml
from melm.data.records import DataError, Problem


def looks_like(path: Path) -> bool:
    return path.is_dir() and any(image.with_suffix(".xml").is_file() for image in walk_images(path, []))


def read(source: Source, boxes: bool) -> Listing:
    root = source.path
    splits = split_folders(root, source.split)
    split = choose_split(source, splits, root) if splits or source.split else None
    listing = Listing(root, (), [], split, splits)
    below = root / split if split else root
    used = set()
    for image in walk_images(below, listing.problems):
        xml_path = image.with_suffix(".xml")
        used.add(xml_path)
        if not xml_path.is_file():
            listing.problems.append(
                Problem("warning", "image without an XML file", str(image), "left out: its tags are not known")
            )
            continue
        try:
            xml = read_voc_xml(xml_path, boxes)
        except DataError as error:
            listing.problems.append(Problem("error", "broken annotation", str(xml_path), str(error)))
            continue
        tags, unknown = tags_of(xml.objects)
        listing.entries.append(Entry(image_id(root, image), image, tags, unknown, xml.objects, xml.size))
    for xml_path in sorted(path for path in set(below.rglob("*.xml")) - used if not is_leftover(path)):
        listing.problems.append(Problem("error", "missing file", str(xml_path), "there is no image beside it"))
    listing.classes = classes_of(listing.entries)
    return listing
