"""The words of `melm check`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from melm.data.check import CheckReport
from melm.data.records import Problem
from melm.show.tables import bar, pad, width

SHOWN = 10  # problems of one kind, unless all are asked for
MARK = {"error": "ERROR", "warning": "warning", "note": "note"}


def check_text(report: CheckReport, show_all: bool = False) -> str:
    return "\n".join(
        [*_head(report), "", *_classes(report), "", *problem_lines(report.problems, show_all), "", _verdict(report)]
    )


def _head(report: CheckReport) -> list[str]:
    split = f", split {report.split}" if report.split else ""
    others = [s for s in report.splits if s != report.split]
    also = f" (others: {', '.join(others)})" if others else ""
    lines = [f"{report.path}: {report.format}{split}{also}"]
    broken = report.images - report.usable
    lines.append(
        f"{report.images:,} images"
        + (f", {broken:,} of them not usable" if broken else "")
        + f", {len(report.classes)} classes"
    )
    if report.tags_per_image:
        shares = ", ".join(
            f"{'4 or more' if n == 4 else n}: {count:,}" for n, count in _up_to_four(report.tags_per_image).items()
        )
        lines.append(f"tags per image  {shares}")
    if report.sizes:
        lines.append("sizes  " + ", ".join(f"{name} {w} x {h}" for name, (w, h) in report.sizes.items()))
    if report.boxes:
        lines.append(f"{report.boxes:,} boxes, for measuring only: learning never sees them")
    return lines


def _up_to_four(counts: dict[int, int]) -> dict[int, int]:
    folded: dict[int, int] = {}
    for n, count in counts.items():
        folded[min(n, 4)] = folded.get(min(n, 4), 0) + count
    return folded


def _classes(report: CheckReport) -> list[str]:
    if not report.classes:
        return []
    most = max(report.classes.values()) or 1
    columns = max(width(name) for name in report.classes)
    lines = []
    for name, count in report.classes.items():
        unsure = f"  ({report.unknown[name]:,} unsure)" if name in report.unknown else ""
        lines.append(f"  {pad(name, columns)}  {count:>7,}  {bar(count / most)}{unsure}")
    if report.unknown:
        lines.append("  unsure: only difficult objects of the class, so neither a tag nor its absence")
    return lines


def problem_lines(problems: Sequence[Problem], show_all: bool = False) -> list[str]:
    """Problems by kind, the first few of each unless all are asked for."""
    lines = []
    for (severity, kind), group in groupby(problems, key=lambda p: (p.severity, p.kind)):
        alike = list(group)
        lines += ["", f"{MARK[severity]}: {kind} ({len(alike):,})"]
        shown = alike if show_all else alike[:SHOWN]
        lines += [_line(problem) for problem in shown]
        if len(shown) < len(alike):
            lines.append(f"  ... and {len(alike) - len(shown):,} more (--all prints every one)")
    return lines[1:]


def _line(problem: Problem) -> str:
    line = f"  {problem.file}: {problem.message.removeprefix(f'{problem.file}: ')}"
    return line.replace(f"{Path.cwd()}/", "")  # paths as seen from here


def _verdict(report: CheckReport) -> str:
    errors = sum(p.severity == "error" for p in report.problems)
    warnings = sum(p.severity == "warning" for p in report.problems)
    if errors:
        return f"{errors:,} problem{'s' * (errors > 1)} would spoil training" + (
            f"; {warnings:,} more to look at" if warnings else ""
        )
    if warnings:
        return f"Ready, with {warnings:,} thing{'s' * (warnings > 1)} to look at."
    return "Ready: nothing wrong was found."
