"""Figures about a run and what it detects: learning, precision and recall, confusion, kinds of errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from melm.errors import MelmError
from melm.measure.average_precision import AveragePrecision, ClassPrecision
from melm.measure.error_analysis import KINDS, NOT_COUNTED, ErrorAnalysis
from melm.show.curves import save_figure
from melm.show.drawings import class_colour
from melm.show.fonts import font_for
from melm.show.tables import width

RUNS = ("#1f77b4", "#d95f02", "#2ca02c", "#c2267f", "#7b52ab", "#8c6d31", "#17a2b8", "#4d4d4d", "#e7ab00", "#9c1c1c")
# correct, duplicate, wrong class, part, too large, misplaced, background
ERRORS = ("#4caf50", "#5bc8dc", "#b094dd", "#ffd24d", "#f5943d", "#ea6a60", "#bdbdbd")
PANELS = 80  # classes with a curve of their own
BARS = 200  # classes with a bar of their own
BINS = 500  # steps of recall at which a curve is kept exactly
NUMBERED = 25  # classes up to which the cells of a confusion table have numbers
LABELLED = 120  # classes up to which every row of it has a name
LONGEST = 24  # columns of a name

History = Sequence[Mapping[str, Any]]  # the records of a run's epochs, as in its log


def plot_learning(histories: Mapping[str, History], path: Path) -> None:
    """Entropy, gradients and localization over the epochs of one or more runs, as in the paper's figure."""
    save_figure(learning_figure(histories), path)


def plot_precision_recall(results: Mapping[str, AveragePrecision], path: Path) -> None:
    """A curve for each class that has objects, of one or more runs."""
    save_figure(precision_recall_figure(results), path)


def plot_confusion(table: NDArray[np.integer], classes: Sequence[str], path: Path, title: str = "") -> None:
    """The table of `ErrorAnalysis.confusion`, (K + 1, K + 1), as a heat map of the shares of each row."""
    save_figure(_titled(confusion_figure(table, classes), title), path)


def plot_errors(analysis: ErrorAnalysis, path: Path, title: str = "") -> None:
    """A bar for each class, and one for all: shares of the kinds of right and wrong."""
    figure = errors_figure(analysis)
    if title:  # below: above the bars is the legend
        figure.axes[0].set_xlabel(f"{title}, %")
    save_figure(figure, path)


def _titled(figure: Figure, title: str) -> Figure:
    if title:
        figure.suptitle(title, fontsize="medium")
    return figure


def learning_figure(histories: Mapping[str, History]) -> Figure:
    figure = Figure(figsize=(10, 7), dpi=130, layout="constrained")
    entropy, gradient, accuracy, variance = figure.subplots(2, 2, sharex=True).flat
    local = entropy.twinx()  # far smaller than the global one
    for colour, history in zip(_colours(len(histories)), histories.values(), strict=True):
        _draw(entropy, history, "mean", "global_entropy", colour)
        _draw(local, history, "mean", "local_entropy", colour, "--")
        _draw(gradient, history, "mean", "gradient_discovery", colour)
        _draw(gradient, history, "mean", "gradient_localization", colour, "--")
        _draw(accuracy, history, "measured", "localization_accuracy", colour)
        _draw(variance, history, "measured", "localization_variance", colour)
    entropy.set(title="(a) entropy", ylabel="global entropy (solid)")
    local.set(ylabel="local entropy (dashed)")
    gradient.set(title="(b) gradients", ylabel="norm of the gradient")
    accuracy.set(title="(c) localization accuracy", ylabel="mean overlap")
    variance.set(title="(d) localization variance", ylabel="variance of the overlap")
    if not local.lines:
        local.set_axis_off()
        entropy.set_ylabel("global entropy")
    if gradient.lines:
        gradient.set_yscale("log")
        low, high = gradient.get_ylim()
        gradient.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 500 * low else (1,)))
        gradient.yaxis.set_major_formatter("{x:g}")
        gradient.yaxis.set_minor_formatter("")
    if any(line.get_linestyle() == "--" for line in gradient.lines):
        parts = [Line2D([], [], color="0.3", linestyle=style) for style in ("-", "--")]
        gradient.legend(parts, ["discovery", "localization"], fontsize="small")
    for axes, otherwise in (
        (entropy, "no epoch yet"),
        (gradient, "no epoch yet"),
        (accuracy, "not measured\n(melm train --measure)"),
        (variance, "not measured\n(melm train --measure)"),
    ):
        axes.set_xlabel("epochs")
        axes.tick_params(labelbottom=True)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=(1, 2, 5, 10), min_n_ticks=1))
        if axes.lines:
            axes.grid(alpha=0.3)
        else:
            axes.text(0.5, 0.5, otherwise, color="0.5", ha="center", va="center", transform=axes.transAxes)
            axes.set_yticks([])
    first, last = entropy.dataLim.intervalx
    if first == last:
        entropy.set_xlim(first - 0.5, last + 0.5)
    for axes in (entropy, local, accuracy, variance):
        if axes.lines and axes.dataLim.ymin >= 0:
            axes.set_ylim(bottom=0)
    _legend(figure, list(histories))
    return figure


