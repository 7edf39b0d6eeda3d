"""PASCAL VOC 2007, 2010, 2012: JPEGImages, Annotations, ImageSets/Main with a list per split and per class and split."""

from __future__ import annotations

from pathlib import Path

from melm.data.formats.listing import (
    Entry,
    Listing,
    Source,
    choose_split,
    classes_of,
    inside,
    is_leftover,
    read_text,
    tags_of,
    with_ending,
)
from melm.data.formats.voc_xml import VocXml, read_voc_xml
from melm.data.records import DataError, Problem

ALL = "all"  # the split of a folder that has no ImageSets


def looks_like(path: Path) -> bool:
    return path.is_dir() and bool(_roots(path))


def read(source: Source, boxes: bool) -> Listing:
    root = _root(source.path)
    splits = _splits(root)
    split = choose_split(source, splits, root)
    images = source.images or root / "JPEGImages"
    listing = Listing(images, (), [], split, splits)
    present = _class_lists(root, split)
    for id in _ids(root, split):
        xml_path = root / "Annotations" / f"{id}.xml"
        xml = VocXml(None, ())
        if xml_path.is_file() and (boxes or present is None):
            try:
                xml = read_voc_xml(xml_path, boxes)
            except DataError as error:
                listing.problems.append(Problem("error", "broken annotation", str(xml_path), str(error)))
                if present is None:
                    continue
        elif present is None:
            listing.problems.append(
                Problem("warning", "image without an XML file", id, "left out: its tags are not known")
            )
            continue
        tags, unknown = tags_of(xml.objects) if present is None else _from_lists(present, id, root, split)
        if boxes and xml_path.is_file() and (tags, unknown) != tags_of(xml.objects):
            message = "its objects are not what the lists of ImageSets/Main say of it; the lists are believed"
            listing.problems.append(Problem("warning", "annotation and lists disagree", str(xml_path), message))
        listing.entries.append(Entry(id, with_ending(inside(images, id)), tags, unknown, xml.objects, xml.size))
    listing.classes = classes_of(listing.entries) if present is None else tuple(present)
    return listing


def _roots(path: Path) -> list[Path]:
    """The VOC folder itself, or those of each year below a VOCdevkit."""
    below = [path, *sorted(path.glob("VOC2*")), *sorted(path.glob("VOCdevkit/VOC2*"))]
    return [
        p
        for p in below
        if (p / "ImageSets" / "Main").is_dir() or ((p / "Annotations").is_dir() and (p / "JPEGImages").is_dir())
    ]


def _root(path: Path) -> Path:
    roots = _roots(path)
    if not roots:
        raise DataError(f"{path}: not PASCAL VOC: neither ImageSets/Main nor Annotations and JPEGImages are there")
    if len(roots) > 1 and roots[0] != path:
        raise DataError(f"{path}: several years ({', '.join(r.name for r in roots)}); name one of these folders")
    return roots[0]


def _splits(root: Path) -> tuple[str, ...]:
    stems = [p.stem for p in _files(root / "ImageSets" / "Main", "*.txt")]
    if not stems:
        return (ALL,)
    return tuple(s for s in stems if not any(s.endswith(f"_{t}") for t in stems))  # not the lists per class


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if not is_leftover(path))


def _ids(root: Path, split: str) -> list[str]:
    path = root / "ImageSets" / "Main" / f"{split}.txt"
    if split == ALL and not path.is_file():
        return [p.stem for p in _files(root / "Annotations", "*.xml")]
    return [line.split()[0] for line in read_text(path).splitlines() if line.strip()]


def _class_lists(root: Path, split: str) -> dict[str, dict[str, int]] | None:
    """Class -> image -> 1 (there), -1 (absent) or 0 (only difficult ones), or None where there are no such lists."""
    main = root / "ImageSets" / "Main"
    lists = {}
    for path in _files(main, f"*_{split}.txt"):
        values = {}
        for number, line in enumerate(read_text(path).splitlines(), 1):
            words = line.split()
            if not words:
                continue
            if len(words) != 2 or words[1] not in ("1", "-1", "0"):
                raise DataError(f"{path}, line {number}: {line.strip()!r} is not an image followed by 1, -1 or 0")
            values[words[0]] = int(words[1])
        lists[path.stem.removesuffix(f"_{split}")] = values
    return lists or None


def _from_lists(
    present: dict[str, dict[str, int]], id: str, root: Path, split: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        value = {name: images[id] for name, images in present.items()}
    except KeyError:
        short = next(name for name, images in present.items() if id not in images)
        raise DataError(
            f"{root / 'ImageSets' / 'Main' / f'{short}_{split}.txt'}: image {id} of {split}.txt is missing"
        ) from None
    return tuple(n for n, v in value.items() if v == 1), tuple(n for n, v in value.items() if v == 0)
