"""How a detector is learned: one record, and the recipes that people start from as values of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from melm.config import METHODS, PRECISIONS, MethodConfig, check_fields, method_config
from melm.errors import UsageError, did_you_mean, one_of
from melm.model.backbones import BACKBONES
from melm.model.recurrence import feedback_strength
from melm.proposals import ProposalSettings

TRUNKS = ("frozen", "tuned")
OPTIMIZERS = ("sgd", "adamw")
WITH_NAMES = ("lite0", "lite2")  # backbones whose classifier reads the mean of their map


@dataclass(frozen=True, slots=True)
class LearnConfig:
    """Everything that decides what is learned from given data. Two equal ones on one machine give equal weights."""

    preset: str
    method: str = "L2+ARL"  # the row of the table the method began as; `settings` is what runs
    settings: MethodConfig = field(default_factory=MethodConfig)
    proposals: ProposalSettings = field(default_factory=ProposalSettings)
    # what looks at the image
    backbone: str = "lite0"
    weights: str = "package"  # or a file, or an https address
    weights_sha256: str = ""
    trunk: str = "frozen"  # read once and stored, or learned along
    scales: tuple[int, ...] = (192, 288, 416, 608, 896)  # of the larger side, in pixels
    flips: bool = False  # tuned trunk: every other look is at the mirrored image
    normal_size: float = 160.0  # frozen trunk: a box is read at the scale where it is nearest to this, in pixels
    components: int = 256  # frozen trunk: what is kept of the map's channels
    named_components: int = 0  # frozen trunk: and of what its own classifier calls a region
    hidden: int = 512  # frozen trunk: width of the two layers above it
    dropout: float = 0.5  # frozen trunk: in these layers
    # learning
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    momentum: float = 0.9  # sgd
    weight_decay: float = 0.01
    epochs: int = 8
    drop_after: int = 6  # epochs at the first learning rate; a tenth of it after that
    accumulate: int = 4  # images a step and process
    boxes_a_step: int = 0  # how many of an image's boxes a step sees, drawn anew each time; 0 for all
    precision: str = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_1 = ("epochs", "accumulate", "components", "hidden")
        at_least_0 = ("drop_after", "boxes_a_step", "named_components", "seed")
        check_fields(self, {**dict.fromkeys(at_least_1, 1), **dict.fromkeys(at_least_0, 0)})
        if not isinstance(self.proposals, ProposalSettings):
            raise UsageError(
                f"proposals is {self.proposals!r}; settings of proposals were expected (--proposals, --file, --max-boxes)"
            )
        one_of("method", self.method, METHODS)
        one_of("backbone", self.backbone, BACKBONES)
        one_of("trunk", self.trunk, TRUNKS)
        check_learning(self)
        if self.named_components and self.backbone not in WITH_NAMES:
            raise UsageError(
                f"named_components is {self.named_components}, and {self.backbone} has no classifier on its map: set it to 0"
            )
        if self.boxes_a_step and self.settings.feedback == "previous":
            raise UsageError("feedback = previous needs the same boxes in every step: set boxes_a_step to 0")
        if not 0 < self.normal_size < float("inf"):
            raise UsageError(f"normal_size is {self.normal_size}; a number above 0 was expected")
        check_scales(self.scales)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it, with no tuples."""
        kept = asdict(self)
        kept["proposals"] = self.proposals.as_dict()
        return dict(json.loads(json.dumps(kept)))

    @staticmethod
    def from_dict(kept: Mapping[str, Any]) -> LearnConfig:
        kept = dict(kept)
        kept["settings"] = MethodConfig(**kept["settings"])
        kept["proposals"] = ProposalSettings.from_dict(kept["proposals"])
        kept["scales"] = tuple(kept["scales"])
        return LearnConfig(**kept)

    def with_epochs(self, epochs: int) -> LearnConfig:
        """The same for more or fewer epochs; the learning rate drops at the same share of them."""
        if epochs == self.epochs:
            return self
        return replace(self, epochs=epochs, drop_after=max(1, epochs * self.drop_after // self.epochs))

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        return self.learning_rate * (1.0 if epoch < self.drop_after else 0.1)

    def strength(self, epoch: int) -> float:
        """r of the feedback in an epoch."""
        return feedback_strength(epoch / self.epochs, self.settings.feedback_rate)

    @property
    def remembers(self) -> bool:
        """Whether the objectness of an image's last look is kept for its next."""
        return self.settings.feedback == "previous"


def check_learning(config: Any) -> None:
    """Refuses what nothing can learn with."""
    one_of("optimizer", config.optimizer, OPTIMIZERS)
    one_of("precision", config.precision, PRECISIONS)
    if not 0 < config.learning_rate < float("inf"):
        raise UsageError(f"learning_rate is {config.learning_rate}; a number above 0 was expected")
    if not (0 <= config.dropout < 1 and 0 <= config.momentum < 1 and 0 <= config.weight_decay < float("inf")):
        raise UsageError("dropout and momentum are from 0 to below 1, weight_decay is at least 0")


def check_scales(scales: object) -> None:
    """Refuses what are no sides of images."""
    whole = isinstance(scales, tuple) and all(type(scale) is int for scale in scales)
    if not isinstance(scales, tuple) or not whole or not scales or any(not 32 <= scale <= 10_000 for scale in scales):
        raise UsageError(f"scales are {scales}; sides of 32 to 10000 pixels were expected")


@dataclass(frozen=True, slots=True)
class Preset:
    """A recipe people start from: what it is, what it costs and gives, in words, and its configuration."""

    summary: str
    cost: str
    gives: str
    config: LearnConfig
    method: str = "L2+ARL"  # unless another is asked for
    inputs: Mapping[str, Any] = field(default_factory=dict)  # what every method reads on this trunk

    def configured(self, method: str, changes: Mapping[str, Any]) -> LearnConfig:
        """The configuration for a method, with changes by name to it or to the method's settings."""
        settings = method_config(method).with_(**_inputs_for(method, self.inputs))
        config = replace(self.config, method=method)
        of_method = {f.name for f in fields(MethodConfig)}
        of_config = {f.name for f in fields(LearnConfig)} - {"preset", "method", "settings"}
        for name in changes:
            if name not in of_method | of_config:
                raise UsageError(
                    f"unknown setting {name!r}.{did_you_mean(name, of_method | of_config)} "
                    f"Known: {', '.join(sorted(of_method | of_config))}."
                )
        settings = settings.with_(**{k: v for k, v in changes.items() if k in of_method})
        if changes.get("backbone", config.backbone) not in WITH_NAMES and "named_components" not in changes:
            changes = {**changes, "named_components": 0}
        return replace(config, settings=settings, **{k: v for k, v in changes.items() if k in of_config})


def _inputs_for(method: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Localization branches that are not there need no surround."""
    there = METHODS[method].branches > 0
    return {k: v for k, v in inputs.items() if there or k != "branch_sees_surround"}


_PAPER = LearnConfig(
    preset="paper-vggf",
    settings=METHODS["L2+ARL"].with_(localization_weight=0.1),
    backbone="vgg-f",
    weights="imagenet-vgg-f.mat",
    trunk="tuned",
    scales=(480, 576, 688, 864, 1200),
    flips=True,
    optimizer="sgd",
    learning_rate=5e-3,
    weight_decay=5e-4,
    epochs=20,
    drop_after=15,
    accumulate=1,
)

PRESETS: dict[str, Preset] = {
    "fast": Preset(
        "a frozen EfficientNet-Lite0 read once at five scales and stored; only the layers above it learn",
        "two cores: 0.1 s an image for proposals, 0.5 s for the trunk, then 0.05 s an image and epoch",
        "the default where there is no GPU",
        LearnConfig(
            preset="fast",
            proposals=ProposalSettings("edge-boxes", max_boxes=800),
            named_components=128,
            epochs=3,
            drop_after=2,
            boxes_a_step=400,
        ),
        "MELM",
        {
            "surround": True,
            "branch_sees_surround": True,
            "prior_weight": 6.0,
            "contrast_weight": 1.0,
            "score_weight": 0.5,
        },
    ),
    "paper-vggf": Preset(
        "the paper's recipe on VGG-F: SGD, one image a step, five scales, flips, the whole network learns",
        "made for a GPU; two cores: about 5 s an image and epoch. Needs imagenet-vgg-f.mat (--weights)",
        "the paper: VOC 2007 CorLoc 58.4, test mAP 38.4 (L+RL); not reproduced here yet",
        _PAPER,
        inputs={"localization_weight": 0.1},
    ),
    "paper-vgg16": Preset(
        "the paper's recipe on VGG16",
        "made for a GPU; two cores: about 18 s an image and epoch. Needs VGG16 weights (--weights)",
        "the paper: VOC 2007 CorLoc 61.4, test mAP 47.3; not reproduced here yet",
        replace(_PAPER, preset="paper-vgg16", backbone="vgg16", weights="vgg16.pth"),
        inputs={"localization_weight": 0.1},
    ),
}


# A network needs so many steps before it tells classes apart, however few the images are: of 100 drawn scenes, 3 epochs (75
# steps) gave a detector of 4 mAP, 9 (225 steps) one of 43; of 296 photos of cards, 222 steps were better than 592.
LEAST_STEPS = 220


def enough_epochs(epochs: int, accumulate: int, images: int) -> int:
    """So many epochs that a small data set, too, has enough steps; for a large one as many as were meant."""
    return max(epochs, -(-LEAST_STEPS * accumulate // max(images, 1)))


def for_images(config: LearnConfig, images: int) -> LearnConfig:
    """A preset's configuration, where nobody said how many epochs, for a data set of so many images."""
    if config.trunk != "frozen":  # the paper's recipes are what they are
        return config
    return config.with_epochs(enough_epochs(config.epochs, config.accumulate, images))


def learn_config(
    preset: str = "fast", method: str | None = None, changes: Mapping[str, Any] | None = None
) -> LearnConfig:
    """A preset with its own method or another one on it, and some settings changed by name."""
    chosen = PRESETS[one_of("preset", preset, PRESETS)]
    return chosen.configured(one_of("method", method or chosen.method, METHODS), changes or {})
