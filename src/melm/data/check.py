"""`melm check`: what is in a data set, and what is wrong with it, in plain words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unicodedata import normalize

import numpy as np

from melm.data.formats import find_format, read
from melm.data.formats.listing import Entry, Listing, Source
from melm.data.images import ImageError, ImageInfo, MissingImage, content_key, decode_image, read_bytes
from melm.data.placing import placed_boxes
from melm.data.records import DataError, Problem, Severity
from melm.workers import for_each

OUTSIDE = 1.0  # pixels a box may reach over the edge: tools count pixels differently
TINY = 32  # pixels: the side under which nothing can be found
BACKGROUND_NAMES = {"background", "_background", "none", "nothing", "negative", "negatives", "empty", "other"}
UNUSABLE = ("missing file", "unreadable image")  # problems of single images, which learning can do without
ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Look:
    """What opening one image showed."""

    key: str | None = None
    info: ImageInfo | None = None
    brightest: int = 0
    error: str | None = None
    missing: bool = False


@dataclass(frozen=True)
class CheckReport:
    path: str
    format: str
    split: str | None
    splits: tuple[str, ...]
    images: int
    usable: int
    classes: dict[str, int]
    unknown: dict[str, int]
    tags_per_image: dict[int, int]
    boxes: int
    sizes: dict[str, list[int]]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing here would spoil training."""
        return not any(problem.severity == "error" for problem in self.problems)

    def as_dict(self) -> dict[str, object]:
        return {"ok": self.ok, **asdict(self)}


def check(source: Source, workers: int, advance: Callable[[int], None] = lambda total: None) -> CheckReport:
    """Reads the listing and opens every image, calling `advance(number of images)` after each."""
    format = find_format(source)
    listing = read(source, boxes=True)
    if not listing.entries and not listing.problems:
        raise DataError(f"{source.path}: no images in it")
    looks: dict[Path, Look] = {}
    for path, look in for_each(look_at, [entry.path for entry in listing.entries], workers):
        looks[path] = look
        advance(len(listing.entries))
    usable = [entry for entry in listing.entries if looks[entry.path].error is None]
    problems = [
        *listing.problems,
        *_image_problems(listing.entries, looks, source.background is not None),
        *_duplicates(usable, looks),
        *_class_problems(listing, usable),
        *_box_problems(usable, looks, set(listing.classes)),
    ]
    if not usable:
        problems.append(Problem("error", "no usable image", str(source.path), "there is nothing to learn from"))
    infos = [info for entry in usable if (info := looks[entry.path].info)]
    return CheckReport(
        path=str(source.path),
        format=format,
        split=listing.split,
        splits=listing.splits,
        images=len(listing.entries),
        usable=len(usable),
        classes=_count(listing.classes, (tag for entry in usable for tag in entry.tags)),
        unknown={
            k: n for k, n in _count(listing.classes, (tag for entry in usable for tag in entry.unknown)).items() if n
        },
        tags_per_image=dict(sorted(Counter(len(entry.tags) for entry in usable).items())),
        boxes=sum(len(entry.objects) for entry in usable),
        sizes=_sizes(infos),
        problems=tuple(sorted(problems, key=lambda p: (ORDER[p.severity], p.kind, p.file))),
    )


def look_at(path: Path) -> Look:
    """Decodes an image whole: only that shows whether its end is there."""
    try:
        data = read_bytes(path)
        pixels, info = decode_image(data, path)
    except ImageError as error:
        return Look(error=str(error).removeprefix(f"{path}: "), missing=isinstance(error, MissingImage))
    return Look(content_key(data), info, int(pixels.max()))


def _image_problems(entries: Sequence[Entry], looks: dict[Path, Look], background: bool) -> list[Problem]:
    problems = []
    for entry in entries:
        look, file = looks[entry.path], str(entry.path)
        if look.error is not None:
            kind = "missing file" if look.missing else "unreadable image"
            problems.append(Problem("error", kind, file, look.error))
            continue
        assert look.info is not None
        if min(look.info.width, look.info.height) < TINY:
            problems.append(Problem("warning", "tiny image", file, f"{look.info.width} x {look.info.height} pixels"))
        if look.info.pages > 1:
            problems.append(Problem("note", "several pages", file, f"{look.info.pages} pages; the first is used"))
        if look.info.mode.startswith("I") and look.brightest < 32:
            words = f"uses only values up to {look.brightest * 257 + 256}; stretch it to 0..65535"
            problems.append(Problem("warning", "dark 16-bit image", file, words))
        if not entry.tags and not entry.unknown and not background:
            problems.append(Problem("warning", "image without tags", file, "taken as showing none of the classes"))
    return problems


