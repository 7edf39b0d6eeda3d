"""What every format module returns: a listing of images, with boxes only when they were asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from os import walk
from os.path import isfile, normpath
from pathlib import Path, PurePosixPath

from melm.data.images import ENDINGS, is_image
from melm.data.records import DataError, Problem
from melm.errors import UsageError, did_you_mean

SPLIT_FOLDERS = ("train", "trainval", "val", "valid", "validation", "test")
NOT_READ = (".gif", ".heic", ".heif", ".avif", ".jp2", ".dcm", ".dng", ".cr2", ".nef")


@dataclass(frozen=True, slots=True)
class Source:
    """A data set as named on the command line. What is None is found by looking."""

    path: Path
    format: str | None = None
    split: str | None = None
    images: Path | None = None
    classes: tuple[str, ...] | None = None
    background: str | None = None
    limit: int | None = None  # so many images, spread evenly over the data

    def __post_init__(self) -> None:
        for name in ("path", "images"):  # a text will do
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, Path(given))


@dataclass(frozen=True, slots=True)
class Object:
    """One annotated object. `box` is None unless boxes were asked for."""

    name: str
    box: tuple[float, float, float, float] | None = None
    difficult: bool = False
    crowd: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One image of a listing. Boxes are in the pixels of an image of `size`, or in shares of it where `normalised`."""

    id: str
    path: Path
    tags: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    objects: tuple[Object, ...] = ()
    size: tuple[int, int] | None = None
    normalised: bool = False


@dataclass
class Listing:
    """A data set as its format module found it."""

    root: Path
    classes: tuple[str, ...]
    entries: list[Entry]
    split: str | None = None
    splits: tuple[str, ...] = ()
    problems: list[Problem] = field(default_factory=list)
    image_numbers: dict[int, str] = field(default_factory=dict)  # COCO's number -> image id
    class_numbers: dict[int, str] = field(default_factory=dict)  # the same of classes, also of one left out


def tags_of(objects: Iterable[Object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tags and unknown classes: a class of which an image has only difficult objects is neither there nor absent."""
    objects = list(objects)
    sure = {o.name for o in objects if not o.difficult}
    return tuple(sorted(sure)), tuple(sorted({o.name for o in objects} - sure))


def classes_of(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The classes that occur, sorted, for formats that do not list them."""
    return tuple(sorted({name for entry in entries for name in (*entry.tags, *entry.unknown)}))


def choose_split(source: Source, splits: Iterable[str], where: Path) -> str:
    """The split that was asked for, or the one that is meant: the only one, else trainval, else train."""
    splits = list(splits)
    if source.split is not None:
        if source.split not in splits:
            listed = ", ".join(splits) if splits else "none"
            meant = did_you_mean(source.split, splits)
            raise UsageError(f"{where}: there is no split {source.split!r}.{meant} Splits here: {listed}.")
        return source.split
    if len(splits) == 1:
        return splits[0]
    for usual in ("trainval", "train"):
        if usual in splits:
            return usual
    raise DataError(f"{where}: several splits ({', '.join(splits)}); choose one with --split.")


def split_folders(root: Path, asked: str | None = None) -> tuple[str, ...]:
    """Names like train and test, when a folder holds these and no others: then they are splits, not classes."""
    folders = [p.name for p in subfolders(root)]
    splits = tuple(name for name in folders if name.lower() in SPLIT_FOLDERS)
    if asked in splits:
        return splits
    if len(splits) > 1 and len(splits) < len(folders):
        other = next(name for name in folders if name not in splits)
        raise DataError(
            f"{root}: {', '.join(splits)} look like splits, {other} does not. Choose a split with --split, or move {other} away"
        )
    return splits if len(splits) == len(folders) and not any(is_image(p) for p in root.iterdir()) else ()


def subfolders(root: Path) -> list[Path]:
    """The folders in a folder, without hidden ones and the leftovers of archives."""
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith((".", "__MACOSX")))


def is_leftover(path: Path) -> bool:
    """Hidden files and what archives of a Mac leave behind."""
    return path.name.startswith(".") or "__MACOSX" in path.parts


def walk_images(root: Path, problems: list[Problem]) -> Iterator[Path]:
    """Every image below a folder, sorted; links are followed, loops are not. Unreadable kinds are noted."""
    seen: set[Path] = set()

    def unreadable(error: OSError) -> None:
        message = f"left out: it cannot be read ({error.strerror})"
        problems.append(Problem("error", "folder that cannot be read", str(error.filename), message))

    for folder, names, files in walk(root, onerror=unreadable, followlinks=True):
        real = Path(folder).resolve()
        if real in seen:
            names.clear()
            continue
        seen.add(real)
        names[:] = sorted(n for n in names if not n.startswith((".", "__MACOSX")))
        for name in sorted(files):
            path = Path(folder, name)
            if is_image(path):
                yield path
            elif path.suffix.lower() in NOT_READ:
                problems.append(
                    Problem(
                        "warning",
                        "kind of image not read",
                        str(path),
                        "left out: JPEG, PNG, WebP, BMP and TIFF are read",
                    )
                )


def image_id(root: Path, path: Path) -> str:
    """An image's id: its path under the data's root without the ending."""
    return path.relative_to(root).with_suffix("").as_posix()


def inside(root: Path, name: str) -> Path:
    """The path of a file that a data set names, which must lie under its root."""
    listed = PurePosixPath(name.replace("\\", "/"))
    path = Path(listed) if listed.is_absolute() else root / listed
    normal = Path(normpath(path))  # by name alone: links to images elsewhere are fine
    if not normal.is_relative_to(root):
        raise DataError(f"{name!r} lies outside {root}, the folder of the images")
    return normal


def file_inside(root: Path, name: str) -> Path:
    """As `inside`, for a name that must be that of a file."""
    path = inside(root, name)
    if path == root:
        raise DataError(f"{name!r} is the data's folder itself, where a file was expected")
    return path


def with_ending(path: Path) -> Path:
    """A path named without its ending, with the ending of the image that is there."""
    if is_image(path):
        return path
    for ending in ENDINGS:
        for candidate in (path.with_name(path.name + ending), path.with_name(path.name + ending.upper())):
            if isfile(candidate):  # unlike Path.is_file, says no to names the disk cannot hold
                return candidate
    return path


def images_folder(source: Source, candidates: Iterable[Path], names: list[str]) -> Path:
    """The folder that holds the images: the one given, else the first candidate in which the first listed files exist."""
    if source.images is not None:
        return source.images
    candidates = list(candidates)
    return next((c for c in candidates if any(_holds(c, name) for name in names[:20])), candidates[0])


def _holds(folder: Path, name: str) -> bool:
    try:
        return isfile(with_ending(file_inside(folder, name)))
    except DataError:
        return False


def read_text(path: Path) -> str:
    """A text file of the user's: UTF-8, or UTF-16 with its mark, as spreadsheets write."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}, line {line}: not {encoding[:6].upper().rstrip('-')} text; save the file as UTF-8"
        ) from None