def _draw(axes: Axes, history: History, part: str, name: str, colour: str, style: str = "-") -> None:
    """One figure of a run over its epochs, unless it is 0 everywhere: a branch that the method does not have."""
    last = {record["epoch"]: (record.get(part) or {}).get(name) for record in history}
    points = [(epoch + 1, last[epoch]) for epoch in sorted(last)]
    points = [(epoch, value) for epoch, value in points if value is not None and math.isfinite(value)]
    if any(value for _, value in points):
        epochs, values = zip(*points, strict=True)
        marker = "o" if len(points) <= 15 else ""
        axes.plot(epochs, values, color=colour, linestyle=style, marker=marker, markersize=3)


def precision_recall_figure(results: Mapping[str, AveragePrecision]) -> Figure:
    of_class: dict[str, dict[str, ClassPrecision]] = {}  # by class, then by run
    number: dict[str, int] = {}
    for run, result in results.items():
        for one in result.classes:
            number.setdefault(one.name, len(number))
            if one.objects:
                of_class.setdefault(one.name, {})[run] = one
    if not of_class:
        raise MelmError("no class has an object that counts: there is no curve to draw")
    most = sorted(of_class, key=lambda name: -max(one.objects for one in of_class[name].values()))[:PANELS]
    shown = sorted(most, key=number.__getitem__)
    columns = math.ceil(math.sqrt(len(shown)))
    rows = math.ceil(len(shown) / columns)
    side = max(1.7, 4.5 / columns)
    figure = Figure(figsize=(columns * side + 1, rows * side + 1.2), dpi=130, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    colours = dict(zip(results, _colours(len(results)), strict=True))
    for axes, name in zip(panels.flat, shown, strict=False):
        for run, one in of_class[name].items():
            recall, precision = curve(one)
            axes.plot(recall, precision, color=colours[run], linewidth=1.2)
        aps = [one.ap for one in of_class[name].values()]
        values = " / ".join(f"{ap:.2f}" for ap in aps) if len(aps) <= 3 else f"{min(aps):.2f} to {max(aps):.2f}"
        words = _words(name, number[name], f"{{}}\nAP {values}")
        _in_a_font(axes.set_title(words, fontsize="medium" if columns < 4 else "small"))
        axes.grid(alpha=0.3)
    ticks = np.linspace(0, 1, 6 if columns < 3 else 3)
    panels[0, 0].set(xlim=(0, 1), ylim=(0, 1.02), xticks=ticks, yticks=ticks)
    panels[0, 0].xaxis.set_major_formatter("{x:g}")
    panels[0, 0].yaxis.set_major_formatter("{x:g}")
    for axes in panels.flat[len(shown) :]:
        axes.set_axis_off()
    for axes in panels.flat[max(0, len(shown) - columns) : len(shown)]:
        axes.set_xlabel("recall")
        axes.tick_params(labelbottom=True)  # the last of each column, also above a place that is left free
    for axes in panels[:, 0]:
        axes.set_ylabel("precision")
    title = "IoU of at least " + " or ".join(sorted({f"{result.min_overlap:g}" for result in results.values()}))
    if len(shown) < len(of_class):
        title += f"\nthe {PANELS} of {len(of_class):,} classes that have the most objects"
    figure.suptitle(title, fontsize="medium")
    _legend(figure, list(results), [f"{{}} (mAP {result.mean:.3f}, {result.rule})" for result in results.values()])
    return figure


def curve(one: ClassPrecision) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Recall and precision of a class for drawing.

    Of a long curve, the first, lowest, highest and last point of every step in recall of 1 / 500: finer than the picture is.
    The first precision holds from a recall of 0 on, so that a single detection shows.
    """
    recall, precision = one.recall, one.precision
    if len(recall) > 4 * BINS:
        step = np.floor(recall * BINS)
        first = np.flatnonzero(np.diff(step, prepend=-1))
        last = np.append(first[1:], len(step)) - 1
        by_height = np.lexsort((precision, step))  # recall never falls, so the steps stay where they are
        kept = np.unique(np.concatenate([first, last, by_height[first], by_height[last]]))
        recall, precision = recall[kept], precision[kept]
    return np.append(np.zeros(min(len(recall), 1)), recall), np.append(precision[:1], precision)


def confusion_figure(table: NDArray[np.integer], classes: Sequence[str]) -> Figure:
    size = len(classes) + 1
    if table.shape != (size, size):
        raise ValueError(f"a table of {table.shape} for {len(classes)} classes; {(size, size)} was expected")
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    side = min(max(3.0, 0.42 * size), 16.0)
    figure = Figure(figsize=(side + 2.6, side + 1.6), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    norm = PowerNorm(0.5, 0, 1)  # what is confused now and then shows too
    image = axes.imshow(shares, cmap="Blues", norm=norm, interpolation="nearest", aspect="auto")
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 4 / side), ticks=(0, 0.05, 0.2, 0.5, 1), pad=0.02)
    bar.set_label("share of the row (%)", fontsize="small")
    bar.ax.set_yticklabels(["0", "5", "20", "50", "100"], fontsize="small")
    for edge in (axes.axhline, axes.axvline):
        edge(size - 1.5, color="0.3", linewidth=0.8)
    points = min(9.0, 72 * side / size * 0.8)
    places = [*range(0, size - 1, math.ceil(size / LABELLED)), size - 1]
    names = [_words(classes[k], k) for k in places[:-1]]
    axes.set_xticks(places, [*names, "missed"], fontsize=points, rotation=90)
    axes.set_yticks(places, [*names, "on no object"], fontsize=points)
    axes.tick_params(length=2)
    _in_a_font(*axes.get_xticklabels(), *axes.get_yticklabels())
    axes.set(xlabel="detected as", ylabel="object")
    if len(classes) <= NUMBERED:
        for row, column in np.argwhere(table):
            share = shares[row, column]
            words = f"{100 * share:.0f}" if share >= 0.005 else "<1"
            colour = "white" if norm(share) > 0.6 else "0.15"
            axes.text(column, row, words, ha="center", va="center", fontsize=8, color=colour)
    return figure


def errors_figure(analysis: ErrorAnalysis) -> Figure:
    names, counts = analysis.gathered.classes, analysis.counts[:, :NOT_COUNTED]
    most = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[:BARS])
    bars = np.concatenate([counts.sum(axis=0, keepdims=True), counts[most]])  # all first
    missed = [(int(analysis.missed.sum()), int(analysis.objects.sum()))]
    missed += zip(analysis.missed[most].tolist(), analysis.objects[most].tolist(), strict=True)
    totals = bars.sum(axis=1)
    shares = bars / np.maximum(totals, 1)[:, None]
    place = np.append(0, np.arange(len(most)) + 1.5)  # the classes a little apart from all
    figure = Figure(figsize=(10.5, 1.4 + 0.3 * len(bars)), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    start = np.zeros(len(bars))
    for kind, colour, share in zip(KINDS, ERRORS, shares.T, strict=False):
        axes.barh(place, share, left=start, height=0.8, color=colour, label=kind)
        for y, left, wide in zip(place, start, share, strict=True):
            if wide >= 0.05:
                axes.text(left + wide / 2, y, f"{100 * wide:.0f}", ha="center", va="center", fontsize=8)
        start += share
    axes.set_yticks(place, ["all", *(_words(names[k], k) for k in most.tolist())])
    _in_a_font(*axes.get_yticklabels())
    axes.set(xlim=(0, 1), ylim=(place[-1] + 0.6, -0.6), xlabel="share of the detections (%)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    _column(axes, place, "detections", [f"{total:,}" for total in totals], 65)
    _column(axes, place, "objects missed", [f"{a:,} of {b:,}" for a, b in missed], 170)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if len(most) < len(names):
        axes.set_title(f"all, and the {BARS} of {len(names):,} classes with the most detections", fontsize="medium")
    figure.legend(loc="outside upper center", ncols=len(ERRORS), frameon=False, fontsize="small", columnspacing=1.2)
    return figure


def _column(axes: Axes, place: NDArray[np.floating], header: str, cells: Sequence[str], end: float) -> None:
    """Words to the right of each bar, under a header; they end so many points beside the axes."""
    beside = axes.get_yaxis_transform() + ScaledTranslation(end / 72, 0, axes.figure.dpi_scale_trans)
    axes.text(1, -0.75, header, transform=beside, ha="right", va="bottom", fontsize="small", color="0.4")
    for y, cell in zip(place, cells, strict=True):
        axes.text(1, y, cell, transform=beside, ha="right", va="center", fontsize="small")


def _colours(count: int) -> list[str]:
    """A colour for each run."""
    return [RUNS[i] if i < len(RUNS) else f"#{bytes(class_colour(i)).hex()}" for i in range(count)]


def _legend(figure: Figure, runs: Sequence[str], forms: Sequence[str] | None = None) -> None:
    """The runs and their colours, once, under all panels."""
    if not runs:
        return
    lines = [Line2D([], [], color=colour) for colour in _colours(len(runs))]
    words = [_words(run, i, form) for i, (run, form) in enumerate(zip(runs, forms or ["{}"] * len(runs), strict=True))]
    columns = max(1, min(len(runs), int(figure.get_figwidth() / (0.6 + 0.09 * max(map(width, words))))))
    legend = figure.legend(lines, ["-"] * len(runs), loc="outside lower center", ncols=columns, frameon=False)
    for text, word in zip(legend.get_texts(), words, strict=True):  # now: a legend leaves out names that begin with _
        text.set_text(word)
    _in_a_font(*legend.get_texts())


def _words(name: str, number: int, form: str = "{}") -> str:
    """A name, cut in its middle if it is long, in `form`; the number instead where no font at hand can write it."""
    words = " ".join(name.split())
    head, tail = (len(words) + 1) // 2, len(words) // 2
    while width(words[:head] + words[len(words) - tail :]) > LONGEST - (head + tail < len(words)):
        head, tail = (head - 1, tail) if head > tail else (head, tail - 1)
    if head + tail < len(words):
        words = f"{words[:head].rstrip()}…{words[len(words) - tail :].lstrip()}"
    written = form.format(words)
    return written if words and font_for(written, 10) else form.format(f"#{number}")


def _in_a_font(*texts: Text) -> None:
    """Sets each text in a font that has its characters, and as it stands: a dollar sign begins no formula."""
    for text in texts:
        text.set_parse_math(False)
        if font := font_for(text.get_text(), 10):
            text.set_fontproperties(FontProperties(fname=str(font.path), size=text.get_fontsize()))