def _duplicates(entries: Sequence[Entry], looks: dict[Path, Look]) -> list[Problem]:
    by_key: dict[str | None, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_key[looks[entry.path].key].append(entry)
    problems = []
    for same in by_key.values():
        first, *others = same
        for other in others:
            if other.tags == first.tags:
                problems.append(
                    Problem("warning", "duplicate image", str(other.path), f"the same content as {first.path}")
                )
            else:
                tags = [", ".join(entry.tags) or "none" for entry in (other, first)]
                message = f"the same content as {first.path}, but tags {tags[0]} here and {tags[1]} there"
                problems.append(Problem("error", "duplicate image with different tags", str(other.path), message))
    return problems


def _class_problems(listing: Listing, usable: Sequence[Entry]) -> list[Problem]:
    problems = []
    where = str(listing.root)
    alike: dict[str, list[str]] = defaultdict(list)
    for name in listing.classes:
        alike["".join(normalize("NFKC", name).casefold().replace("_", " ").replace("-", " ").split())].append(name)
    for names in alike.values():
        if len(names) > 1:
            quoted = ", ".join(repr(name) for name in names)
            problems.append(
                Problem("error", "almost equal class names", where, f"{quoted}: one class, spelled in several ways?")
            )
    count = _count(listing.classes, (tag for entry in usable for tag in entry.tags))
    for name, images in count.items():
        if images == 0 and usable:
            message = f"no usable image is tagged {name!r}; leave it out with --classes"
            problems.append(Problem("error", "class without images", where, message))
        if name.casefold() in BACKGROUND_NAMES:
            message = f"{name!r} is taken as a class; if its images show none of the classes, add --background {name}"
            problems.append(Problem("warning", "background as a class", where, message))
    if len(count) == 1 and usable and all(entry.tags for entry in usable):
        tag = listing.classes[0]
        message = (
            f"every image is tagged {tag!r}; add images without it (tags left empty, or a folder with --background)"
        )
        problems.append(Problem("error", "one class and no image without it", where, message))
    return problems


def _box_problems(entries: Sequence[Entry], looks: dict[Path, Look], classes: set[str]) -> list[Problem]:
    problems = []
    for entry in entries:
        info = looks[entry.path].info
        assert info is not None
        for name in sorted({o.name for o in entry.objects} - classes):
            message = f"an object of class {name!r}, which the data's lists do not name"
            problems.append(Problem("error", "unknown class", str(entry.path), message))
        try:
            boxes = placed_boxes(entry, info)
        except DataError as error:
            problems.append(
                Problem("warning", "boxes of another size", str(entry.path), str(error).removeprefix(f"{entry.path}: "))
            )
            continue
        limit = np.array([info.width, info.height], float)
        for box in boxes:
            words = f"x {box[0]:g} to {box[2]:g}, y {box[1]:g} to {box[3]:g} in {info.width} x {info.height} pixels"
            if (box[2:] <= box[:2]).any():
                problems.append(Problem("warning", "empty box", str(entry.path), words))
            elif (box[:2] < -OUTSIDE).any() or (box[2:] > limit + OUTSIDE).any():
                problems.append(Problem("warning", "box outside the image", str(entry.path), words))
    return problems


def _count(classes: Sequence[str], names) -> dict[str, int]:  # type: ignore[no-untyped-def]
    found = Counter(names)
    return {name: found[name] for name in classes}


def _sizes(infos: Sequence[ImageInfo]) -> dict[str, list[int]]:
    """Smallest, median and largest image by area, as [width, height]."""
    by_area = sorted(infos, key=lambda info: (info.width * info.height, info.width))
    if not by_area:
        return {}
    picks = {"smallest": by_area[0], "median": by_area[len(by_area) // 2], "largest": by_area[-1]}
    return {name: [info.width, info.height] for name, info in picks.items()}
