"""The parts of a report as HTML, from the facts that were gathered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from melm.measure.error_analysis import KINDS, NOT_COUNTED, ErrorAnalysis
from melm.progress import duration
from melm.show.report_commands import Command
from melm.show.report_curves import CHARTS, chart_svg, series_of
from melm.show.report_facts import Glance, RunFacts
from melm.show.report_page import bar, columns, missing, percent, stacked, table
from melm.show.report_scores import Scores

MANY_TAGS = 4  # tags of an image from which they are counted together
# What the kinds of errors mean, in a few words.
MEANING = {
    "correct": "overlaps an object of its class by at least 0.5",
    "duplicate": "so, but a surer box found that object",
    "wrong class": "on an object of another class",
    "part": "inside an object of its class, too small",
    "too large": "around an object of its class, too large",
    "misplaced": "near an object of its class",
    "background": "on nothing of its class",
}


def head(run: RunFacts, glance: Glance | None, scores: Scores | None) -> str:
    """The title, and the figures that stand for the rest."""
    config = run.about["config"]
    retrained = ", retrained" if run.about.get("retrained") else ""
    method = f"{config.get('method')}{retrained}, preset {config.get('preset')}"
    cards = {"images learned from": f"{run.about['data'].get('images', 0):,}", "classes": f"{len(run.classes):,}"}
    if run.epochs:
        cards["epochs"] = f"{len({record['epoch'] for record in run.epochs})}"
    if run.card:
        cards["time to learn"] = duration(float(run.card.get("seconds", 0)))
    if glance:
        cards["images labelled"] = f"{glance.images:,}"
        cards["boxes"] = f"{sum(glance.boxes.values()):,}"
    if scores:
        cards["CorLoc of the labels"] = f"{percent(scores.corloc.mean)} %"
        cards["AP of the labels"] = f"{percent(scores.precision.mean)} %"
    state = "" if run.card else missing("This run is not finished: the curves end where it is.")
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in cards.items())
    return f'<h1>{escape(run.name)}</h1><p class="sub">{escape(method)}</p>{state}<dl class="cards">{listed}</dl>'


def glance_body(run: RunFacts, glance: Glance | None, add: str) -> str:
    """The data at a glance."""
    data = run.about["data"]
    split = f", split {data['split']}" if data.get("split") else ""
    facts = [
        f"Learned from {data.get('images', 0):,} images of <code>{escape(str(data.get('path')))}</code>{escape(split)}."
    ]
    left_out = run.about.get("left_out") or []
    if left_out:
        facts.append(f"{len(left_out):,} images were left out because they cannot be used.")
    if glance is None:
        words = "No labels of this run, so there are neither counts of tags nor a gallery."
        names = ", ".join(escape(name) for name in run.classes)
        return f"<p>{' '.join(facts)}</p><p>Classes: {names}.</p>{missing(words, add)}"
    counts: dict[int, int] = {}
    for number, images in sorted(glance.tags_per_image.items()):
        counts[min(number, MANY_TAGS)] = counts.get(min(number, MANY_TAGS), 0) + images
    shares = ", ".join(f"{f'{n} or more' if n == MANY_TAGS else n}: {images:,}" for n, images in counts.items())
    sizes = ", ".join(f"{name} {w} x {h}" for name, (w, h) in glance.middle_sizes().items())
    facts.append(f"Labelled: {glance.images:,} images. Tags an image: {shares}. Sizes: {sizes}.")
    histogram = np.histogram(glance.doubts, bins=20, range=(0, 1))[0].tolist()
    most = max(glance.tagged.values(), default=1)
    rows = [
        [
            escape(name),
            f"{glance.tagged[name]:,}",
            bar(glance.tagged[name] / most),
            f"{glance.boxes[name]:,}",
            "-" if np.isnan(sure := glance.mean_confidence(name)) else f"{sure:.2f}",
        ]
        for name in glance.classes
    ]
    header = ["class", "images", '<span class="hidden">share</span>', "boxes", "mean confidence"]
    return (
        f"<p>{' '.join(facts)}</p>"
        + columns(histogram, ("0 sure", "1 doubtful"), "Images by doubt")
        + table(
            header,
            rows,
            "Tags, and the boxes that were drawn for them. Confidence is that of the best box of each tag.",
        )
    )


def learning_body(run: RunFacts, teacher: RunFacts | None) -> str:
    """Curves of everything that the logs have; of a retrained run also those of its teacher, if that is at hand."""
    if teacher is not None:
        return f"<h3>The run that taught it</h3>{_curves(teacher)}<h3>Its students</h3>{_curves(run)}"
    body = _curves(run)
    if run.about.get("retrained"):
        words = "The entropies are those of the run that taught this one, which is not at hand. Name it with --teacher."
        body += missing(words)
    return body


def _curves(run: RunFacts) -> str:
    drawn, absent, figures = [], [], []
    for chart in CHARTS:
        series = series_of(chart, run.epochs, run.steps)
        if not series:
            absent.append(chart)
            continue
        keys = "".join(f'<li class="s{number}">{escape(one.name)}</li>' for number, one in enumerate(series, 1))
        legend = f'<ul class="keys">{keys}</ul>' if len(series) > 1 else ""
        drawn.append(
            f"<figure><figcaption><b>{chart.title}</b> <span>{chart.about}</span>{legend}</figcaption>"
            f"{chart_svg(chart.title, series, chart.logarithmic)}</figure>"
        )
        figures += [(chart, one) for one in series]
    body = f'<div class="charts">{"".join(drawn)}</div>' if drawn else missing("No epoch is finished yet.")
    if drawn:
        epochs = sorted({x for _, one in figures for x, _ in one.points})
        rows = []
        for epoch in epochs:
            values = [dict(one.points).get(epoch) for _, one in figures]
            rows.append([f"{epoch:g}", *("-" if value is None else f"{value:.4g}" for value in values)])
        names = [chart.title if len(chart.names) == 1 else f"{chart.title}: {one.name}" for chart, one in figures]
        inner = table(["epoch", *map(escape, names)], rows)
        body += f"<details><summary>The numbers, epoch by epoch</summary>{inner}</details>"
    if drawn and not run.about.get("retrained") and any(chart.part == "measured" for chart in absent):
        body += missing(
            "Localization accuracy and variance were not measured while learning; that needs data with boxes.",
            "melm train ... --measure",
        )
    return body


def scores_body(scores: Scores) -> str:
    rows = [
        [
            escape(str(row["class"])),
            f"{int(float(row['images'])):,}",
            percent(float(row["CorLoc"])),
            percent(float(row["AP"])),
            f"{int(float(row['boxes'])):,}",
            percent(float(row["right"])),
            f"{int(float(row['objects'])):,}",
            percent(float(row["found"])),
        ]
        for row in scores.rows()
    ]
    header = ["class", "images", "CorLoc %", "AP %", "boxes", "right %", "objects", "found %"]
    words = (
        "<p>The labels against the true boxes of the same images, an overlap of at least 0.5 being right. "
        "<b>CorLoc</b>: tags whose best box is on an object. <b>AP</b>: VOC 2007's average precision, of labels: boxes of an "
        "image's own tags, so it is not that of a detector, which has to find out the classes too (<code>melm evaluate</code>). "
        "<b>right</b>: boxes that are; <b>found</b>: objects that have one. Objects marked difficult are not counted.</p>"
    )
    less = len(scores.corloc.without_box)
    rest = f"<p>{less:,} tags have no true box to measure against.</p>" if less else ""
    total = f"{len(scores.truth.images):,} images measured"
    return words + table(header, rows, total, last_is_total=True) + rest


def errors_body(scores: Scores) -> str:
    """What the boxes are, class by class."""
    keys = "".join(f'<li class="e{k}"><b>{kind}</b> {MEANING[kind]}</li>' for k, kind in enumerate(KINDS[:NOT_COUNTED]))
    return (
        f'<ul class="keys kinds">{keys}</ul>'
        + _errors(scores.best_boxes, "The best box of each tag, share of each kind in %")
        + f"<details><summary>All boxes</summary>{_errors(scores.every_box, 'All boxes, share of each kind in %')}</details>"
    )


def _errors(analysis: ErrorAnalysis, caption: str) -> str:
    counts = analysis.counts[:, :NOT_COUNTED]
    names = [escape(name) for name in analysis.gathered.classes]
    lines = [(names[k], counts[k]) for k in range(len(names)) if counts[k].sum()]
    rows = []
    for name, of_kind in [*lines, ("all", counts.sum(axis=0))]:
        shares = of_kind / max(of_kind.sum(), 1)
        told = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in zip(KINDS, shares, strict=False) if share)
        parts = [(f"e{k}", float(share)) for k, share in enumerate(shares)]
        rows.append(
            [name, f"{int(of_kind.sum()):,}", stacked(parts, told), *(f"{100 * share:.0f}" for share in shares)]
        )
    header = ["class", "boxes", '<span class="hidden">shares</span>', *KINDS[:NOT_COUNTED]]
    return table(header, rows, caption, last_is_total=True)


def configuration_body(run: RunFacts, commands: Sequence[Command]) -> str:
    """How to make all of this again: commands, settings, versions."""
    lines = "".join(
        f"<li>{escape(command.does)}<pre><code>{escape(command.line)}</code></pre>"
        + "".join(f'<p class="unknown">{escape(text)}</p>' for text in command.unknown)
        + "</li>"
        for command in commands
    )
    body = f'<ol class="commands">{lines}</ol>' if commands else ""
    kept: dict[str, Mapping[str, Any]] = {"Settings": run.about["config"], "Versions": run.about["versions"]}
    if run.about.get("retrained"):
        kept["Settings of retraining"] = run.about["retrained"]
    others: dict[str, Any] = {
        key: run.about.get(key)
        for key in ("device", "processes", "data_digest", "basis", "teacher", "teaches_along")
        if key in run.about
    }
    kept["The run"] = {**others, "data": run.about["data"], "seconds": (run.card or {}).get("seconds")}
    for title, values in kept.items():
        rows = [[escape(name), escape(value)] for name, value in _flat(values)]
        body += f"<details><summary>{title}</summary>{table(['name', 'value'], rows)}</details>"
    return body


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Every setting, those of a group as `group.name`."""
    rows = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{before}{name}.")
        else:
            rows.append((f"{before}{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
    return rows
