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
    make_folder(folder)
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
            make_folder(own)
        written += [own / "errors.png", own / "confusion.png"]
        plot_errors(evaluation.best_boxes, written[-2], "The best box of each tag")
        confusion = evaluation.top_boxes.confusion()
        words = "As many detections of each class as it has objects"
        plot_confusion(confusion, evaluation.corloc.classes, written[-1], words)
        if number < len(runs):
            written += write_strips(read_looks(runs[number]), own, truth)
    return written


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MelmError(f"{folder}: cannot be made ({error.strerror}). Name another folder with --plots") from None
