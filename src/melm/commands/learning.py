"""`melm presets`, `melm features` and `melm train`."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from melm.commands.options import Command, Name, data_options, file_of, source_of, taken, with_option, workers_option
from melm.config import PRECISIONS
from melm.errors import UsageError, one_of
from melm.proposals.record import FILE_BOXES, METHODS

precision_option = click.option(
    "--precision",
    type=Name("precision", PRECISIONS),
    help="What layers multiply in. bf16 and fp16 are for a GPU, bf16 for a CPU with AVX-512 BF16 (servers since about 2023), "
    "too.  [default: fp32]",
)


def learning_options(command: Command) -> Command:
    """The options with which `train` and `features` choose what is learned and from which boxes."""
    for option in reversed(
        [
            click.option("--preset", default="fast", show_default=True, help="A recipe; `melm presets` lists them."),
            click.option("--method", help="MELM, a variant of it, or a rival; the preset's own if not given."),
            click.option("--backbone", help="Network that looks at the image; the preset's if not given."),
            click.option("--weights", help="Weights the backbone starts from: a file, an https address, or package."),
            click.option("--weights-sha256", help="Checksum of the weights; needed for an address."),
            click.option(
                "--proposals", "proposal_method", type=Name("proposal method", METHODS), help="How boxes are found."
            ),
            click.option("--file", type=click.Path(path_type=Path), help="Boxes somebody made: .mat, .npz or .pkl."),
            click.option("--file-boxes", type=Name("way to write boxes", FILE_BOXES), help="How FILE writes boxes."),
            click.option(
                "--max-boxes",
                type=int,
                help="Most boxes per image; the preset's if not given, 2000 with other --proposals.",
            ),
            click.option(
                "--basis",
                type=click.Path(path_type=Path),
                multiple=True,
                metavar="RUN",
                help="Read images as this earlier run does, so that what is stored for it serves again; with --recipe one for "
                "each backbone.",
            ),
            click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda."),
            precision_option,
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
    from melm.proposals import ProposalSettings

    changes |= _changes(options.pop("changes"))
    for name in ("backbone", "weights", "weights_sha256", "precision"):
        given = options.pop(name)
        if given is not None:
            changes[name] = given
    if "basis" in options:
        options["basis"] = _the_basis(options["basis"])
    ready_made = file_of(options)
    file = ready_made is not None
    method, most = options.pop("proposal_method"), options.pop("max_boxes")
    if file and method not in (None, "file"):
        raise UsageError(f"--proposals {method} takes no --file")
    if method == "file" and not file:
        raise UsageError("--proposals file needs --file")
    preset = one_of("preset", options.pop("preset"), PRESETS)
    config = learn_config(preset, options.pop("method"), changes)
    method = "file" if file else method
    proposals = config.proposals if method in (None, config.proposals.method) else ProposalSettings(method)
    if most is not None:
        proposals = replace(proposals, max_boxes=most)
    config = replace(config, proposals=proposals)
    return config, ready_made


def config_for(options: dict[str, Any], given: dict[str, Any], source: Any) -> Any:
    """The same for learning: `given` are settings with an option of their own, None where it was not used. Where nobody says how
    many epochs, a small data set gets more of them, and that is said."""
    from melm.data import read_tags
    from melm.learn.presets import for_images

    changes = {name: value for name, value in given.items() if value is not None}
    if "epochs" in changes:
        changes["drop_after"] = max(1, changes["epochs"] * 3 // 4)
    said = "epochs" in changes or any(text.partition("=")[0].strip() == "epochs" for text in options["changes"])
    config, ready_made = learning_config(options, changes)
    if not said:
        images = len(read_tags(source))
        more = for_images(config, images)
        if more != config and int(os.environ.get("RANK", 0)) == 0:
            print(f"{images:,} images are few: {more.epochs} epochs instead of {config.epochs} (--epochs)")
        config = more
    return config, ready_made


def _the_basis(runs: tuple[Path, ...]) -> Path | None:
    if len(runs) > 1:
        raise UsageError("--basis: a run has one. Only with --recipe one can be named for each backbone")
    return runs[0] if runs else None


def _changes(texts: tuple[str, ...]) -> dict[str, Any]:
    """What --set says."""
    changes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: NAME=VALUE was expected")
        changes[name.strip()] = _value(value.strip())
    return changes


def _value(text: str) -> Any:
    """A value as one would write it: true, 3, 0.5, [192, 288], word."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


@click.command()
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


@click.command()
@data_options
@learning_options
@workers_option
def features(workers: int, **options: Any) -> int:
    """Compute and store what the frozen trunk gives for every image of DATA, ahead of `melm train`.

    For several processes or machines: torchrun --nproc-per-node N -m melm features ...

    \b
    Example:
      melm features photos/
    """
    from melm.learn.train import features as make_features

    config, ready_made = learning_config(options, {})
    store = make_features(
        source_of(options),
        config,
        proposals_file=ready_made,
        workers=workers,
        say=print,
        **taken(options, "basis", "device", "skip_bad"),
    )
    if int(os.environ.get("RANK", 0)) == 0:  # of torchrun's processes
        print(f"kept in {store.folder}")
    return 0


