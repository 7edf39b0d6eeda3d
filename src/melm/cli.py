"""The command line. Each command prints plain words; `--json` prints the same for machines.

Exit codes: 0 fine, 1 the data or the run has problems, 2 wrong use, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

import melm
from melm.data import Source
from melm.data.formats import FORMATS
from melm.errors import MelmError, UsageError, did_you_mean, one_of
from melm.proposals.record import FILE_BOXES, METHODS
from melm.workers import available_cores

RESUMABLE = ("proposals", "features", "train", "detect", "demo")
Command = TypeVar("Command", bound=Callable[..., Any])


class Commands(click.Group):
    """A group that asks "did you mean" for a mistyped command, as click itself does for options."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            raise UsageError(f"there is no command {args[0]!r}.{did_you_mean(args[0], known)} See melm --help.")
        return super().resolve_command(ctx, args)


class Name(click.ParamType):  # type: ignore[type-arg]
    """One of several names, with "did you mean" for a mistyped one."""

    def __init__(self, what: str, names: tuple[str, ...]) -> None:
        self.name, self.names = what, names

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self.names)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return one_of(self.name, value, self.names)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(melm.__version__, prog_name="melm", message="%(prog)s %(version)s")
def cli() -> None:
    """Object detectors learned from image tags alone.

    \b
    Example:
      melm check photos/            what is in a folder of tagged images, and what is wrong with it
      melm train photos/ --out run  learn a detector from the tags
      melm detect run new-photos/   find things with it
      melm demo                     all of it on a generated data set, in minutes
    """


def data_options(command: Command) -> Command:
    """The argument DATA and the options with which every command reads it."""
    for option in reversed(
        [
            click.argument("data", type=click.Path(path_type=Path)),
            click.option(
                "--format",
                type=Name("format", tuple(FORMATS)),
                help="How DATA is laid out; found by looking if not given.",
            ),
            click.option("--split", help="Part of the data: train, val, trainval, test, ... as the format names them."),
            click.option(
                "--images",
                type=click.Path(path_type=Path),
                help="Folder of the images, where the data does not lie beside them.",
            ),
            click.option("--classes", help="Only these classes, separated by commas."),
            click.option(
                "--background", metavar="CLASS", help="A class whose images are known to show none of the others."
            ),
        ]
    ):
        command = option(command)
    return command


def workers_option(command: Command) -> Command:
    return click.option(
        "--workers", type=click.IntRange(min=1), default=available_cores, show_default="all cores", help="Processes."
    )(command)


def source_of(options: dict[str, Any]) -> Source:
    """Takes the options of `data_options` out of a command's options."""
    classes = options.pop("classes")
    names = None if classes is None else tuple(name.strip() for name in classes.split(",") if name.strip())
    if names is not None and (not names or len(set(names)) < len(names)):
        raise UsageError(f"--classes {classes}: names separated by commas, each once, were expected")
    return Source(
        options.pop("data"),
        options.pop("format"),
        options.pop("split"),
        options.pop("images"),
        names,
        options.pop("background"),
    )


@cli.command()
@data_options
@workers_option
@click.option("--all", "show_all", is_flag=True, help="Print every problem, however many there are of a kind.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, with every problem.")
def check(workers: int, show_all: bool, as_json: bool, **options: Any) -> int:
    """Say what is in DATA and what is wrong with it.

    DATA is a folder per class, a CSV of files and tags, PASCAL VOC, COCO JSON, YOLO, labelImg or ILSVRC 2013.
    Exit code 1 means: a problem that would spoil training.

    \b
    Example:
      melm check photos/
      melm check tags.csv --images photos/ --json
      melm check VOCdevkit/VOC2007 --split trainval
    """
    from melm.data.check import check as check_data
    from melm.progress import Steps
    from melm.show.check_report import check_text

    with Steps("looking at images") as steps:
        report = check_data(source_of(options), workers, steps.of)
    print(json.dumps(report.as_dict(), indent=1, ensure_ascii=False) if as_json else check_text(report, show_all))
    return 0 if report.ok else 1


