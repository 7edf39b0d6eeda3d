"""Curves as files: PNG, PDF or SVG."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure

from melm.errors import MelmError, UsageError
from melm.files import write_whole
from melm.measure.recall import Recall

KINDS = ("png", "pdf", "svg")


def require_plot(path: Path) -> None:
    """Refuses, before any work is done, a place where no picture can be written."""
    if path.suffix.lower().removeprefix(".") not in KINDS:
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
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """A figure as PNG, PDF or SVG, by the name's ending."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UsageError(f"{path}: a name that ends in .png, .pdf or .svg was expected")
    data = io.BytesIO()
    figure.savefig(data, format=kind)
    try:
        write_whole(path, data.getvalue())
    except OSError as error:
        raise MelmError(f"{path}: cannot be written ({error.strerror}). Name another place") from None
