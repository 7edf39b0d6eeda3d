"""COCO JSON (2014 and later), as a file or as a folder with annotations/instances_SPLIT.json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from melm.data.formats.listing import (
    Entry,
    Listing,
    Object,
    Source,
    choose_split,
    file_inside,
    image_id,
    images_folder,
    tags_of,
)
from melm.data.records import DataError, Problem


def looks_like(path: Path) -> bool:
    return path.suffix.lower() == ".json" if path.is_file() else path.is_dir() and bool(_files(path))


def read(source: Source, boxes: bool) -> Listing:
    files = {_split_name(source.path): source.path} if source.path.is_file() else _files(source.path)
    if not files:
        raise DataError(f"{source.path}: no COCO JSON in it (annotations/instances_*.json or _annotations.coco.json)")
    split = choose_split(source, files, source.path)
    path = files[split]
    coco = _load(path)
    names = _categories(coco, path)
    root = _images(source, path, split, [image["file_name"] for image in coco["images"]])
    listing = Listing(root, tuple(names.values()), [], split, tuple(files))
    listing.class_numbers = {number: name for number, name in names.items() if _is_number(number)}
    objects = _objects(coco, names, path, boxes, listing.problems)
    ids: set[str] = set()
    for image in coco["images"]:
        found = objects[image["id"]]
        tags, unknown = tags_of(found)
        try:
            file = file_inside(root, image["file_name"])
        except DataError as error:
            where = f"{path}, image {image['id']}"
            listing.problems.append(Problem("error", "path outside the data", where, str(error)))
            continue
        size = (image.get("width"), image.get("height"))
        sized = size if all(isinstance(side, int) for side in size) else None
        objects_kept = tuple(found) if boxes else ()
        id = image_id(root, file)
        listing.entries.append(Entry(id, file, tags, unknown, objects_kept, sized))
        if _is_number(image["id"]) and id not in ids:  # of several images with one id, the first is kept
            listing.image_numbers[image["id"]] = id
        ids.add(id)
    return listing


def _images(source: Source, path: Path, split: str, names: list[str]) -> Path:
    """COCO's own folders beside `annotations`, and those that other tools write."""
    here, above = path.parent, path.parent.parent
    beside = [here, here / split, here / "images", above / split, above / "images" / split, above / "images", above]
    return images_folder(source, beside, names)


def _objects(
    coco: dict[str, Any], names: dict[Any, str], path: Path, boxes: bool, problems: list[Problem]
) -> dict[Any, list[Object]]:
    """Image id -> its objects."""
    objects: dict[Any, list[Object]] = {image["id"]: [] for image in coco["images"]}
    for number, annotation in enumerate(coco["annotations"]):
        where = f"{path}, annotation {annotation.get('id', f'number {number}')}"
        image, category = _id(annotation.get("image_id")), _id(annotation.get("category_id"))
        if image not in objects:
            message = f"image_id {annotation.get('image_id')!r} is not among the images"
            problems.append(Problem("error", "unknown image", where, message))
        elif category not in names:
            message = f"category_id {annotation.get('category_id')!r} is not among the categories"
            problems.append(Problem("error", "unknown class", where, message))
        else:
            box = None
            try:
                box = _box(annotation) if boxes else None
            except DataError as error:
                problems.append(Problem("error", "broken annotation", where, str(error)))  # the tag stands all the same
            objects[image].append(Object(names[category], box, crowd=bool(annotation.get("iscrowd", 0))))
    return objects


def _id(value: Any) -> int | str | None:
    """An id, which is a number or a string; None for anything else."""
    return value if isinstance(value, (int, str)) else None


def _is_number(id: Any) -> bool:
    return isinstance(id, int) and not isinstance(id, bool)


def _files(folder: Path) -> dict[str, Path]:
    """Split -> JSON file, in COCO's own layout, in Roboflow's (a file in each split's folder), or the only one here."""
    found = {_split_name(p): p for p in sorted(folder.glob("annotations/instances_*.json"))}
    if not found:
        found = {p.parent.name: p for p in sorted(folder.glob("*/_annotations.coco.json"))}
    if not found:
        here = [p for p in sorted(folder.glob("*.json")) if p.is_file() and _is_coco(p)]
        found = {_split_name(p): p for p in here}
    return found


def _is_coco(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(65536)
    return b'"images"' in start or b'"annotations"' in start or b'"categories"' in start


def _split_name(path: Path) -> str:
    return path.stem.removeprefix("instances_")


def _load(path: Path) -> dict[str, Any]:
    try:
        coco = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}); was it cut off while copying?") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    for key in ("images", "annotations", "categories"):
        rows = coco.get(key) if isinstance(coco, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{path}: not COCO: no list of objects called {key!r}")
    for number, image in enumerate(coco["images"]):
        if _id(image.get("id")) is None or not isinstance(image.get("file_name"), str):
            raise DataError(f"{path}, image number {number}: an id and a file_name were expected")
    if len({image["id"] for image in coco["images"]}) != len(coco["images"]):
        raise DataError(f"{path}: two images have the same id")
    return dict(coco)


def _categories(coco: dict[str, Any], path: Path) -> dict[Any, str]:
    """Id -> name, by id."""
    names: dict[Any, str] = {}
    for category in coco["categories"]:
        id, name = _id(category.get("id")), category.get("name")
        if id is None or not isinstance(name, str) or not name.strip():
            raise DataError(f"{path}: category {category!r} lacks an id or a name")
        if id in names or name.strip() in names.values():
            raise DataError(f"{path}: two categories have the id {id!r} or the name {name!r}")
        names[id] = name.strip()
    return dict(sorted(names.items(), key=lambda pair: (str(type(pair[0])), pair[0])))


def _box(annotation: dict[str, Any]) -> tuple[float, float, float, float]:
    values = annotation.get("bbox") or ()
    try:
        x, y, width, height = (float(value) for value in values)
        if any(isinstance(value, str) for value in values) or not all(map(math.isfinite, (x, y, width, height))):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"bbox is {values!r}, four numbers (x, y, width, height) were expected") from None
    return x, y, x + width, y + height
