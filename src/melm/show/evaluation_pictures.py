"""The pictures of `melm evaluate --plots`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from melm.errors import MelmError
from melm.measure.evaluation import Evaluation
from melm.measure.truth import Truth
from melm.measure.watching import read_looks
from melm.show.evolution import write_strips
from melm.show.plots import plot_confusion, plot_errors, plot_learning, plot_precision_recall


def write_pictures(folder: Path, evaluations: Sequence[Evaluation], runs: Sequence[Path], truth: Truth) -> list[Path]:
    """Precision and recall of all, errors and confusion of each, and of runs their learning and the images they watched.

    `runs` are the folders of the first evaluations; those after them are of files.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MelmError(f"{folder}: cannot be made ({error.strerror}). Name another folder with --plots") from None
    written = [folder / "precision-recall.png"]
    plot_precision_recall({e.name: e.precision["voc07"] for e in evaluations}, written[0])
    histories = {e.name: e.subject.epochs for e in evaluations if e.subject.epochs}
    if histories:
        written.append(folder / "learning.png")
        plot_learning(histories, written[-1])
    for number, evaluation in enumerate(evaluations):
        own = folder
        if len(evaluations) > 1:
            own = folder / f"{number + 1}-{Path(evaluation.name).name}"
            own.mkdir(exist_ok=True)
        written += [own / "errors.png", own / "confusion.png"]
        plot_errors(evaluation.best_boxes, written[-2])
        plot_confusion(evaluation.top_boxes.confusion(), evaluation.corloc.classes, written[-1])
        if number < len(runs):
            written += write_strips(read_looks(runs[number]), own, truth)
    return written
