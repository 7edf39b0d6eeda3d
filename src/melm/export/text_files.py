"""Text for other tools, in files that are there when they are whole."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from melm.errors import MelmError
from melm.files import whole_file

DECIMALS = 9  # of a sum: takes away the 36.199999999999996 of 48.3 - 12.1


class PlainLines:
    """What csv writes, with lines that end in a line feed alone: asked for those, csv would leave a carriage return in a name
    without quotes, and a reader would take it for the end of the line."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, row: str) -> int:
        return self.file.write(row.removesuffix("\r\n") + "\n")


@contextlib.contextmanager
def whole_text(path: Path) -> Iterator[TextIO]:
    """A file that is at `path` only when all of it is."""
    with as_melm_error(path), whole_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        yield text
        text.detach()  # flushes, and leaves the file open


def write_small(path: Path, text: str) -> None:
    """One of very many small files, whole or not there. Unlike `whole_text` it does not wait for the disk, which would take
    longer than all else: a machine that loses its power may lose some of these files, and the same call writes them again."""
    place = beside(path)
    try:
        place.write_bytes(text.encode("utf-8", "surrogateescape"))
        place.replace(path)
    except BaseException:
        place.unlink(missing_ok=True)
        raise


def beside(path: Path) -> Path:
    """Where to write what is to be at `path` when it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def as_melm_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MelmError(f"{path}: cannot be written ({error.strerror})") from None
