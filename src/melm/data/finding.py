"""Images named on the command line: files, folders of images, or data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from melm.data.formats import find_format, read
from melm.data.formats.listing import Source, walk_images
from melm.data.images import is_image
from melm.data.records import DataError, Problem, TaggedImage

PARTICULAR = ("voc", "ilsvrc", "yolo", "coco", "csv")  # a folder of images could be mistaken for any other


def find_images(paths: Sequence[Path], format: str | None = None, split: str | None = None) -> list[TaggedImage]:
    """The images at some paths, each once by name; the tags of data sets come along, all others have none.

    The id of an image is that of its data set, else its path within the folder that was named, else its name; always without
    the ending. With several folders, the folder's name comes first.
    """
    found: dict[str, TaggedImage] = {}
    for path in paths:
        for image in _at(path, format, split, len(paths) > 1):
            before = found.setdefault(image.id, image)
            if before.path != image.path:
                raise DataError(f"{image.path}: has the same name as {before.path}; name their folders one at a time")
    return list(found.values())


def _at(path: Path, format: str | None, split: str | None, several: bool) -> list[TaggedImage]:
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.is_file() and is_image(path):
        return [TaggedImage(path.stem, path.absolute(), ())]
    source = Source(path, format, split)
    if format is not None or split is not None or path.is_file() or _is_particular(source):
        entries = read(source, boxes=False).entries
        return [TaggedImage(e.id, e.path, e.tags, e.unknown) for e in entries]
    problems: list[Problem] = []
    root = path.absolute()
    images = [
        TaggedImage(image.relative_to(root).with_suffix("").as_posix(), image, ())
        for image in walk_images(root, problems)
    ]
    if not images:
        raise DataError(f"{path}: no images in it")
    return [replace(image, id=f"{root.name}/{image.id}") for image in images] if several else images


def _is_particular(source: Source) -> bool:
    try:
        return find_format(source) in PARTICULAR
    except DataError:
        return False
