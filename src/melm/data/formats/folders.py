"""A folder per class: data/cat/1.jpg, data/dog/2.jpg; the same picture in two folders is one image with two tags."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from melm.data.formats.listing import (
    Entry,
    Listing,
    Source,
    choose_split,
    image_id,
    split_folders,
    subfolders,
    walk_images,
)
from melm.data.images import ImageError, content_key, is_image, read_bytes
from melm.data.records import DataError, Problem

NO_CLASSES = ("images", "jpegimages", "labels", "annotations", "imagesets")


def looks_like(path: Path) -> bool:
    return path.is_dir() and any(next(walk_images(folder, []), None) for folder in subfolders(path))


def read(source: Source, boxes: bool) -> Listing:
    root = source.path
    splits = _splits(root, source.split)
    split = choose_split(source, splits, root) if splits or source.split else None
    below = root / split if split else root
    listing = Listing(root, tuple(folder.name for folder in subfolders(below)), [], split, splits)
    for name in listing.classes:
        if name.lower() in NO_CLASSES:
            message = f"{name!r} is taken as a class; is the data in another format (--format)?"
            listing.problems.append(Problem("error", "folder that is hardly a class", str(below / name), message))
    if not listing.classes:
        raise DataError(f"{below}: no folders in it; a folder per class was expected")
    tagged = [(image, folder.name) for folder in subfolders(below) for image in walk_images(folder, listing.problems)]
    for path in sorted(p for p in below.iterdir() if is_image(p) and p.is_file()):
        listing.problems.append(
            Problem(
                "warning",
                "image without tags",
                str(path),
                "left out: it lies beside the class folders, in none of them",
            )
        )
    same = _same_pictures([image for image, _ in tagged])
    groups: dict[Path, list[tuple[Path, str]]] = defaultdict(list)
    for image, name in tagged:
        first = same.get(image, image)
        twice_in_one_class = first != image and name in {n for _, n in groups[first]}
        groups[image if twice_in_one_class else first].append((image, name))
    for first, members in groups.items():
        names = tuple(sorted({name for _, name in members}))
        if len(members) > 1:
            others = ", ".join(str(image) for image, _ in members[1:])
            listing.problems.append(
                Problem(
                    "note",
                    "same picture in several classes",
                    str(first),
                    f"also at {others}: one image with tags {', '.join(names)}",
                )
            )
        listing.entries.append(Entry(image_id(root, first), first, names))
    return listing


def _splits(root: Path, asked: str | None) -> tuple[str, ...]:
    names = split_folders(root, asked)
    return names if all(subfolders(root / name) for name in names) else ()


def _same_pictures(images: list[Path]) -> dict[Path, Path]:
    """Each image -> the first image with the same bytes. Only files of equal size are read."""
    by_size: dict[int, list[Path]] = defaultdict(list)
    for image in images:
        try:
            by_size[image.stat().st_size].append(image)
        except OSError:
            continue  # a dangling link: `check` and reading name it
    first: dict[Path, Path] = {}
    for alike in by_size.values():
        if len(alike) < 2:
            continue
        by_content: dict[str, Path] = {}
        for image in alike:
            try:
                first[image] = by_content.setdefault(content_key(read_bytes(image)), image)
            except ImageError:
                continue
    return first
