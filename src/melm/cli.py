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

RESUMABLE = ("proposals",)
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
      melm proposals photos/        where objects could be, for every image
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
