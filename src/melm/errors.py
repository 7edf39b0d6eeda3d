"""What a user can get wrong, in words: these errors are printed, never shown as a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class MelmError(Exception):
    """A problem of the data, a file or a run. Says what was found, what was expected and what to do."""


class UsageError(MelmError):
    """A wrong option or argument (exit code 2)."""


def damaged(path: Path, number: int, what: str) -> MelmError:
    """The words for a line of a file that cannot be read."""
    return MelmError(f"{path}, line {number}: damaged ({what})")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names the closest known name, with a leading blank; empty when nothing is close."""
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.strip().lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""


def one_of(what: str, name: str, known: Iterable[str]) -> str:
    """`name` itself if it is known; otherwise an error that lists what is."""
    known = list(known)
    if name in known:
        return name
    listed = ", ".join(known) if known else "there are none"
    raise UsageError(f"unknown {what} {name!r}.{did_you_mean(name, known)} Known: {listed}.")
