"""Results as other tools write them, row by row: COCO's JSON, tables, the VOC devkit's comp4 files, and melm's own."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from reprlib import Repr
from typing import Any

from melm.data.records import DataError
from melm.detect.results import RESULTS, read_results
from melm.errors import UsageError, did_you_mean
from melm.measure.naming import Known
from melm.measure.truth import Truth

UNDERSTOOD = (
    "COCO's results JSON (a list of image_id, category_id, bbox and score), a CSV with these columns, "
    f"a folder with the VOC devkit's comp4_det_SPLIT_CLASS.txt, {RESULTS} of `melm detect` and the folder of `melm label` "
    "are understood"
)
ENTRY = '{"image_id": ..., "category_id": ..., "bbox": [x, y, width, height], "score": ...}'
COLUMNS = {
    "image": ("image_id", "image"),
    "class": ("category_id", "category", "class"),
    "score": ("score", "confidence"),
}
EDGES = ("x1", "y1", "x2", "y2")
BOX_COLUMNS = (("bbox",), ("x", "y", "w", "h"), ("x", "y", "width", "height"), EDGES)
COMP4 = re.compile(r"(comp[34]_det)_(.+_.+)\.txt", re.DOTALL)
DECIMALS = 9  # of a difference: takes away the 12.100000000000001 of 13.1 - 1

SHORT = Repr()  # for values of any length
SHORT.maxstring = 200

Box = tuple[float, float, float, float]  # edges x1, y1, x2, y2
Row = tuple[int, str | int, str | int, Box, float]  # number of the entry or line, image, class, box, score


def wrong(path: Path, unit: str, number: int, what: str, image: Any = None) -> DataError:
    where = f"{path}, {unit} {number}" + ("" if image is None else f", image {SHORT.repr(image)}")
    return DataError(f"{where}: {what}")


def bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def text_of(path: Path, data: bytes) -> str:
    """Text as melm writes it: UTF-8, with any bytes that a file's name may have."""
    try:
        return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "surrogateescape")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not readable as text ({error.reason}); save it as UTF-8") from None


def json_rows(path: Path, data: bytes) -> Iterator[Row]:
    for number, entry in enumerate(_entries(path, data), 1):
        try:
            image, label, box, score = entry["image_id"], entry["category_id"], entry["bbox"], entry["score"]
        except KeyError as error:
            what = f"{error.args[0]!r} is missing among {', '.join(entry)}" if entry else "nothing is in it"
            raise wrong(path, "entry", number, f"{what}; {ENTRY} was expected", entry.get("image_id")) from None
        except TypeError:
            raise wrong(path, "entry", number, f"{SHORT.repr(entry)}, where {ENTRY} was expected") from None
        for key, value in (("image_id", image), ("category_id", label)):
            if type(value) is not str and type(value) is not int:  # a bool is neither
                what = f"{key} is {SHORT.repr(value)}; a whole number or a text was expected"
                raise wrong(path, "entry", number, what, image if key == "category_id" else None)
        if type(box) is not list or len(box) != 4:
            what = f"bbox is {SHORT.repr(box)}; four numbers (x, y, width, height) were expected"
            raise wrong(path, "entry", number, what, image)
        for value in (*box, score):
            if type(value) is not float and type(value) is not int:
                what = f"bbox is {SHORT.repr(box)}, score is {SHORT.repr(score)}; numbers were expected"
                raise wrong(path, "entry", number, what, image)
        x, y, width, height = map(_float, box)
        yield number, image, label, (x, y, x + width, y + height), _float(score)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


def _entries(path: Path, data: bytes) -> list[Any]:
    try:
        text = data.decode(json.detect_encoding(data), "surrogatepass")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text from byte {error.start:,}; save it as UTF-8") from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}). {_how_far(text)}") from None
    if isinstance(found, dict) and "annotations" in found:
        raise DataError(f"{path}: a COCO data set, not results. Results are a plain list: [{ENTRY}, ...]")
    if not isinstance(found, list):
        raise DataError(f"{path}: holds {SHORT.repr(found)}, where a plain list was expected: [{ENTRY}, ...]")
    return found


