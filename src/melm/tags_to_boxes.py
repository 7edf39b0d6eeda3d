"""`melm run DATA`: the whole job on tagged images: checked, learned, labelled, and a report, each step resumable."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from os.path import abspath
from pathlib import Path

import numpy as np

from melm.data import Source, TaggedImages, read_tags
from melm.data.check import UNUSABLE, check
from melm.data.records import DataError
from melm.detect.detector import DetectSettings, load
from melm.detect.labelling import Labelled, LabelSettings, label_images
from melm.detect.labels import Labels
from melm.errors import MelmError, UsageError
from melm.export.labels import Export, ExportSettings, write_exports
from melm.learn.data import with_boxes_of
from melm.learn.presets import LearnConfig
from melm.learn.processes import joined
from melm.learn.retrain import retrain
from melm.learn.run_folder import RunFolder
from melm.learn.students import RetrainConfig
from melm.learn.train import train
from melm.measure.truth import Truth, read_truth
from melm.measure.watching import WhileLearning
from melm.progress import Steps
from melm.proposals import ReadyMade
from melm.show.check_report import check_text
from melm.show.label_report import label_text
from melm.show.report import write_report
from melm.show.report_commands import reading_words

WATCHED = 4  # images of which the report shows how their boxes moved
MEASURED = 200  # images that are measured after every epoch, where the data has boxes
LABELS, REPORT = "labels", "report.html"  # in the run's folder


def tags_to_boxes(
    source: Source,
    out: Path,
    config: LearnConfig,
    *,
    again: RetrainConfig | None = None,
    exports: Sequence[Export] = (),
    proposals_file: ReadyMade | None = None,
    basis: Path | None = None,
    device: str = "auto",
    workers: int = 1,
    overwrite: bool = False,
    skip_bad: bool = False,
    say: Callable[[str], None] = print,
) -> Labelled:
    """Learns a detector from the tags of a data set into the folder `out`, labels every image of it, and writes a report.

    With `again` the detector is retrained on what it found; the first one is then in a folder beside, `out`-first. The same
    call goes on where it stopped.
    """
    if out.name in ("", ".."):  # the working folder, or one above
        out = Path(abspath(out))
    steps = 5 if again else 4
    first = out.with_name(f"{out.name}-first") if again else out

    def start() -> None:
        if overwrite:  # all of it now: what is stopped after this goes on without
            for folder in {out, first}:
                RunFolder(folder).clear()
            shutil.rmtree(out / LABELS, ignore_errors=True)
        require_free(out, again is not None)
        if not (first / "run.json").is_file():  # what learning has begun with was checked then
            say(f"1 of {steps}: what is in {source.path}")
            require_sound(source, workers, skip_bad, say)
        say(f"\n2 of {steps}: learning from the tags, in {first}")

    def finish() -> None:
        labels = Labels(out / LABELS, {image.id for image in images})
        say(label_text(labelled, labels, write_exports(labels, exports)))
        say(f"\n{steps} of {steps}: the report")
        report = write_report(
            out,
            out / REPORT,
            source,
            teacher=first if again else None,
            proposals_file=proposals_file,
            device=device,
            workers=workers,
        )
        say(f"{report.path}: {report.size / 1e6:.1f} MB, {report.images:,} images in its gallery")

    with joined(device) as processes:
        say = say if processes.first else lambda text: None
        processes.first_does(start)
        images = read_tags(source)
        watching = WhileLearning(
            first,
            images,
            images.classes,
            with_boxes_of(config, proposals_file),
            proposals_file,
            truth_of(source),
            MEASURED,
            watched_of(images),
        )
        train(
            source,
            first,
            config,
            proposals_file=proposals_file,
            basis=basis,
            students=again,
            device=device,
            workers=workers,
            skip_bad=skip_bad,
            after_epoch=watching,
            say=say,
        )
        processes.wait()  # for the detector, which the first writes
        if again:
            say(f"\n3 of {steps}: learning on from what it found, in {out}")
            retrain(
                first,
                source,
                out,
                again.for_images(images),
                proposals_file=proposals_file,
                device=device,
                workers=workers,
                skip_bad=skip_bad,
                say=say,
            )
            processes.wait()
        say(f"\n{steps - 1} of {steps}: labelling")
        labelled = label_images(
            load(out, None, device),
            images,
            out / LABELS,
            proposals_file=proposals_file,
            workers=workers,
            processes=processes,
        )
        processes.first_does(finish)
    return labelled


def label(
    run: Path | str,
    data: Source | Path | str,
    out: Path | str | None = None,
    to: Sequence[str | Export] = (),
    *,
    settings: LabelSettings | None = None,
    look: DetectSettings | None = None,
    proposals_file: ReadyMade | None = None,
    device: str = "auto",
    workers: int = 1,
    overwrite: bool = False,
) -> Labels:
    """The labels of a data set with tags by the detector of a run, in the folder `out` (RUN/labels), and for other tools there.

    `melm.label("runs/birds", "photos/", to=["coco", "yolo"])`; iterate over the result for images, the most doubtful first.
    """
    source = data if isinstance(data, Source) else Source(Path(data))
    folder = Path(run) / LABELS if out is None else Path(out)
    exports = [(one, ExportSettings()) if isinstance(one, str) else one for one in to]
    with joined(device) as processes:
        label_images(
            load(run, look, device),
            read_tags(source),
            folder,
            settings,
            proposals_file=proposals_file,
            workers=workers,
            overwrite=overwrite,
            processes=processes,
        )
        labels = Labels(folder)
        processes.first_does(lambda: write_exports(labels, exports, overwrite=overwrite))
    return labels


def require_free(out: Path, again: bool) -> None:
    """Refuses, before the work, a folder in which the result of it could not be."""
    if not out.name:
        raise UsageError(f"--out {out}: not a folder for a run; name one, like runs/birds")
    about = RunFolder(out).about()
    if about is None and out.is_dir() and any(out.iterdir()):
        raise UsageError(f"--out {out}: is not empty and holds no run. Name another folder")
    if about is not None and again != bool(about.get("retrained")):
        only = f"It can be learned on from: melm retrain {out} DATA --out OTHER" if again else "Add --retrain"
        raise UsageError(f"--out {out}: holds a run of the other kind. {only}; or name another --out")


def require_sound(source: Source, workers: int, skip_bad: bool, say: Callable[[str], None]) -> None:
    """Says what is in the data, and refuses what would spoil learning; with `skip_bad`, images that cannot be used do not."""
    with Steps("looking at images") as steps:
        report = check(source, workers, steps.of)
    say(check_text(report))
    errors = [p for p in report.problems if p.severity == "error" and not (skip_bad and p.kind in UNUSABLE)]
    if errors:
        only_images = all(problem.kind in UNUSABLE for problem in errors)
        leave = ", or leave these images out with --skip-bad" if only_images else ""
        raise MelmError(f"{source.path}: nothing was learned. Mend what is marked ERROR{leave}, and run again")


def truth_of(source: Source) -> Truth | None:
    """The boxes of the data, for the report's figures alone; None where it has none."""
    try:
        return read_truth(source)
    except DataError:
        return None


def next_steps(out: Path, source: Source) -> list[tuple[str, str]]:
    """(what for, command) of what one does after a run."""
    run, photos = shlex.quote(str(out)), shlex.join([str(source.path), *reading_words(source)])
    return [
        ("the boxes for another tool: coco, voc, yolo, labelstudio or cvat", f"melm label {run} {photos} --to yolo"),
        (
            "find the same things in other images, which need no tags",
            f"melm detect {run} new-photos/ --out found --draw",
        ),
        ("the detector for programs without melm", f"melm export {run} --onnx"),
    ]


def watched_of(images: TaggedImages) -> list[str]:
    """Some tagged images spread over the data, small sets of tags first: a picture of one thing shows best what is learned."""
    tagged = [image for image in images if image.tags]
    fewest = min((len(image.tags) for image in tagged), default=0)
    plain = [image for image in tagged if len(image.tags) == fewest]
    places = np.linspace(0, len(plain) - 1, min(WATCHED, len(plain))).round().astype(int)
    return [plain[i].id for i in places]
