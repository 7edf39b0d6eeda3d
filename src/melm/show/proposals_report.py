"""The words of `melm proposals`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from melm.data import Source, read_tags
from melm.data.records import Problem
from melm.measure.corloc import chance_of
from melm.measure.recall import proposal_recall
from melm.measure.truth import read_truth
from melm.proposals import Done, ProposalStore
from melm.show.check_report import problem_lines
from melm.show.curves import plot_recall
from melm.show.tables import table


def summary(done: Sequence[Done], store: ProposalStore, problems: Sequence[Problem]) -> dict[str, Any]:
    """What was done, as figures and as text."""
    failed = [d for d in done if d.error]
    counts = [d.boxes for d in done if not d.error]
    computed = [d.seconds for d in done if d.seconds is not None]
    seconds = float(np.mean(computed)) if computed else store.mean_seconds()
    result: dict[str, Any] = {
        "images": len(done),
        "computed": len(computed),
        "already_there": len(done) - len(computed) - len(failed),
        "failed": {d.id: d.error for d in failed},
        "boxes_per_image": float(np.mean(counts)) if counts else None,
        "seconds_per_image_and_core": seconds,
        "ok": bool(done) and not failed and not any(p.severity == "error" for p in problems),
        "problems": [asdict(problem) for problem in problems],
        "settings": store.settings.as_dict(),
        "store": str(store.folder),
    }
    lines = [*problem_lines([p for p in problems if p.severity != "note"]), *(f"error: {d.error}" for d in failed)]
    lines.append(
        f"{len(done):,} images: {len(computed):,} computed, {result['already_there']:,} already there, {len(failed):,} failed"
    )
    if counts:
        lines.append(f"{np.mean(counts):,.0f} boxes per image ({min(counts):,} to {max(counts):,})")
    if computed:
        lines.append(f"{seconds:.2f} s per image and core")
    lines.append(f"kept in {store.folder}")
    return result | {"text": "\n".join(lines)}


def recall_report(source: Source, done: Sequence[Done], store: ProposalStore, plot: Path) -> dict[str, Any]:
    """Recall against the data's boxes: a table, figures, and a curve in `plot`."""
    keys = {d.id: d.key for d in done if d.key}

    def boxes_of(id: str) -> Any:
        proposals = store.get(keys[id]) if id in keys else None
        return None if proposals is None else proposals.boxes

    truth = read_truth(source)
    recall = proposal_recall(truth, boxes_of)
    chances = chance_of(truth, {image.id: image.tags for image in read_tags(source)}, boxes_of)
    chance = float(np.nanmean(list(chances.values())))
    seconds = store.mean_seconds()
    rows = recall.rows()
    cells = [
        [str(r["class"]), f"{r['objects']:,}", f"{r['recall_50']:.3f}", f"{r['recall_70']:.3f}", f"{r['abo']:.3f}"]
        for r in rows
    ]
    cells.append(
        [
            "all objects",
            f"{len(recall.best):,}",
            f"{recall.at(0.5):.3f}",
            f"{recall.at(0.7):.3f}",
            f"{recall.best.mean():.3f}",
        ]
    )
    if len(recall.best_difficult):
        both = np.concatenate([recall.best, recall.best_difficult])
        with_difficult = [f"{recall.at_with_difficult(t):.3f}" for t in (0.5, 0.7)]
        cells.append(["and difficult ones", f"{len(both):,}", *with_difficult, f"{both.mean():.3f}"])
    plot_recall(
        recall, f"{store.settings.method}: {recall.images:,} images, {recall.boxes_per_image:,.0f} boxes each", plot
    )
    figures: dict[str, Any] = {
        "ok": not truth.problems,
        "problems": [asdict(problem) for problem in truth.problems],
        "images": recall.images,
        "objects": len(recall.best),
        "recall_50": recall.at(0.5),
        "recall_70": recall.at(0.7),
        "recall_50_with_difficult": recall.at_with_difficult(0.5),
        "recall_70_with_difficult": recall.at_with_difficult(0.7),
        "mabo": recall.mabo(),
        "chance_corloc": chance,
        "boxes_per_image": recall.boxes_per_image,
        "seconds_per_image_and_core": seconds,
        "classes": rows,
        "curve": {str(t): recall.curve(t) for t in (0.5, 0.7)},
        "plot": str(plot),
    }
    lines = [
        *problem_lines(truth.problems),
        table(["class", "objects", "IoU 0.5", "IoU 0.7", "best overlap"], cells),
        "",
    ]
    lines.append(f"mean average best overlap {recall.mabo():.3f}, {recall.boxes_per_image:,.0f} boxes per image")
    lines.append(f"CorLoc of a box drawn at random: {100 * chance:.1f} %, which is chance")
    if seconds is not None:
        lines.append(f"{seconds:.2f} s per image and core, over all that is in the store")
    lines.append(f"recall against the number of boxes: {plot}")
    return figures | {"text": "\n".join(lines)}
