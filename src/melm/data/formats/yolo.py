"""YOLO: a data.yaml that names the classes and the image folders, and a text file of boxes per image under labels/."""

from __future__ import annotations

import math
from os.path import abspath, exists, isdir
from pathlib import Path
from typing import Any

import yaml

from melm.data.formats.listing import (
    Entry,
    Listing,
    Object,
    Source,
    choose_split,
    file_inside,
    image_id,
    inside,
    is_leftover,
    read_text,
    tags_of,
    walk_images,
    with_ending,
)
from melm.data.records import DataError, Problem

SPLITS = ("train", "val", "test")


def looks_like(path: Path) -> bool:
    return path.suffix.lower() in (".yaml", ".yml") if path.is_file() else path.is_dir() and len(_yamls(path)) == 1


def read(source: Source, boxes: bool) -> Listing:
    path = source.path if source.path.is_file() else _only_yaml(source.path)
    config = _load(path)
    names = _names(config, path)
    splits = tuple(split for split in SPLITS if config.get(split))
    split = choose_split(source, splits, path)
    root = _root(config, path)
    listing = Listing(root, tuple(names.values()), [], split, splits)
    used = set()
    for image in _images(config[split], root, path, listing.problems):
        label = _label_path(image, root)
        used.add(label)
        try:
            objects = _objects(label, names, boxes)
        except DataError as error:
            listing.problems.append(Problem("error", "broken annotation", str(label), str(error)))
            continue
        tags, unknown = tags_of(objects)
        listing.entries.append(
            Entry(image_id(root, image), image, tags, unknown, objects if boxes else (), normalised=True)
        )
    listing.problems += _labels_without_image(used)
    return listing


def _labels_without_image(used: set[Path]) -> list[Problem]:
    problems = []
    for folder in sorted({label.parent for label in used if "labels" in label.parts}):
        for label in sorted(set(folder.glob("*.txt")) - used):
            image = with_ending(_swapped(label.with_suffix(""), "labels", "images"))
            if label.name != "classes.txt" and not is_leftover(label) and not image.is_file():
                problems.append(Problem("error", "missing file", str(label), "there is no image for these labels"))
    return problems


def _swapped(path: Path, old: str, new: str) -> Path:
    """The path with the last folder called `old` called `new`."""
    parts = list(path.parts)
    places = [i for i, part in enumerate(parts[:-1]) if part == old]
    if places:
        parts[places[-1]] = new
    return Path(*parts)


def _yamls(folder: Path) -> list[Path]:
    found = (
        p for p in folder.iterdir() if p.suffix.lower() in (".yaml", ".yml") and p.is_file() and not is_leftover(p)
    )
    return sorted(p for p in found if "names" in p.read_text("utf-8", "replace"))


def _only_yaml(folder: Path) -> Path:
    found = _yamls(folder)
    if len(found) != 1:
        raise DataError(f"{folder}: {len(found)} YAML files with `names` in it; name the one to read")
    return found[0]


def _load(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(read_text(path))
    except (
        yaml.YAMLError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:  # all from PyYAML
        raise DataError(f"{path}: not readable as YAML ({error})") from None
    if not isinstance(config, dict) or "names" not in config:
        raise DataError(f"{path}: not a YOLO data file: `names` is missing")
    return config


def _names(config: dict[str, Any], path: Path) -> dict[int, str]:
    names = config["names"]
    pairs = dict(enumerate(names)) if isinstance(names, list) else names
    if not pairs or not isinstance(pairs, dict) or not all(isinstance(k, int) for k in pairs):
        raise DataError(f"{path}: `names` is neither a list nor numbers with names")
    result = {k: str(pairs[k]).strip() for k in sorted(pairs)}
    if len(set(result.values())) < len(result):
        raise DataError(f"{path}: two classes have the same name")
    if "nc" in config and config["nc"] != len(result):
        raise DataError(f"{path}: nc is {config['nc']}, but {len(result)} names are given")
    return result


def _root(config: dict[str, Any], path: Path) -> Path:
    """`path:` of the file where that exists, else the file's own folder."""
    named = abspath(path.parent / str(config.get("path") or "."))
    return Path(named) if isdir(named) else path.parent  # says no to names the disk cannot hold


def _images(listed: Any, root: Path, path: Path, problems: list[Problem]) -> list[Path]:
    """A split is a folder, a text file of images, or a list of these."""
    found: list[Path] = []
    for name in listed if isinstance(listed, list) else [listed]:
        place = _place(str(name), root, path)
        if place.is_dir():
            found += walk_images(place, problems)
        else:
            for line in filter(None, map(str.strip, read_text(place).splitlines())):
                try:
                    found.append(file_inside(root, line))
                except DataError as error:
                    problems.append(Problem("error", "path outside the data", str(place), str(error)))
    return found


def _place(name: str, root: Path, path: Path) -> Path:
    tries = [root / name, root / name.removeprefix("../")]  # Roboflow writes ../train/images for train/images
    for place in tries:
        if exists(place):
            return inside(root, str(place))
    raise DataError(f"{path}: {name} is neither a folder nor a file under {root}")


def _label_path(image: Path, root: Path) -> Path:
    """images/a/1.jpg -> labels/a/1.txt, at the last folder under the root called images; else beside the image."""
    return root / _swapped(image.relative_to(root), "images", "labels").with_suffix(".txt")


def _objects(label: Path, names: dict[int, str], boxes: bool) -> tuple[Object, ...]:
    if not label.is_file():
        return ()  # nothing is there, as YOLO has it
    objects = []
    for number, line in enumerate(read_text(label).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            number_of_class, *values = (float(word) for word in words)
            index = int(number_of_class)
            if index != number_of_class:
                raise ValueError
        except (ValueError, OverflowError):
            raise DataError(f"line {number}: {line.strip()!r} is not a class number followed by numbers") from None
        if index not in names:
            raise DataError(f"line {number}: class {index}, but data.yaml names {min(names)} to {max(names)}")
        objects.append(Object(names[index], _box(values, number) if boxes else None))
    return tuple(objects)


def _box(values: list[float], number: int) -> tuple[float, float, float, float]:
    """Corners in shares of the image, from centre and size (and perhaps a confidence) or from a polygon."""
    if not all(map(math.isfinite, values)):
        raise DataError(f"line {number}: a coordinate is not a finite number")
    if len(values) in (4, 5):
        x, y, width, height = values[:4]
        return x - width / 2, y - height / 2, x + width / 2, y + height / 2
    if len(values) >= 6 and len(values) % 2 == 0:
        return min(values[::2]), min(values[1::2]), max(values[::2]), max(values[1::2])
    raise DataError(
        f"line {number}: {len(values)} numbers after the class; 4 (x y width height) or a polygon were expected"
    )
