"""COCO JSON (2014 and later), as a file or as a folder with annotations/instances_SPLIT.json."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from melm.data.formats.listing import Entry, Listing, Object, Source, choose_split, image_id, images_folder, inside, tags_of
from melm.data.records import DataError, Problem


def looks_like(path: Path) -> bool:
    return path.suffix.lower() == ".json" and path.is_file() or path.is_dir() and bool(_files(path))


def read(source: Source, boxes: bool) -> Listing:
    files = {_split_name(source.path): source.path} if source.path.is_file() else _files(source.path)
    if not files:
        raise DataError(f"{source.path}: no COCO JSON in it (annotations/instances_*.json or _annotations.coco.json)")
    split = choose_split(source, files, source.path)
    path = files[split]
    coco = _load(path)
    names = _categories(coco, path)
    listed = [image.get("file_name") for image in coco["images"]]
    here = path.absolute().parent
    root = images_folder(
        source,
        [here, here / split, here / "images", here.parent / split, here.parent / "images" / split, here.parent / "images", here.parent],
        [name for name in listed if isinstance(name, str)],
    )
    objects: dict[Any, list[Object]] = defaultdict(list)
    problems: list[Problem] = []
    known = {image.get("id") for image in coco["images"]}
    for number, annotation in enumerate(coco["annotations"]):
        where = f"{path}, annotation {annotation.get('id', f'number {number}')}"
        if annotation.get("image_id") not in known:
            problems.append(Problem("error", "unknown image", where, f"image_id {annotation.get('image_id')!r} is not among the images"))
        elif annotation.get("category_id") not in names:
            problems.append(
                Problem("error", "unknown class", where, f"category_id {annotation.get('category_id')!r} is not among the categories")
            )
        else:
            crowd = bool(annotation.get("iscrowd", 0))
            box = _box(annotation, where) if boxes else None
            objects[annotation["image_id"]].append(Object(names[annotation["category_id"]], box, crowd=crowd))
    entries = []
    for number, image in enumerate(coco["images"]):
        if not isinstance(image.get("file_name"), str):
            raise DataError(f"{path}, image number {number}: no file_name")
        found = objects[image["id"]]
        tags, unknown = tags_of(found)
        try:
            file = inside(root, image["file_name"])
        except DataError as error:
            problems.append(Problem("error", "path outside the data", f"{path}, image {image['id']}", str(error)))
            continue
        size = (image["width"], image["height"]) if isinstance(image.get("width"), int) and isinstance(image.get("height"), int) else None
        entries.append(Entry(image_id(root, file), file, tags, unknown, tuple(found) if boxes else (), size))
    return Listing(root, tuple(names.values()), entries, split, tuple(files), problems)


def _files(folder: Path) -> dict[str, Path]:
    """Split -> JSON file, in COCO's own layout, in Roboflow's (a file in each split's folder), or the only one here."""
    found = {_split_name(p): p for p in sorted(folder.glob("annotations/instances_*.json"))}
    if not found:
        found = {p.parent.name: p for p in sorted(folder.glob("*/_annotations.coco.json"))}
    if not found:
        here = [p for p in sorted(folder.glob("*.json")) if _is_coco(p)]
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
    if len({image.get("id") for image in coco["images"]}) != len(coco["images"]):
        raise DataError(f"{path}: two images have the same id")
    return coco


def _categories(coco: dict[str, Any], path: Path) -> dict[Any, str]:
    """Id -> name, by id."""
    names = {}
    for category in coco["categories"]:
        if "id" not in category or not isinstance(category.get("name"), str) or not category["name"].strip():
            raise DataError(f"{path}: category {category!r} lacks an id or a name")
        names[category["id"]] = category["name"].strip()
    twice = sorted({name for name in names.values() if list(names.values()).count(name) > 1})
    if twice:
        raise DataError(f"{path}: two categories are called {twice[0]!r}")
    return dict(sorted(names.items(), key=lambda pair: (str(type(pair[0])), pair[0])))


def _box(annotation: dict[str, Any], where: str) -> tuple[float, float, float, float]:
    values = annotation.get("bbox")
    if not (isinstance(values, list) and len(values) == 4 and all(isinstance(v, (int, float)) and math.isfinite(v) for v in values)):
        raise DataError(f"{where}: bbox is {values!r}, four numbers (x, y, width, height) were expected")
    x, y, width, height = map(float, values)
    return x, y, x + width, y + height
