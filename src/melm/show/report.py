"""`melm report`: a run on one page that is one file, with what it learned, what it found, and how to do it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import melm
from melm.data import Source, read_tags
from melm.detect.labels import Labels
from melm.detect.run import Looking
from melm.errors import MelmError
from melm.files import write_whole
from melm.measure.truth import Truth
from melm.proposals import ReadyMade
from melm.show import report_sections as sections
from melm.show.report_commands import Command, commands_of, reading_words, source_in
from melm.show.report_facts import Glance, RunFacts, glance_at, labels_of, read_run, teacher_of
from melm.show.report_gallery import Shot, chosen, figure, gallery_body, shots_of, thumbnails
from melm.show.report_looks import CloserLook, closer_looks, looking_as, looks_body, wanted_looks
from melm.show.report_page import Section, missing, page
from melm.show.report_scores import Scores, scores_for, truth_for

LARGEST = 14_800_000  # bytes of the page


@dataclass(frozen=True)
class Report:
    """Everything that is on the page, and what is not."""

    run: RunFacts
    teacher: RunFacts | None  # of a retrained run
    labels: Labels | None
    glance: Glance | None
    truth: Truth | None
    scores: Scores | None
    here: Mapping[str, Path]  # where images lie now, by id
    shots: list[Shot]
    looks: list[CloserLook]
    commands: list[Command]
    notes: dict[str, list[str]]  # by part: what is missing there, and why


@dataclass(frozen=True, slots=True)
class Written:
    """What became of it."""

    path: Path
    size: int  # bytes
    images: int  # in the gallery
    notes: tuple[str, ...] = field(default_factory=tuple)  # what is missing, and why


def write_report(
    run: Path,
    out: Path | None = None,
    data: Source | None = None,
    *,
    labels: Path | None = None,
    teacher: Path | None = None,
    looks: int = 4,
    look_at: Sequence[str] = (),
    proposals_file: ReadyMade | None = None,
    device: str = "auto",
    workers: int = 1,
) -> Written:
    """The report of a run as one HTML file, by default RUN/report.html.

    `data` is what was labelled; without it, what the run learned from, if that lies where it was. `labels` is the folder of
    `melm label`, by default RUN/labels; `teacher` the run that a retrained one learned from, by default RUN-first if it is that.
    `looks` images are looked at closely, or those of `look_at`.
    """
    facts = read_run(run)
    notes: dict[str, list[str]] = {}
    first = teacher_of(facts, teacher)
    of_run = labels_of(facts, labels)
    glance = glance_at(of_run) if of_run else None
    if of_run is None:
        notes["gallery"] = [f"No gallery: {run} has no labels yet. `melm label {run} DATA` makes them."]
    truth = truth_for(facts, data, glance, notes)
    here = dict(truth.files) if truth else {image.id: image.path for image in read_tags(data)} if data else {}
    scores = scores_for(truth, glance, notes)
    watched = [*facts.looks, *(first.looks if first else ())]
    wanted = wanted_looks(watched, of_run, glance, looks, look_at)
    looking = _looking(facts, of_run, proposals_file, device, notes) if wanted else None
    closer, wrong = closer_looks(wanted, watched, looking, truth, here, proposals_file, workers)
    notes.setdefault("looks", []).extend(wrong)
    report = Report(
        facts,
        first,
        of_run,
        glance,
        truth,
        scores,
        here,
        _shots(of_run, scores),
        closer,
        _commands(facts, first, data, of_run, truth is not None, notes),
        notes,
    )
    text, path = rendered(report), out or run / "report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise MelmError(f"{path}: cannot be written ({error.strerror}). Name another file with --out") from None
    return Written(path, len(text), len(report.shots), tuple(note for part in notes.values() for note in part))


def _shots(labels: Labels | None, scores: Scores | None) -> list[Shot]:
    if labels is None:
        return []
    first, drawn = chosen(len(labels))
    return shots_of(labels, {place: place in drawn for place in (*first, *drawn)}, scores)


def _looking(
    run: RunFacts, labels: Labels | None, proposals_file: ReadyMade | None, device: str, notes: dict[str, list[str]]
) -> Looking | None:
    """The detector, where there is one that can look."""
    if run.card is None:
        return None
    if run.card["config"]["proposals"].get("method") == "file" and proposals_file is None:
        words = "This run learned on the boxes of a file: give it with --file, to see what it believes of images."
        notes["looks"] = [words]
        return None
    return looking_as(run, labels, proposals_file, device)


def _commands(
    run: RunFacts,
    teacher: RunFacts | None,
    data: Source | None,
    labels: Labels | None,
    boxes: bool,
    notes: dict[str, list[str]],
) -> list[Command]:
    """How to do it again."""
    source = source_in(run.about)
    if "limit" not in run.about["data"]:
        source = data or source
        notes["configuration"] = [
            "run.json is of an earlier version and keeps the data's path and split alone. If it was read with --format, "
            "--classes, --background, --images or --limit, these belong into the commands, too."
        ]
    beside = (labels.path.parent, labels.settings) if labels else None
    taught_by = (teacher.path, teacher.about) if teacher else None
    learner = teacher or run
    watching = ["--measure"] if any(record.get("measured") for record in learner.epochs) else []
    for id in dict.fromkeys(look.id for look in learner.looks):
        watching += ["--watch", id]
    try:
        return commands_of(run.about, run.path, source, data or source, beside, boxes, taught_by, watching)
    except (MelmError, KeyError, TypeError, ValueError) as error:
        notes["configuration"] = [f"No commands: run.json is of another version of melm ({error})."]
        return []


def rendered(report: Report, largest: int = LARGEST) -> bytes:
    """The page, with thumbnails as large as there is room for."""
    bare = _page(report, [""] * len(report.shots))
    pictures, wrong = thumbnails(report.shots, report.here, largest - len(bare))
    if wrong:
        more = f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
        report.notes["gallery"] = [
            f"Images that cannot be read: {wrong[0]}{more}. If the data has moved, name its place with --data."
        ]
    return _page(report, pictures)


def _page(report: Report, pictures: Sequence[str]) -> bytes:
    run, labels, scores, notes = report.run, report.labels, report.scores, report.notes
    source = source_in(run.about)
    add = shlex.join(["melm", "label", str(run.path), str(source.path), *reading_words(source)])

    def said(part: str) -> str:
        return "".join(missing(note) for note in notes.get(part, ()))

    parts = [
        Section("data", "The data at a glance", sections.glance_body(run, report.glance, add)),
        Section("learning", "Learning", sections.learning_body(run, report.teacher)),
    ]
    if labels is not None:
        body = sections.scores_body(scores) if scores else ""
        parts.append(Section("scores", "Scores", body + said("scores")))
        figures = [
            figure(shot, picture, report.truth, number)
            for number, (shot, picture) in enumerate(zip(report.shots, pictures, strict=True))
        ]
        at_random = sum(shot.at_random for shot in report.shots)
        body = gallery_body(figures, labels.classes, len(labels), at_random, report.truth is not None)
        parts.append(Section("images", "Gallery", said("gallery") + body))
    if report.looks or notes.get("looks"):
        body = looks_body(report.looks) + said("looks")
        if not run.looks and not (report.teacher and report.teacher.looks):
            words = "No image was watched while learning, so how boxes moved is not known."
            body += missing(words, "melm train ... --watch IMAGE")
        parts.append(Section("looks", "Closer looks", body))
    if scores:
        parts.append(Section("errors", "What goes wrong", sections.errors_body(scores)))
    body = said("configuration") + sections.configuration_body(run, report.commands)
    parts.append(Section("configuration", "How to do it again", body))
    foot = f"<p>Made by melm {escape(melm.__version__)}. This page is one file and asks nothing of the network.</p>"
    return page(f"{run.name}: melm report", sections.head(run, report.glance, scores), parts, foot)
