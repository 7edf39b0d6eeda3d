"""Line charts as SVG, drawn with the page's own colours so that they are readable in light and in dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

Point = tuple[float, float]
Record = Mapping[str, Any]
WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 48, 10, 10, 30  # room around the plot, for numbers
BINS = 160  # points of a line of single steps: finer than the picture is


@dataclass(frozen=True)
class Series:
    """One line: a point for every epoch, and the steps between them, faint."""

    name: str
    points: list[Point]  # epochs done, value
    steps: list[Point]

    def drawn(self) -> list[Point]:
        """A mean over an epoch stands in its middle, where its steps are; what was measured after it, at its end."""
        return [(x - 0.5, y) for x, y in self.points] if self.steps else self.points


@dataclass(frozen=True)
class Chart:
    """What is drawn, and what the log calls it."""

    title: str
    about: str
    names: Mapping[str, str]  # of a series -> the log's
    part: str = "mean"  # of the log's record
    logarithmic: bool = False


CHARTS = (
    Chart("Loss", "what is made smaller", {"all": "loss", "discovery": "discovery", "localization": "localization"}),
    Chart("Global entropy", "of object discovery, mean over the images' tags", {"global entropy": "global_entropy"}),
    Chart("Local entropy", "of object localization, mean over the branches", {"local entropy": "local_entropy"}),
    Chart(
        "Gradients",
        "norms, on a logarithmic scale",
        {"discovery": "gradient_discovery", "localization": "gradient_localization"},
        logarithmic=True,
    ),
    Chart(
        "Localization accuracy",
        "mean overlap of the proposals with the object, by probability",
        {"localization accuracy": "localization_accuracy"},
        "measured",
    ),
    Chart(
        "Localization variance",
        "how scattered that overlap is: the randomness of localization",
        {"localization variance": "localization_variance"},
        "measured",
    ),
    Chart("CorLoc while learning", "share of tags whose best box is right", {"CorLoc": "corloc"}, "measured"),
)


def series_of(chart: Chart, epochs: Sequence[Record], steps: Sequence[Record]) -> list[Series]:
    """The lines of a chart that there are. One that is 0 everywhere is of a branch that the method does not have."""
    result = []
    for name, key in chart.names.items():
        last: dict[int, Any] = {
            record["epoch"]: (record.get(chart.part) or {}).get(key) for record in epochs
        }  # one done again counts once
        points = [(epoch + 1.0, float(last[epoch])) for epoch in sorted(last) if _finite(last[epoch])]
        if any(value for _, value in points):
            between = _binned(steps, key) if chart.part == "mean" else []
            result.append(Series(name, points, between))
    if len(result) == 2 and result[0].name == "all":  # one part, which is all of it
        result = result[:1]
    return result


def _binned(steps: Sequence[Record], key: str) -> list[Point]:
    """Single steps as means of neighbours, against the share of epochs done."""
    lengths: dict[int, int] = {}
    for record in steps:
        lengths[record["epoch"]] = max(lengths.get(record["epoch"], 0), int(record["step"]) + 1)
    there = [
        (record["epoch"] + (record["step"] + 0.5) / lengths[record["epoch"]], float(record[key]))
        for record in steps
        if _finite(record.get(key))
    ]
    parts = np.array_split(np.array(there).reshape(-1, 2), min(len(there), BINS) or 1)
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in parts if len(part)]


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def chart_svg(title: str, series: Sequence[Series], logarithmic: bool = False) -> str:
    """An SVG picture of lines over epochs. Its colours are the page's: classes s1, s2 and s3."""
    every = [point for one in series for point in (*one.points, *one.steps)]
    xs, ys = [x for x, _ in every], [y for _, y in every if y > 0 or not logarithmic]
    last = max(xs, default=1.0)
    low, high = min(ys, default=0.0), max(ys, default=1.0)
    if not logarithmic and low > 0:
        low = 0.0
    ticks = _decades(low, high) if logarithmic else nice_ticks(low, high)
    if not logarithmic:  # the axis ends at a number
        low, high = min(low, ticks[0]), max(high, ticks[-1])

    def across(x: float) -> float:
        return LEFT + x / last * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        value, bottom, top = (math.log10(max(v, 1e-30)) if logarithmic else v for v in (y, low, high))
        share = (value - bottom) / (top - bottom) if top > bottom else 0.5
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tick in ticks:
        y = f"{down(tick):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{float(y) + 4:.1f}">{tick:g}</text>')
    for epoch in nice_ticks(0, last, whole=True):
        if epoch <= last:
            parts.append(f'<text class="middle" x="{across(epoch):.1f}" y="{HEIGHT - 12}">{epoch:g}</text>')
    parts.append(f'<text class="end axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 1}">epochs</text>')
    for number, one in enumerate(series, 1):
        for points, faint in ((one.steps, " faint"), (one.drawn(), "")):
            shown = [(x, y) for x, y in points if y > 0 or not logarithmic]
            if len(shown) > 1:
                line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in shown)
                parts.append(f'<polyline class="line s{number}{faint}" points="{line}"/>')
            if not faint:
                words = escape(one.name)
                epochs = {x: epoch for (x, _), (epoch, _) in zip(one.drawn(), one.points, strict=True)}
                parts += [
                    f'<circle class="dot s{number}" cx="{across(x):.1f}" cy="{down(y):.1f}" r="3">'
                    f"<title>{words}, epoch {epochs[x]:g}: {y:.4g}</title></circle>"
                    for x, y in shown
                ]
    told = "; ".join(f"{one.name} from {one.points[0][1]:.3g} to {one.points[-1][1]:.3g}" for one in series)
    label = escape(f"{title} over {last:g} epochs: {told}")
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def nice_ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """About five round numbers from at most `low` to at least `high`."""
    span = high - low if high > low else abs(high) or 1.0
    rough = span / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    if whole:
        step = max(1.0, float(math.ceil(step)))
    first, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, max(end, first + 1) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Round numbers between, 1, 2 and 5 of every power of ten, or the powers alone where there are many."""
    powers = range(math.floor(math.log10(max(low, 1e-30))), math.ceil(math.log10(max(high, 1e-30))) + 1)
    factors = (1, 2, 5) if len(powers) <= 3 else (1,)
    return [tick for power in powers for factor in factors if low <= (tick := factor * 10.0**power) <= high]
