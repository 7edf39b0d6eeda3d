"""Plain tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import east_asian_width


def width(text: str) -> int:
    """Columns a text takes in a terminal: Chinese and its like take two each."""
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, columns: int, right: bool = False) -> str:
    space = " " * max(0, columns - width(text))
    return space + text if right else text + space


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their names; the first to the left, the others to the right."""
    widths = [max(width(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(pad(cell, w, right=i > 0) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in [header, *rows]
    ]
    return "\n".join([lines[0], "-" * width(lines[0]), *lines[1:]])


def bar(share: float, columns: int = 24) -> str:
    """A bar of blocks for a share between 0 and 1; what is there at all shows at least a sliver."""
    eighths = round(max(0.0, min(1.0, share)) * columns * 8)
    if share > 0:
        eighths = max(1, eighths)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