@click.command()
@data_options
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the run.")
@learning_options
@click.option("--epochs", type=int, help="Times every image is seen; the preset's if not given.")
@click.option("--learning-rate", type=float, help="The preset's if not given; a tenth of it for the last quarter.")
@click.option("--accumulate", type=int, help="Images a step and process; the preset's if not given.")
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same machine: same numbers.")
@click.option("--overwrite", is_flag=True, help="Start the run in --out anew.")
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard files into the run too.")
@click.option(
    "--measure",
    is_flag=True,
    help="After every epoch, measure localization against the data's boxes. Learning never sees them.",
)
@click.option(
    "--measure-images",
    type=click.IntRange(min=0),
    default=500,
    show_default=True,
    help="Images that --measure looks at, spread over the data; 0 for all.",
)
@click.option(
    "--watch",
    multiple=True,
    metavar="IMAGE",
    help="Write down what is believed of this image after every epoch, for `melm evaluate --plots`; can be repeated.",
)
@workers_option
def train(
    out: Path,
    workers: int,
    overwrite: bool,
    tensorboard: bool,
    measure: bool,
    measure_images: int,
    watch: tuple[str, ...],
    **options: Any,
) -> int:
    """Learn a detector from the tags of DATA. The same command goes on where it was stopped.

    Proposals and the features of a frozen trunk are made first where they are not in the store. For several processes or
    machines: torchrun --nproc-per-node N -m melm train ...

    \b
    Example:
      melm train photos/ --out runs/birds
      melm train VOC2007 --split train --out runs/voc --method OICR --seed 1
    """
    from melm.learn.train import train as learn_detector

    source = source_of(options)
    given = taken(options, "epochs", "learning_rate", "accumulate", "seed")
    config, ready_made = config_for(options, given, source)
    after_epoch = _while_learning(out, source, config, ready_made, measure, measure_images, watch)
    learn_detector(
        source,
        out,
        config,
        proposals_file=ready_made,
        workers=workers,
        overwrite=overwrite,
        tensorboard=tensorboard,
        after_epoch=after_epoch,
        say=print,
        **taken(options, "basis", "device", "skip_bad"),
    )
    return 0


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@data_options
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the new run.")
@with_option("Another run on the same proposals: what both find together is taught")
@click.option(
    "--backbone",
    help="Network that learns as a whole from the images: resnet50, resnet101, vgg16, ... Without it, or with the name of "
    "RUN's frozen trunk (lite0), layers above that trunk learn, on stored maps.",
)
@click.option("--weights", help="Weights that --backbone starts from: a file or an https address.")
@click.option("--weights-sha256", help="Checksum of the weights; needed for an address.")
@click.option(
    "--epochs", type=int, help="Times every image is seen.  [default: 3, more for few images; 8 of a whole network]"
)
@click.option(
    "--folds",
    type=int,
    help="Students; each image is judged by one that does not learn from it (--set judges=N: by several).  "
    "[default: 2; 1 of a whole network]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same machine: same numbers.")
@precision_option
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Any other setting; can be repeated.")
@click.option("--file", type=click.Path(path_type=Path), help="The boxes that RUN learned on, if they are of a file.")
@click.option("--file-boxes", type=Name("way to write boxes", FILE_BOXES), help="How FILE writes boxes.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--overwrite", is_flag=True, help="Start the run in --out anew.")
@click.option("--skip-bad", is_flag=True, help="Leave out images that cannot be used, instead of stopping.")
@workers_option
def retrain(run: Path, out: Path, changes: tuple[str, ...], workers: int, **options: Any) -> int:
    """Learn a Fast R-CNN detector, classes and box regression, from the objects that RUN finds in DATA.

    Without --backbone layers above RUN's frozen trunk learn, in folds, so that every image is judged by a student that
    never saw it. The same command goes on where it was stopped. For several processes: torchrun --nproc-per-node N -m melm
    retrain ...

    \b
    Example:
      melm retrain runs/birds photos/ --out runs/birds-2
      melm retrain runs/birds photos/ --with runs/birds-lite2 --out runs/birds-2
      melm retrain runs/birds photos/ --backbone resnet50 --weights resnet50.pth --out runs/birds-resnet
    """
    from melm.data import read_tags
    from melm.learn.retrain import retrain as learn_students
    from melm.learn.students import RetrainConfig

    names = ("backbone", "weights", "weights_sha256", "epochs", "folds", "seed", "precision")
    given = {name: options.pop(name) for name in names}
    settings = {name: value for name, value in given.items() if value is not None} | _changes(changes)
    source = source_of(options)
    config = RetrainConfig().with_(**settings)
    if not {"epochs", "drop_after", "folds", "judges"} & set(settings):
        more = config.for_images(read_tags(source))
        if more != config and int(os.environ.get("RANK", 0)) == 0:
            print(f"few images: {more.epochs} epochs (--epochs), students: {more.folds} (--folds)")
        config = more
    learn_students(
        run,
        source,
        out,
        config,
        proposals_file=file_of(options),
        workers=workers,
        say=print,
        **taken(options, "others", "device", "overwrite", "skip_bad"),
    )
    return 0


def _while_learning(
    out: Path, source: Any, config: Any, ready_made: Any, measure: bool, most: int, watched: tuple[str, ...]
) -> Any:
    """What is called after every epoch, if anything was asked for."""
    if not measure and not watched:
        return None
    from melm.data import read_tags
    from melm.learn.data import with_boxes_of
    from melm.measure.truth import read_truth
    from melm.measure.watching import WhileLearning

    images = read_tags(source)
    truth = read_truth(source) if measure else None
    config = with_boxes_of(config, ready_made)
    return WhileLearning(out, images, images.classes, config, ready_made, truth, most, watched)
