"""The commands that make a run, its labels and its report again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from melm.config import MethodConfig
from melm.data import Source
from melm.detect.detector import DetectSettings
from melm.detect.labelling import LabelSettings
from melm.learn.network import default_branch
from melm.learn.presets import LearnConfig, learn_config
from melm.learn.students import RetrainConfig
from melm.proposals import ProposalSettings

LONG = 60  # columns of a line after which an option goes to the next
READING = ("format", "split", "images", "classes", "background", "limit")  # options with which data is read


@dataclass(frozen=True, slots=True)
class Command:
    """What a command does, the command, and what only its user knows."""

    does: str
    words: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """As a shell reads it, a long one on several lines."""
        lines = [""]
        for word in self.words:
            quoted = shlex.quote(word)
            if word.startswith("--") and len(lines[-1]) > LONG:
                lines.append("   ")
            lines[-1] += f" {quoted}" if lines[-1] else quoted
        return " \\\n".join(lines)


def reading_words(source: Source) -> list[str]:
    """The options with which a command reads the data again."""
    words = []
    for name in READING:
        value = getattr(source, name)
        if value is not None:
            words += [f"--{name}", ",".join(value) if name == "classes" else str(value)]
    return words


def _data_words(source: Source) -> list[str]:
    return [str(source.path), *reading_words(source)]


def source_in(about: Mapping[str, Any]) -> Source:
    """The data as run.json names it."""
    data = about["data"]
    given = {name: data.get(name) for name in ("format", "split", "background", "limit")}
    folder, classes = data.get("image_folder"), data.get("classes")
    return Source(
        Path(str(data["path"])),
        images=None if folder is None else Path(folder),
        classes=None if classes is None else tuple(classes),
        **given,
    )


def commands_of(
    about: Mapping[str, Any],
    run: Path,
    source: Source,
    labelled: Source,
    labels: tuple[Path, Mapping[str, Any]] | None,
    boxes: bool,
    teacher: tuple[Path, Mapping[str, Any]] | None = None,
    watching: Sequence[str] = (),
) -> list[Command]:
    """Learn from `source`, retrain if it was, label `labelled`, measure if there are boxes, report.

    `labels` are a folder and their settings; `teacher` is the folder and the run.json of the run that taught a retrained one,
    where it is known; `watching` are the options with which learning was watched, which change nothing of it.
    """
    config = LearnConfig.from_dict(about["config"])
    data = _data_words(source)
    result = []
    if about.get("retrained"):
        first, of_first = teacher or (Path(f"{run}-first"), about)
        known = teacher is not None and not of_first.get("retrained")
        if known or (teacher is None and not about.get("rounds")):
            of_data = _data_words(source_in(of_first)) if teacher else data
            result.append(train_command(config, of_first, [*of_data, *watching], str(first)))
        again = retrain_command(about, str(first), data, run)
        lost = () if teacher else (f"{first}: its teacher, wherever that lies",)
        result.append(replace(again, unknown=(*lost, *again.unknown)))
    else:
        result.append(train_command(config, about, [*data, *watching], str(run)))
    from_file = config.proposals.method == "file"
    file = ["--file", "FILE", *_option("--file-boxes", config.proposals.file_boxes)] if from_file else []
    unknown = ("FILE: its boxes",) if from_file else ()
    data = _data_words(labelled)
    named = ["--data", *data]
    folder, settings = labels or (run / "labels", {})
    out = [] if folder == run / "labels" else ["--out", str(folder)]
    own = "fused" if about.get("retrained") else default_branch(config)
    how = _looking(settings, own)
    alike = _changed("--alike", settings, LabelSettings(), "alike")
    result.append(Command("Label the images", ("melm", "label", str(run), *data, *out, *how, *alike, *file), unknown))
    if boxes:
        measure = ("melm", "evaluate", str(run), *named, *how, *file)
        result.append(Command("Measure what it detects", measure, unknown))
    of_labels = ["--labels", str(folder)] if out else []
    result.append(Command("Make this page", ("melm", "report", str(run), *named, *of_labels, *file), unknown))
    return result


def train_command(config: LearnConfig, about: Mapping[str, Any], data: Sequence[str], out: str) -> Command:
    """`melm train` with the settings that are not the preset's."""
    words = ["melm", "train", *data, "--out", out, "--preset", config.preset, "--method", config.method]
    words += ["--seed", str(config.seed)]
    unknown = []
    plain = learn_config(config.preset, config.method, {"seed": config.seed})
    words += ["--epochs", str(config.epochs)]  # named, or a small data set would get more; `drop_after` moves along
    plain = replace(plain, epochs=config.epochs, drop_after=max(1, config.epochs * 3 // 4))
    boxes, unknown_boxes = _proposal_words(config.proposals, plain.proposals)
    words += boxes
    unknown += unknown_boxes
    of_method = [field.name for field in fields(MethodConfig)]
    of_config = [f.name for f in fields(LearnConfig) if f.name not in ("preset", "method", "settings", "proposals")]
    words += _set_words(config.settings, plain.settings, of_method) + _set_words(config, plain, of_config)
    if about.get("basis"):
        words += ["--basis", "EARLIER-RUN"]
        unknown.append("EARLIER-RUN: the run whose basis was used")
    return Command("Learn", _started(words, about), tuple(unknown))


def retrain_command(about: Mapping[str, Any], first: str, data: Sequence[str], out: Path) -> Command:
    """`melm retrain` with the settings that are not the usual ones."""
    config, proposals = RetrainConfig.from_dict(about["retrained"]), LearnConfig.from_dict(about["config"]).proposals
    words = ["melm", "retrain", first, *data, "--out", str(out), "--seed", str(config.seed)]
    unknown = []
    for number in range(1, len(about.get("teaches_along", [])) + 1):
        words += ["--with", f"OTHER-{number}"]
        unknown.append(f"OTHER-{number}: a run that taught along")
    boxes, unknown_boxes = _proposal_words(proposals, proposals)  # those of the run, but a file has to be given again
    words += boxes
    unknown += unknown_boxes
    plain = RetrainConfig(seed=config.seed)
    for name in ("backbone", "weights", "weights_sha256", "epochs", "folds"):
        if name == "epochs" or getattr(config, name) != getattr(plain, name):
            words += [f"--{name.replace('_', '-')}", str(getattr(config, name))]
            plain = plain.with_(**{name: getattr(config, name)})
    words += _set_words(config, plain, [field.name for field in fields(RetrainConfig)])
    return Command("Learn on from what it found", _started(words, about), tuple(unknown))


def _started(words: Sequence[str], about: Mapping[str, Any]) -> tuple[str, ...]:
    """A command with how it was started: in so many processes, with what cannot be used left out."""
    left_out = ["--skip-bad"] if about.get("left_out") else []
    many = int(about.get("processes") or 1)
    before = ["torchrun", "--nproc-per-node", str(many), "-m"] if many > 1 else []
    return (*before, *words, *left_out)


def _proposal_words(proposals: ProposalSettings, plain: ProposalSettings) -> tuple[list[str], list[str]]:
    words, unknown = [], []
    if proposals.method == "file":
        words += ["--file", "FILE", *_option("--file-boxes", proposals.file_boxes)]
        unknown.append(f"FILE: its boxes (digest {proposals.file_digest})")
    elif proposals.method != plain.method:
        words += ["--proposals", proposals.method]
    if proposals.method != plain.method:
        plain = ProposalSettings(proposals.method)
    if proposals.max_boxes != plain.max_boxes:
        words += ["--max-boxes", str(proposals.max_boxes)]
    known = replace(
        plain, max_boxes=proposals.max_boxes, file_digest=proposals.file_digest, file_boxes=proposals.file_boxes
    )
    now, then = asdict(proposals), asdict(known)
    unknown += [f"{name} = {now[name]} of the proposals, in Python" for name in now if now[name] != then[name]]
    return words, unknown


def _set_words(now: Any, plain: Any, names: Sequence[str]) -> list[str]:
    """--set for every setting that is another."""
    words = []
    for name in names:
        value = getattr(now, name)
        if value != getattr(plain, name):
            words += ["--set", f"{name}={_written(value)}"]
    return words


def _written(value: Any) -> str:
    """A value as --set reads it."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)  # a word that would be read as a number


def _looking(settings: Mapping[str, Any], own: str) -> list[str]:
    """How labels were looked for, where that is not the run's habit."""
    words = [] if settings.get("branch", own) == own else ["--branch", str(settings["branch"])]
    for name in ("views", "nms", "vote", "agree"):
        words += _changed(f"--{name}", settings, DetectSettings(), name)
    return words


def _changed(option: str, settings: Mapping[str, Any], plain: Any, name: str) -> list[str]:
    value = settings.get(name, getattr(plain, name))
    return [] if value == getattr(plain, name) else [option, str(value)]


def _option(option: str, value: str | None) -> list[str]:
    return [] if value is None else [option, value]