@cli.command()
@data_options
@click.option(
    "--method",
    type=Name("proposal method", METHODS),
    show_default="selective-search, or file where --file is given",
    help="How boxes are found.",
)
@click.option(
    "--file", type=click.Path(path_type=Path), help="Boxes somebody made, to import: .mat (Fast R-CNN), .npz or .pkl."
)
@click.option(
    "--file-boxes",
    type=Name("way to write boxes", FILE_BOXES),
    help="How FILE writes boxes: xyxy by edges, xyxy0, xyxy1 or yxyx1 by pixels counted from 0 or 1.",
)
@click.option(
    "--max-boxes", type=int, default=2000, show_default=True, help="Most boxes per image, the whole image included."
)
@click.option("--min-side", type=float, default=20, show_default=True, help="Shortest side of a box in pixels.")
@click.option("--max-side", type=int, default=512, show_default=True, help="Larger images are searched at this size.")
@click.option(
    "--whole-image/--no-whole-image", default=True, show_default=True, help="Add the whole image as one more proposal."
)
@click.option("--recall", is_flag=True, help="Measure against the data's boxes.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    default="proposals-recall.png",
    show_default=True,
    help="Where --recall draws its curve.",
)
@workers_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def proposals(
    method: str | None,
    file: Path | None,
    file_boxes: str | None,
    max_boxes: int,
    min_side: float,
    max_side: int,
    whole_image: bool,
    recall: bool,
    plot: Path,
    workers: int,
    as_json: bool,
    **options: Any,
) -> int:
    """Find where objects could be in every image of DATA, and keep it.

    Results lie in a store (MELM_CACHE, else the user's cache folder), by the content of each image. The same command goes
    on where it was stopped.

    \b
    Example:
      melm proposals photos/
      melm proposals VOC2007 --split val --method edge-boxes --recall
      melm proposals VOC2007 --file voc_2007_trainval.mat
    """
    from melm.data import read_tags
    from melm.progress import Steps
    from melm.proposals import ProposalSettings, ProposalStore, ReadyMade, make_proposals, settings_for_file
    from melm.show.curves import require_plot
    from melm.show.proposals_report import recall_report, summary

    method = method or ("file" if file else "selective-search")
    settings = ProposalSettings(method, max_boxes, min_side, max_side, whole_image)
    if (method == "file") != (file is not None):
        raise UsageError(f"--method {method} {'needs' if file is None else 'takes no'} --file")
    ready_made = ReadyMade(file, file_boxes) if file else None
    if ready_made:
        settings = settings_for_file(settings, ready_made)
    source = source_of(options)
    if recall:
        require_plot(plot)
    images = read_tags(source)
    store = ProposalStore(settings)
    with Steps("proposals", len(images)) as steps:
        done = make_proposals(images, store, workers, ready_made, steps.advance)
    result = summary(done, store, images.problems)
    text = result.pop("text")
    if not as_json:
        print(text)
    if recall:
        result["recall"] = recall_report(source, done, store, plot)
        text = result["recall"].pop("text")
        if not as_json:
            print(f"\n{text}")
    if as_json:
        print(json.dumps(result, indent=1, ensure_ascii=False))
    return 0 if result["ok"] and result.get("recall", {"ok": True})["ok"] else 1


def learning_options(command: Command) -> Command:
    """The options with which `train` and `features` choose what is learned and from which boxes."""
    for option in reversed(
        [
            click.option("--preset", default="fast", show_default=True, help="A recipe; `melm presets` lists them."),
            click.option("--method", default="L2+ARL", show_default=True, help="MELM, a variant of it, or a rival."),
            click.option("--backbone", help="Network that looks at the image; the preset's if not given."),
            click.option("--weights", help="Weights the backbone starts from: a file, an https address, or package."),
            click.option("--weights-sha256", help="Checksum of the weights; needed for an address."),
            click.option(
                "--proposals", "proposal_method", type=Name("proposal method", METHODS), help="How boxes are found."
            ),
            click.option("--file", type=click.Path(path_type=Path), help="Boxes somebody made: .mat, .npz or .pkl."),
            click.option("--file-boxes", type=Name("way to write boxes", FILE_BOXES), help="How FILE writes boxes."),
            click.option("--max-boxes", type=int, help="Most boxes per image.  [default: 2000]"),
            click.option(
                "--basis",
                type=click.Path(path_type=Path),
                metavar="RUN",
                help="Read images as this earlier run does, so that what is stored for it serves again.",
            ),
            click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda."),
            click.option(
                "--set",
                "changes",
                multiple=True,
                metavar="NAME=VALUE",
                help="Any other setting, as run.json names it; can be repeated.",
            ),
            click.option("--skip-bad", is_flag=True, help="Leave out images that cannot be used, instead of stopping."),
        ]
    ):
        command = option(command)
    return command


def learning_config(options: dict[str, Any], changes: dict[str, Any]) -> Any:
    """Takes the options of `learning_options` out of a command's options: the configuration, and the ready-made boxes."""
    from melm.learn.presets import PRESETS, learn_config
    from melm.proposals import ProposalSettings, ReadyMade

    for text in options.pop("changes"):
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: NAME=VALUE was expected")
        changes[name.strip()] = _value(value.strip())
    for name in ("backbone", "weights", "weights_sha256"):
        given = options.pop(name)
        if given is not None:
            changes[name] = given
    file, file_boxes = options.pop("file"), options.pop("file_boxes")
    method, most = options.pop("proposal_method"), options.pop("max_boxes")
    if file and method not in (None, "file"):
        raise UsageError(f"--proposals {method} takes no --file")
    if method == "file" and not file:
        raise UsageError("--proposals file needs --file")
    settings = {"method": method, "max_boxes": most}
    if any(value is not None for value in settings.values()):
        changes["proposals"] = ProposalSettings(**{k: v for k, v in settings.items() if v is not None})  # type: ignore[arg-type]
    preset = one_of("preset", options.pop("preset"), PRESETS)
    config = learn_config(preset, options.pop("method"), changes)
    return config, ReadyMade(file, file_boxes) if file else None


