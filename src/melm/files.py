"""Where melm keeps its files, and files that are whole or not there: written beside their place and renamed into it."""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path
from typing import IO

from melm.errors import UsageError

if sys.platform != "win32":
    import fcntl

STALE = 24 * 3600  # seconds after which what a killed writer left may go


def cache_folder() -> Path:
    """`MELM_CACHE`, else melm's folder in the user's cache."""
    if named := os.environ.get("MELM_CACHE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "melm"


def write_whole(path: Path, data: bytes) -> None:
    """All of `data` or nothing, also when several processes write and when one is killed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(data)
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


def lock(file: IO[bytes], path: Path) -> None:
    """Two writers of one file would undo each other's work. The lock goes when the process ends, however it ends."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{path}: another process is writing it. Wait for that one, or name another folder"
            ) from None
        except OSError:
            pass  # a file system without locks
