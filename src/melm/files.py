"""Where melm keeps its files, and files that are whole or not there: written beside their place and renamed into it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from melm.errors import MelmError, UsageError

if sys.platform != "win32":
    import fcntl

STALE = 24 * 3600  # seconds after which what a killed writer left may go


def packed(arrays: Mapping[str, NDArray[Any]], compressed: bool = True) -> bytes:
    """An .npz file whose bytes depend on the arrays alone: numpy's own writer puts the time into it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
            archive.writestr(member, content.getvalue())
    return buffer.getvalue()


def cache_folder() -> Path:
    """`MELM_CACHE`, else melm's folder in the user's cache."""
    if named := os.environ.get("MELM_CACHE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "melm"


def write_whole(path: Path, data: bytes) -> None:
    """All of `data` or nothing, also when several processes write and when one is killed."""
    with whole_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write piece by piece, which is at `path` only when all of it is."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Removes what killed writers left in a folder, once it is old enough to belong to nobody."""
    for left in folder.glob(".*.tmp"):
        try:
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
        except FileNotFoundError:
            continue  # another process was quicker


def prepare_store(folder: Path, name: str, about: Mapping[str, object]) -> None:
    """Makes the folder of a store, writes what it is about into it, and clears what killed writers left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, json.dumps(about, indent=1).encode())
    except OSError as error:
        raise MelmError(f"{folder}: cannot be written ({error.strerror}). Name another place with MELM_CACHE") from None
    for inner in folder.iterdir():
        if inner.is_dir():
            remove_leftovers(inner)


def lock(file: IO[bytes], path: Path) -> None:
    """Two writers of one file would undo each other's work. The lock goes when the process ends, however it ends."""
    if sys.platform != "win32":
        taken = UsageError(f"{path}: another process is writing it. Wait for that one, or name another folder")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        except OSError:
            return  # a file system without locks
        if not (path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())):
            raise taken  # which has put a whole new file in its place since this one was opened
