"""Fonts for words on pictures, whatever language the words are in."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

import matplotlib
from matplotlib.font_manager import fontManager
from matplotlib.ft2font import FT2Font
from PIL import ImageFont


def font_for(text: str, size: int) -> ImageFont.FreeTypeFont | None:
    """DejaVu Sans, which is always there; for what it lacks (Chinese, ...) an installed font that has it; None if none has."""
    if _drawable(text) <= _characters(_dejavu()):
        return _loaded(_dejavu(), size)
    path = _installed(_drawable(text))
    return None if path is None else _loaded(path, size)


def _drawable(text: str) -> frozenset[int]:
    return frozenset(ord(c) for c in text if not c.isspace())


def _dejavu() -> str:
    return str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"))


@cache
def _installed(needed: frozenset[int]) -> str | None:
    """The first installed font, by name, that has all these characters."""
    for entry in sorted(fontManager.ttflist, key=lambda f: (f.style != "normal", str(f.weight), f.name, f.fname)):
        # Last Resort has a box with a number for every character there is.
        if not entry.name.startswith("Last Resort") and needed <= _characters(entry.fname):
            return entry.fname
    return None


@cache
def _characters(path: str) -> frozenset[int]:
    try:
        _loaded(path, 12)  # one that Pillow cannot use has none
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


@lru_cache(maxsize=64)
def _loaded(path: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size)


def fitted_text(text: str, size: int, room: int) -> tuple[str, ImageFont.FreeTypeFont]:
    """The text and a font of this size for it; smaller, down to 8, or cut with an ellipsis if it is wider than the room."""
    for smaller in range(size, min(size, 8) - 1, -1):
        font = font_for(text, smaller) or _loaded(_dejavu(), smaller)
        if font.getlength(text) <= room:
            return text, font
    while text and font.getlength(f"{text}…") > room:
        text = text[:-1]
    return f"{text}…" if text else "", font
