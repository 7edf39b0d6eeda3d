"""The folder of an export, which is for it alone: nothing of the user's is written over, and nothing old stays unnoticed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from melm.errors import UsageError
from melm.export.text_files import as_melm_error
from melm.files import remove_leftovers, write_whole

MARK = ".melm-labels.json"


def claim(folder: Path, format: str, overwrite: bool = False) -> None:
    """Makes the folder, or goes on in the one that an earlier call made; `overwrite` empties that first.

    A folder with anything else in it is refused: it may be the data set, whose own labels would be lost.
    """
    mark = folder / MARK
    with as_melm_error(folder):
        before = _format_of(mark)
        if before == format and overwrite:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        other = next((path.name for path in folder.iterdir() if not _is_leftover(path.name)), None)
        if other is not None and before != format:
            wrote = f"is for labels as {before}" if before else f"holds {other}, which is not of an export"
            raise UsageError(f"{folder}: {wrote}. Name an empty folder for labels as {format}")
        if other is None:
            write_whole(mark, json.dumps({"format": format}).encode() + b"\n")
        remove_leftovers(folder)


def require_count(folder: Path, subfolders: Iterable[str], endings: tuple[str, ...], count: int) -> None:
    """Refuses subfolders with such files for more images, or fewer, than were written: a reader takes whatever is there."""
    there = 0
    for name in subfolders:
        with os.scandir(folder / name) as entries:  # one by one, however many there are
            there += sum(e.name.lower().endswith(endings) and not e.name.startswith(".") for e in entries)
    if there > count:
        raise UsageError(
            f"{folder}: has files of {there - count:,} images more than are labelled now, or of other settings. "
            "Remove the folder, and run again"
        )
    if there < count:
        raise UsageError(
            f"{folder}: {count:,} images gave only {there:,} files: two have one id, or differ in case alone"
        )


def _format_of(mark: Path) -> str | None:
    """Whose folder it is, as the mark in it says."""
    try:
        return str(json.loads(mark.read_bytes())["format"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{mark}: damaged. Remove its folder, or name another") from None


def _is_leftover(name: str) -> bool:
    """Whether it is what a killed writer left."""
    return name.startswith(".") and name.endswith(".tmp")


def subfolder(folder: Path, name: str) -> Path:
    """A folder in that of an export."""
    place = folder / name
    with as_melm_error(place):
        place.mkdir(parents=True, exist_ok=True)
        remove_leftovers(place)
    return place
