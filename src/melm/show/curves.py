"""Curves as PNG files."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from melm.errors import MelmError, UsageError
from melm.measure.recall import Recall


def require_plot(path: Path) -> None:
    """Refuses, before any work is done, a place where no picture can be written."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"--plot {path}: a name that ends in .png, .pdf or .svg was expected")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no such folder")


def plot_recall(recall: Recall, title: str, path: Path) -> None:
    """Recall against the number of boxes, at overlaps of 0.5 and 0.7."""
    figure = Figure(figsize=(6, 4), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for overlap, colour in ((0.5, "#1f77b4"), (0.7, "#d95f02")):
        counts, values = zip(*recall.curve(overlap), strict=True)
        axes.plot(counts, values, marker="o", markersize=3, color=colour, label=f"IoU of at least {overlap}")
        axes.axhline(recall.at(overlap), color=colour, linewidth=0.7, linestyle=":")
    axes.set(xscale="log", ylim=(0, 1), xlabel="boxes per image (the first of the list)", ylabel="recall", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    axes.xaxis.set_major_formatter("{x:g}")
    try:
        figure.savefig(path)
    except OSError as error:
        raise MelmError(f"{path}: cannot be written ({error.strerror}). Name another place with --plot") from None
