"""A table of `file,tags`: commas, semicolons or tabs, columns in any order, several tags in a cell or a row per tag."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NamedTuple

from melm.data.formats.listing import (
    Entry,
    Listing,
    Source,
    choose_split,
    classes_of,
    file_inside,
    image_id,
    images_folder,
    is_leftover,
    read_text,
    with_ending,
)
from melm.data.images import is_image
from melm.data.records import DataError, Problem
from melm.errors import did_you_mean

# The first of these names that a header has is the column; the plainest come last.
FILE_COLUMNS = (
    *("file", "filename", "file_name", "filepath", "file_path", "path", "image_path", "image", "images", "img"),
    *("image_name", "image_id", "name", "id"),
)
TAG_COLUMNS = ("tags", "tag", "label", "labels", "class", "classes", "class_name", "category", "categories")
SPLIT_COLUMNS = ("split", "set", "subset")
ENDINGS = (".csv", ".tsv", ".txt")
MANY = "Separate the tags of one image with | (cat|dog)"


class Row(NamedTuple):
    line: int
    file: str
    tags: list[str]
    split: str | None


def looks_like(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS if path.is_file() else path.is_dir() and len(_tables(path)) == 1


def read(source: Source, boxes: bool) -> Listing:
    path = source.path if source.path.is_file() else _only_table(source.path)
    rows = read_rows(path)
    splits = tuple(sorted({row.split for row in rows if row.split}))
    split = choose_split(source, splits, path) if splits or source.split else None
    if split:
        rows = [row for row in rows if row.split == split]
    folder = path.parent
    root = images_folder(source, [folder, folder / "images", folder / path.stem], [row.file for row in rows])
    problems: list[Problem] = []
    tags: dict[Path, set[str]] = {}
    for row in rows:
        try:
            image = with_ending(file_inside(root, row.file))
        except DataError as error:
            problems.append(Problem("error", "path outside the data", f"{path}, line {row.line}", str(error)))
            continue
        tags.setdefault(image, set()).update(row.tags)
    entries = [Entry(image_id(root, image), image, tuple(sorted(names))) for image, names in tags.items()]
    return Listing(root, classes_of(entries), entries, split, splits, problems)


def read_rows(path: Path) -> list[Row]:
    """The rows of a table, whichever of the close relatives it is."""
    cells = _cells(path)
    if not cells:
        raise DataError(f"{path}: empty; a header `file,tags` and a row per image were expected")
    header = [cell.strip().lower() for cell in cells[0][1]]
    if any(name in FILE_COLUMNS for name in header):
        return _with_header(path, header, [cell.strip() for cell in cells[0][1]], cells[1:])
    if is_image(Path(cells[0][1][0].strip())):
        separator = _tag_separator([cell for _, row in cells for cell in row[1:]])
        _require_files(path, 0, cells)
        return [Row(n, row[0].strip(), _tags(row[1:], separator), None) for n, row in cells]
    first = ", ".join(cells[0][1])
    raise DataError(
        f"{path}, line {cells[0][0]}: no column of files in {first!r}; name it `file`.{did_you_mean(header[0], FILE_COLUMNS)}"
    )


def _with_header(path: Path, header: list[str], spelled: list[str], cells: list[tuple[int, list[str]]]) -> list[Row]:
    file, tag, split = (
        next((header.index(name) for name in names if name in header), None)
        for names in (FILE_COLUMNS, TAG_COLUMNS, SPLIT_COLUMNS)
    )
    assert file is not None
    for number, row in cells:
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(row)} columns, the header has {len(header)}. "
                f"{MANY if len(row) > len(header) else 'Is a separator missing?'}"
            )
    _require_files(path, file, cells)
    separator = _tag_separator([row[tag] for _, row in cells]) if tag is not None else "|"
    flags = [] if tag is not None else [i for i in range(len(header)) if i not in (file, split) and header[i]]
    if tag is None and not (flags and all(row[i].strip() in ("0", "1") for _, row in cells for i in flags)):
        other = [name for i, name in enumerate(header) if i != file]
        hint = did_you_mean(other[0], TAG_COLUMNS) if other else ""
        raise DataError(
            f"{path}: no column of tags among {', '.join(spelled)}; "
            f"name it `tags`, or give each class a column of 0 and 1.{hint}"
        )
    return [
        Row(
            number,
            row[file].strip(),
            _tags([row[tag]], separator) if tag is not None else [spelled[i] for i in flags if row[i].strip() == "1"],
            row[split].strip() if split is not None else None,
        )
        for number, row in cells
    ]


def _require_files(path: Path, column: int, cells: list[tuple[int, list[str]]]) -> None:
    for number, row in cells:
        if not row[column].strip():
            raise DataError(f"{path}, line {number}: no file name")


def _cells(path: Path) -> list[tuple[int, list[str]]]:
    """(line, cells) of each row that is not blank."""
    text = read_text(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(("\t", ";", ","), key=first.count) if path.suffix.lower() != ".tsv" else "\t"
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append((reader.line_num, row))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not a readable table ({error})") from None
    return rows


def _tag_separator(cells: list[str]) -> str:
    """| where any cell has it; else the ; or , with which a cell lists several tags."""
    return next((mark for mark in "|;," if any(mark in cell for cell in cells)), "|")


def _tags(cells: list[str], separator: str) -> list[str]:
    return [tag.strip() for cell in cells for tag in cell.split(separator) if tag.strip()]


def _tables(folder: Path) -> list[Path]:
    found = (p for p in folder.iterdir() if p.suffix.lower() in (".csv", ".tsv"))
    return sorted(p for p in found if p.is_file() and not is_leftover(p) and _lists_images(p))


def _lists_images(path: Path) -> bool:
    """Whether a table's header or first row names files: notes and price lists lie in folders of images, too."""
    try:
        first = next(iter(_cells(path)), (0, [""]))[1]
    except DataError:
        return True  # to be read, and complained of
    return any(cell.strip().lower() in FILE_COLUMNS[:-2] for cell in first) or is_image(Path(first[0].strip()))


def _only_table(folder: Path) -> Path:
    tables = _tables(folder)
    if len(tables) != 1:
        raise DataError(f"{folder}: {len(tables)} tables (.csv, .tsv) in it; name the one to read")
    return tables[0]
