"""One module per format. Each has `looks_like(path)` and `read(source, boxes)`; `read` here finds the right one."""

from __future__ import annotations

from dataclasses import replace
from os.path import abspath
from pathlib import Path
from types import ModuleType

from melm.data.formats import coco, folders, ilsvrc, labelimg, table, voc, yolo
from melm.data.formats.listing import Entry, Listing, Object, Source
from melm.data.records import DataError, Problem
from melm.errors import UsageError, did_you_mean, one_of

# From the most particular to the least: the first that fits is taken.
FORMATS: dict[str, ModuleType] = {
    "voc": voc,
    "ilsvrc": ilsvrc,
    "yolo": yolo,
    "coco": coco,
    "csv": table,
    "labelimg": labelimg,
    "folders": folders,
}

__all__ = ["FORMATS", "Entry", "Listing", "Object", "Source", "find_format", "read"]


def find_format(source: Source) -> str:
    """The name of the format: the one that was forced, or the first that fits what is at the path."""
    if not source.path.exists():
        raise DataError(f"{source.path}: there is no such file or folder")
    if source.format is not None:
        return one_of("format", source.format, FORMATS)
    for name, module in FORMATS.items():
        if module.looks_like(source.path):
            return name
    raise DataError(
        f"{source.path}: no data set that melm knows. "
        "It may be a folder per class (data/cat/1.jpg), a CSV with columns file and tags, "
        "PASCAL VOC, COCO JSON, YOLO (data.yaml), images with labelImg's XML files beside them, or ILSVRC 2013 detection"
    )


def read(source: Source, boxes: bool) -> Listing:
    """A data set's listing. Coordinates are not even parsed unless `boxes` are asked for."""
    format = find_format(source)
    if source.images is not None and format in ("folders", "labelimg", "yolo"):
        raise UsageError(f"--images does not go with the format {format}, which says itself where its images are")
    if source.images is not None and not source.images.is_dir():
        raise UsageError(f"--images {source.images}: there is no such folder")
    images = Path(abspath(source.images)) if source.images else None  # by name alone: links stay links
    source = replace(source, path=Path(abspath(source.path)), images=images)
    listing: Listing = FORMATS[format].read(source, boxes)
    _drop_second_of_one_id(listing)
    if source.background is not None:
        _leave_out_background(listing, source.background)
    if source.classes is not None:
        _keep_classes(listing, source.classes)
    if source.limit is not None:
        _keep_some(listing, source.limit)
    return listing


def _drop_second_of_one_id(listing: Listing) -> None:
    first: dict[str, Entry] = {}
    for entry in listing.entries:
        if entry.id in first and replace(entry, objects=()) == replace(first[entry.id], objects=()):
            listing.problems.append(Problem("warning", "image listed twice", str(entry.path), "counted once"))
        elif entry.id in first:
            message = f"left out: {first[entry.id].path} has the same id {entry.id!r} (the path without its ending); rename one"
            listing.problems.append(Problem("error", "two images with one id", str(entry.path), message))
        else:
            first[entry.id] = entry
    listing.entries = list(first.values())


def _leave_out_background(listing: Listing, name: str) -> None:
    """The images of this class are known to show none of the others: they keep no tag."""
    if name not in listing.classes:
        raise UsageError(f"--background {name}: there is no such class.{did_you_mean(name, listing.classes)}")
    _restrict(listing, tuple(c for c in listing.classes if c != name))


def _keep_classes(listing: Listing, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in listing.classes:
            raise UsageError(f"--classes: there is no class {name!r} in the data.{did_you_mean(name, listing.classes)}")
    _restrict(listing, names)


def _keep_some(listing: Listing, most: int) -> None:
    """So many images, spread evenly over the list; the classes stay those of the whole."""
    if most < 1:
        raise UsageError(f"--limit is {most}; at least 1 image was expected")
    entries = listing.entries
    if len(entries) > most:
        listing.entries = [entries[i * len(entries) // most] for i in range(most)]


def _restrict(listing: Listing, names: tuple[str, ...]) -> None:
    kept = set(names)
    listing.classes = names
    listing.entries = [
        replace(
            entry,
            tags=tuple(t for t in entry.tags if t in kept),
            unknown=tuple(t for t in entry.unknown if t in kept),
            objects=tuple(o for o in entry.objects if o.name in kept),
        )
        for entry in listing.entries
    ]