def _value(text: str) -> Any:
    """A value as one would write it: true, 3, 0.5, [192, 288], word."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print every setting as JSON.")
def presets(as_json: bool) -> int:
    """List the recipes that `melm train --preset` knows, with what they cost and give."""
    from melm.learn.presets import PRESETS

    if as_json:
        print(json.dumps({name: preset.config.as_dict() for name, preset in PRESETS.items()}, indent=1))
        return 0
    for name, preset in PRESETS.items():
        print(f"{name}\n  {preset.summary}\n  cost: {preset.cost}\n  gives: {preset.gives}")
    return 0


@cli.command()
@data_options
@learning_options
@workers_option
def features(workers: int, **options: Any) -> int:
    """Compute and store what the frozen trunk gives for every image of DATA, ahead of `melm train`.

    \b
    Example:
      melm features photos/
    """
    from melm.learn.train import features as make_features

    config, ready_made = learning_config(options, {})
    folder = make_features(
        source_of(options),
        config,
        proposals_file=ready_made,
        workers=workers,
        say=print,
        **_taken(options, "basis", "device", "skip_bad"),
    )
    print(f"kept in {folder}")
    return 0


@cli.command()
@data_options
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the run.")
@learning_options
@click.option("--epochs", type=int, help="Times every image is seen; the preset's if not given.")
@click.option("--learning-rate", type=float, help="The preset's if not given; a tenth of it for the last quarter.")
@click.option("--accumulate", type=int, help="Images a step and process; the preset's if not given.")
@click.option(
    "--precision", type=Name("precision", ("fp32", "bf16", "fp16")), help="Of the step, on a GPU.  [default: fp32]"
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same machine: same numbers.")
@click.option("--overwrite", is_flag=True, help="Start the run in --out anew.")
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard files into the run too.")
@workers_option
def train(out: Path, workers: int, overwrite: bool, tensorboard: bool, **options: Any) -> int:
    """Learn a detector from the tags of DATA. The same command goes on where it was stopped.

    Proposals and the features of a frozen trunk are made first where they are not in the store. For several processes or
    machines: torchrun --nproc-per-node N -m melm train ...

    \b
    Example:
      melm train photos/ --out runs/birds
      melm train VOC2007 --split train --out runs/voc --method OICR --seed 1
    """
    from melm.learn.train import train as learn_detector

    changes = {name: options.pop(name) for name in ("epochs", "learning_rate", "accumulate", "precision", "seed")}
    changes = {name: value for name, value in changes.items() if value is not None}
    if "epochs" in changes:
        changes["drop_after"] = max(1, changes["epochs"] * 3 // 4)
    config, ready_made = learning_config(options, changes)
    learn_detector(
        source_of(options),
        out,
        config,
        proposals_file=ready_made,
        workers=workers,
        overwrite=overwrite,
        tensorboard=tensorboard,
        say=print,
        **_taken(options, "basis", "device", "skip_bad"),
    )
    return 0


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("paths", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for what is found.")
@click.option("--format", type=Name("format", tuple(FORMATS)), help="How PATHS are laid out, if they are data sets.")
@click.option("--split", help="Part of a data set.")
@click.option("--branch", help="discovery, 'localization 1' and so on, or mean; the method's own if not given.")
@click.option(
    "--views",
    type=Name("views", ("single", "flip", "paper")),
    default="single",
    show_default=True,
    help="How many looks are averaged; paper: every scale, mirrored too.",
)
@click.option(
    "--nms",
    type=float,
    help="Overlap above which the weaker of two boxes of a class goes.  [default: 0.3, discovery 0.4]",
)
@click.option(
    "--min-score",
    type=float,
    default=0.0,
    show_default=True,
    help="Boxes below are not kept. Above 0 it costs average precision.",
)
@click.option(
    "--max-boxes", type=int, default=300, show_default=True, help="Most boxes an image, over all classes; 0 for all."
)
@click.option(
    "--proposals",
    "proposal_method",
    type=Name("proposal method", METHODS),
    help="How boxes are found; as for learning if not given.",
)
@click.option(
    "--file", type=click.Path(path_type=Path), help="Boxes somebody made for these images: .mat, .npz or .pkl."
)
@click.option("--file-boxes", type=Name("way to write boxes", FILE_BOXES), help="How FILE writes boxes.")
@click.option(
    "--to",
    "formats",
    multiple=True,
    type=Name("result format", ("table", "coco", "comp4")),
    help="Write detections.csv, detections.coco.json or the VOC devkit's comp4 files; can be repeated.  [default: table]",
)
@click.option("--draw", is_flag=True, help="Draw the boxes into OUT/drawn.")
@click.option("--draw-score", type=float, help="Least score of a box that is drawn.  [default: 0.3, discovery 0.03]")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--overwrite", is_flag=True, help="Start anew in OUT.")
@workers_option
def detect(
    run: Path,
    paths: tuple[Path, ...],
    out: Path,
    formats: tuple[str, ...],
    draw: bool,
    draw_score: float | None,
    **options: Any,
) -> int:
    """Find objects in images with the detector of RUN: PATHS are files, folders or data sets.

    Every image is a line of OUT/detections.jsonl as soon as it is done; the same command goes on where it was stopped.

    \b
    Example:
      melm detect runs/birds new-photos/ --out found --draw
      melm detect runs/voc VOC2007 --split val --views flip --out found --to comp4
    """
    from melm.data.finding import find_images
    from melm.data.images import read_image
    from melm.detect.detector import DetectSettings, load
    from melm.detect.results import RESULTS, read_results
    from melm.detect.run import detect_images
    from melm.export.detections import require_comp4_names, write_coco_results, write_comp4, write_table
    from melm.proposals import ProposalSettings, ReadyMade
    from melm.show.drawings import save_drawing

    settings = DetectSettings(**_taken(options, "branch", "views", "nms", "min_score", "max_boxes"))
    detector = load(run, settings, options.pop("device"))
    split = options["split"] or "test"
    if "comp4" in formats:
        require_comp4_names(detector.classes, split)
    images = find_images(paths, options.pop("format"), options.pop("split"))
    file, file_boxes, method = options.pop("file"), options.pop("file_boxes"), options.pop("proposal_method")
    if file and method not in (None, "file"):
        raise UsageError(f"--proposals {method} takes no --file")
    if method == "file" and not file:
        raise UsageError("--proposals file needs --file")
    least = draw_score if draw_score is not None else 0.03 if detector.branch == "discovery" else 0.3
    failed = detect_images(
        detector,
        images,
        out,
        proposals=ProposalSettings(method) if method and not file else None,
        proposals_file=ReadyMade(file, file_boxes) if file else None,
        **_taken(options, "workers", "overwrite"),
    )
    results = out / RESULTS
    for format in formats or ("table",):
        if format == "table":
            write_table(read_results(results), out / "detections.csv")
        elif format == "coco":
            write_coco_results(read_results(results), out / "detections.coco.json")
        else:
            write_comp4(read_results(results), out, split, detector.classes)
    if draw:
        from melm.progress import Steps

        (out / "drawn").mkdir(exist_ok=True)
        with Steps("drawing", len(images)) as steps:
            for id, path, found in read_results(results):
                save_drawing(out / "drawn" / f"{id.replace('/', '__')}.jpg", read_image(Path(path)), found, least)
                steps.advance()
    for text in failed:
        print(f"error: {text}", file=sys.stderr)
    print(f"{len(images) - len(failed):,} images in {out}" + (f", {len(failed):,} failed" if failed else ""))
    return 1 if failed else 0


def _taken(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options.pop(name) for name in names}


@cli.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default="demo", show_default=True, help="Folder for everything."
)
@click.option("--images", type=click.IntRange(min=30), default=200, show_default=True, help="Images to learn from.")
@click.option("--test-images", type=click.IntRange(min=10), default=60, show_default=True, help="Images held out.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the data and of learning.")
def demo(out: Path, images: int, test_images: int, seed: int) -> int:
    """Do the whole job on a generated data set: tags in, a detector learned, boxes, scores and pictures out.

    Learns with MELM and with WSDDN on the same features, and prints both beside each other. A few minutes on two cores.
    """
    from melm.demo import run_demo

    run_demo(out, images, test_images, seed)
    return 0


def main() -> None:
    """Runs the command line; a user's mistake ends in one line of words, never in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names and terminals of any encoding
    try:
        code = cli.main(prog_name="melm", standalone_mode=False)
    except click.exceptions.Abort:
        code = _stopped()
    except KeyboardInterrupt:
        code = _stopped()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except UsageError as error:
        print(f"melm: {error}", file=sys.stderr)
        code = 2
    except MelmError as error:
        print(f"melm: {error}", file=sys.stderr)
        code = 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output went away
        code = 1
    sys.exit(code)


def _stopped() -> int:
    resumable = len(sys.argv) > 1 and sys.argv[1] in RESUMABLE
    goes_on = " What was finished is kept; the same command goes on from here." if resumable else ""
    print(f"melm: stopped.{goes_on}", file=sys.stderr)
    return 130
