"""The pictures of `melm evaluate --plots`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from melm.data.images import read_image
from melm.errors import MelmError
from melm.measure.evaluation import Evaluation
from melm.measure.truth import Truth
from melm.measure.watching import read_looks
from melm.show.drawings import contact_sheet, draw_detections, save_jpeg
from melm.show.evolution import write_strips
from melm.show.plots import plot_confusion, plot_errors, plot_learning, plot_precision_recall


def write_pictures(folder: Path, evaluations: Sequence[Evaluation], runs: Sequence[Path], truth: Truth) -> list[Path]:
    """Precision and recall of all, errors, confusion and examples of each, and of runs their learning and what they watched.

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
        sheet = examples(evaluation, truth)
        if sheet is not None:
            written.append(own / "examples.jpg")
            save_jpeg(sheet, written[-1])
        if number < len(runs):
            written += write_strips(read_looks(runs[number]), own, truth)
    return written


def examples(evaluation: Evaluation, truth: Truth, most: int = 24) -> NDArray[np.uint8] | None:
    """Images spread over the data with the best box of each tag: right ones green, wrong ones red, the true objects yellow."""
    corloc, drawn = evaluation.corloc, []
    tagged = np.unique(corloc.pair_image)
    for image in tagged[np.linspace(0, len(tagged) - 1, min(most, len(tagged))).round().astype(int)]:
        id = corloc.image_ids[image]
        found = evaluation.subject.detections.get(id)
        if found is None or id not in truth.files:
            continue
        tags = [corloc.classes[k] for k in corloc.pair_class[corloc.pair_image == image]]
        pixels = read_image(truth.files[id])
        drawn.append(draw_detections(pixels, found.only(truth.classes).best_of(tags), 0.0, truth.images[id]))
    return contact_sheet(drawn, columns=6, width=2000) if drawn else None


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MelmError(f"{folder}: cannot be made ({error.strerror}). Name another folder with --plots") from None