def _how_far(text: str) -> str:
    """How many entries of a broken file are whole."""
    whole, decoder, place = 0, json.JSONDecoder(), _after_blanks(text, 0)
    try:
        while text[place] == ("," if whole else "["):
            place = _after_blanks(text, decoder.raw_decode(text, _after_blanks(text, place + 1))[1])
            whole += 1
    except (IndexError, ValueError, RecursionError):
        pass
    if text[place : place + 1] == "{" and not whole:
        return f"Results are a plain list: [{ENTRY}, ...]"
    last = f"Entry {whole} is the last whole one" if whole else "No entry is whole"
    return f"{last}. Was it cut off while it was written or copied? Write it again"


def _after_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\n\r":
        place += 1
    return place


# Tables


def _cells(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row that is not blank."""
    first = next(filter(str.strip, io.StringIO(text, newline=None)), "")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    try:
        yield from ((reader.line_num, row) for row in reader if any(map(str.strip, row)))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not a readable table ({error})") from None


def header_of(path: Path, text: str) -> list[str]:
    try:
        return _names(next(_cells(path, text), (0, []))[1])
    except DataError:
        return []


def _names(row: list[str]) -> list[str]:
    return [cell.strip().lower() for cell in row]


def table_rows(path: Path, text: str) -> Iterator[Row]:
    rows = _cells(path, text)
    header = _names(next(rows, (0, []))[1])
    image, label, score, *box = _columns(path, header)
    edges = header[box[0]] == EDGES[0]
    for line, row in rows:
        if len(row) != len(header):
            quotes = "" if len(row) < len(header) else ". A cell that holds the delimiter goes in quotes"
            raise wrong(path, "line", line, f"{len(row)} fields, the header has {len(header)}{quotes}")
        try:
            x, y, width, height = _numbers([row[i] for i in box] if len(box) > 1 else _four(row[box[0]]))
            (scored,) = _numbers([row[score]])
        except ValueError:
            named = ", ".join(f"{header[i]} {row[i]!r}" for i in (*box, score))
            what = f"{named}; numbers were expected, with a point for decimals"
            raise wrong(path, "line", line, what, row[image]) from None
        yield line, row[image], row[label], (x, y, width, height) if edges else (x, y, x + width, y + height), scored


def _numbers(texts: list[str]) -> list[float]:
    if any("_" in text for text in texts):  # which `float` would skip: 2007_000027 is an image
        raise ValueError
    return [float(text) for text in texts]


def _four(cell: str) -> list[str]:
    """The numbers of a bbox in one cell: a JSON list, or with blanks or commas between them."""
    cell = cell.strip()
    inner = cell[1:-1].strip() if cell.startswith("[") and cell.endswith("]") else cell
    return re.split(r"\s*,\s*|\s+", inner)


def _columns(path: Path, header: list[str]) -> list[int]:
    """Where image, class, score and the one or four columns of the box are."""
    listed = f"The columns are {', '.join(header)}"
    wanted: list[str] = []
    for names in COLUMNS.values():
        here = [name for name in names if name in header]
        if not here:
            raise DataError(f"{path}: no column {' or '.join(names)}.{did_you_mean(names[0], header)} {listed}")
        wanted.append(here[0])
    box = next((names for names in BOX_COLUMNS if all(name in header for name in names)), None)
    if box is None:
        raise DataError(f"{path}: no box: a column bbox, or x, y, width, height, or x1, y1, x2, y2. {listed}")
    wanted += box
    twice = next((name for name in wanted if header.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path}: two columns are called {twice}. Rename one")
    return [header.index(name) for name in wanted]


# The VOC devkit's files


def comp4_files(folder: Path, classes: Sequence[str], split: str | None) -> dict[str, Path]:
    """Class -> its file, of one split. Both may have an underscore, so SPLIT_CLASS is read by the classes that are known."""
    try:
        matches = [match for path in sorted(folder.iterdir()) if (match := COMP4.fullmatch(path.name))]
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror})") from None
    if not matches:
        raise DataError(f"{folder}: no results that melm knows in it. {UNDERSTOOD}")
    if len({match[1] for match in matches}) > 1:
        raise DataError(f"{folder}: files of both comp3 and comp4. Put one kind into a folder of its own")
    found = {match[2]: folder / match[0] for match in matches}
    splits = {rest: [of for n in classes if (of := _before(rest, f"_{n}"))] for rest in found}  # that it may be of
    count = Counter(of for possible in splits.values() for of in possible)
    guessed = next(iter(found)).split("_")[0]
    chosen = split or max(count, key=lambda of: (count[of], -len(of), of), default=guessed)
    others: set[str] = set()
    for rest, path in found.items():
        if chosen in splits[rest]:
            continue
        whole = {of for of in splits[rest] if count[of] == len(classes)}
        if rest.startswith(f"{chosen}_") and not whole:
            name = rest.removeprefix(f"{chosen}_")
            known = f"the classes measured: {', '.join(classes)}.{did_you_mean(name, classes)}"
            raise DataError(f"{path}: {name!r} is not among {known} Move the file away if it is not meant")
        others |= whole or {min(splits[rest], key=len, default=rest.split("_")[0])}
    listed = ", ".join(sorted(others | ({chosen} & count.keys())))
    if others and split is None:
        raise UsageError(f"{folder}: files of several splits ({listed}). Choose one with --split")
    if chosen not in count:
        raise UsageError(
            f"{folder}: no files of the split {chosen!r}.{did_you_mean(chosen, others)} Splits here: {listed}"
        )
    files = {name: folder / f"{matches[0][1]}_{chosen}_{name}.txt" for name in classes}
    missing = next((name for name, file in files.items() if file not in found.values()), None)
    if missing is not None:
        raise DataError(f"{files[missing]}: there is no such file. An empty one means that no {missing} was found")
    return files


def _before(text: str, end: str) -> str:
    return text.removesuffix(end) if text.endswith(end) else ""


def comp4_rows(path: Path, name: str) -> Iterator[Row]:
    for number, line in enumerate(text_of(path, bytes_of(path)).split("\n"), 1):
        words = line.split()
        if not words:
            continue
        try:
            score, x1, y1, x2, y2 = _numbers(words[1:])
        except ValueError:
            what = f"{SHORT.repr(line.strip())}, where an image's id and five numbers (score x1 y1 x2 y2) were expected"
            raise wrong(path, "line", number, what) from None
        yield number, words[0], name, (round(x1 - 1, DECIMALS), round(y1 - 1, DECIMALS), x2, y2), score


# melm's own


def own_rows(path: Path, truth: Truth, images: Known) -> Iterator[Row]:
    seen = set()
    for line, (id, _, found) in enumerate(read_results(path), 1):
        if id in seen:
            raise wrong(path, "line", line, "the image is there twice", id)
        seen.add(id)
        if len(found):
            try:
                size = truth.sizes.get(images.names[images.find(id)])
            except DataError as error:
                raise wrong(path, "line", line, str(error)) from None
            if size is not None and size != (found.width, found.height):
                what = f"detected in {found.width} x {found.height} pixels, but the image has {size[0]} x {size[1]}"
                raise wrong(path, "line", line, f"{what}. Detect again", id)
        rows = zip(found.class_names(), found.boxes.tolist(), found.scores.tolist(), strict=True)
        for name, (x1, y1, x2, y2), score in rows:
            yield line, id, name, (x1, y1, x2, y2), score
    if not seen:
        raise DataError(f"{path}: empty: no image was looked at")
