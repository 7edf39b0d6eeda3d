"""ILSVRC 2013 detection: train (a folder per synset), val, val1 and val2, in the layout of 2013 or of later years."""

from __future__ import annotations

from pathlib import Path

import scipy.io

from melm.data.formats.listing import (
    Entry,
    Listing,
    Object,
    Source,
    choose_split,
    classes_of,
    image_id,
    inside,
    read_text,
    tags_of,
    walk_images,
    with_ending,
)
from melm.data.formats.voc_xml import VocXml, read_voc_xml
from melm.data.records import DataError, Problem

# Where images, annotations and lists of a split lie: in 2013's own archives, and under ILSVRC/ as later years packed them.
IMAGES = {"train": ("ILSVRC2013_DET_train", "Data/DET/train"), "val": ("ILSVRC2013_DET_val", "Data/DET/val")}
XML = {
    "train": ("ILSVRC2013_DET_bbox_train", "Annotations/DET/train"),
    "val": ("ILSVRC2013_DET_bbox_val", "Annotations/DET/val"),
}
LISTS = (
    "ILSVRC2013_devkit/data/det_lists",
    "devkit/data/det_lists",
    "data/det_lists",
    "ImageSets/DET",
    "det_lists",
    ".",
)
NAMES = ("ILSVRC2013_devkit/data", "devkit/data", "data", ".")


def looks_like(path: Path) -> bool:
    return path.is_dir() and any(_first(path, IMAGES[part]) for part in IMAGES)


def read(source: Source, boxes: bool) -> Listing:
    root = source.path
    splits = _splits(root)
    split = choose_split(source, splits, root)
    part = "train" if split.startswith("train") else "val"
    images = source.images or _first(root, IMAGES[part])
    if images is None:
        raise DataError(f"{root}: no images of {part} ({' or '.join(IMAGES[part])}); name their folder with --images")
    names = _names(root)
    listing = Listing(images, (), [], split, splits)
    given = _train_lists(root) if part == "train" else {}
    annotations = _first(root, XML[part])
    for id in _ids(root, split, images, listing.problems):
        path = with_ending(inside(images, id))
        xml_path = annotations / f"{id}.xml" if annotations else None
        xml = VocXml(None, ())
        if xml_path and xml_path.is_file():
            try:
                xml = read_voc_xml(xml_path, boxes, first_pixel=0)
            except DataError as error:
                listing.problems.append(Problem("error", "broken annotation", str(xml_path), str(error)))
                continue
        objects = tuple(Object(names.get(o.name, o.name), o.box, o.difficult) for o in xml.objects)
        tags, unknown = tags_of(objects)
        if part == "train":
            tags, unknown = _train_tags(id, tags, given, names)
        listing.entries.append(Entry(id, path, tags, unknown, objects if boxes else (), xml.size))
    occurring = classes_of(listing.entries)
    listing.classes = tuple(names.values()) if set(occurring) <= set(names.values()) else occurring
    return listing


def _first(root: Path, places: tuple[str, ...]) -> Path | None:
    return next((root / place for place in places if (root / place).is_dir()), None)


def _splits(root: Path) -> tuple[str, ...]:
    found = [part for part in IMAGES if _first(root, IMAGES[part])]
    lists = [name for name in ("val1", "val2") if _list(root, name)]
    return (*found, *lists)


def _list(root: Path, name: str) -> Path | None:
    return next((root / place / f"{name}.txt" for place in LISTS if (root / place / f"{name}.txt").is_file()), None)


def _ids(root: Path, split: str, images: Path, problems: list[Problem]) -> list[str]:
    listed = _list(root, split)
    if listed is None:
        return [image_id(images, path) for path in walk_images(images, problems)]
    return [words[0] for words in _lines(listed)]


def _names(root: Path) -> dict[str, str]:
    """Synset -> English name, in the challenge's order; empty where the development kit is not there."""
    for place in NAMES:
        text, mat = root / place / "map_det.txt", root / place / "meta_det.mat"
        if text.is_file():
            return _names_from_text(text)
        if mat.is_file():
            return _names_from_mat(mat)
    return {}


def _names_from_text(path: Path) -> dict[str, str]:
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        words = line.split(maxsplit=2)
        if words and (len(words) < 3 or not words[1].isdecimal()):
            raise DataError(f"{path}, line {number}: {line.strip()!r} is not a synset, a number and a name")
        if words:
            rows.append((int(words[1]), words[0], words[2].strip()))
    return {synset: name for _, synset, name in sorted(rows)}


def _names_from_mat(path: Path) -> dict[str, str]:
    try:
        synsets = scipy.io.loadmat(path, squeeze_me=True)["synsets"]
        rows = [(int(s["ILSVRC2013_DET_ID"]), str(s["WNID"]), str(s["name"])) for s in synsets.ravel()]
    except Exception as error:  # scipy's reader raises many things for a file that is cut or another
        raise DataError(f"{path}: not the development kit's meta_det.mat ({error})") from None
    return {synset: name for number, synset, name in sorted(rows) if number <= 200}


def _train_lists(root: Path) -> dict[int, dict[str, int]]:
    """Class number -> image -> 1 (there), -1 (absent) or 0 (perhaps), from either kind of lists the challenge gave out."""
    given: dict[int, dict[str, int]] = {}
    for number in range(1, 201):
        for stem, value in ((f"train_pos_{number}", 1), (f"train_part_{number}", 0), (f"train_neg_{number}", -1)):
            for words in _lines(_list(root, stem)):
                given.setdefault(number, {})[words[0]] = value
        path = _list(root, f"train_{number}")
        for words in _lines(path):
            if words[1:] not in (["1"], ["0"], ["-1"], []):
                raise DataError(f"{path}: {' '.join(words)!r} is not an image followed by 1, -1 or 0")
            given.setdefault(number, {})[words[0]] = int(words[1]) if words[1:] else 1
    return given


def _lines(path: Path | None) -> list[list[str]]:
    return [line.split() for line in read_text(path).splitlines() if line.strip()] if path else []


def _train_tags(
    id: str, boxed: tuple[str, ...], given: dict[int, dict[str, int]], names: dict[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Training images were searched for some classes only: what no list says of an image is unknown, not absent."""
    synset = next((part for part in id.split("/") if part.startswith("n") and part[1:].isdigit()), None)
    tags = set(boxed) | ({names.get(synset, synset)} if synset else set())
    if not given or not names:
        return tuple(sorted(tags)), ()
    in_order = list(names.values())
    value = {in_order[n - 1]: images.get(id) for n, images in given.items() if n <= len(in_order)}
    tags |= {name for name, v in value.items() if v == 1}
    absent = {name for name, v in value.items() if v == -1}
    return tuple(sorted(tags)), tuple(sorted(set(in_order) - tags - absent))
