"""What a user can set about the method: one record, and the paper's variants and rivals as values of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from melm.errors import UsageError, one_of

SCORINGS = ("joint", "two_stream")
DISCOVERY_LOSSES = ("min_entropy", "image")
OBJECTS = ("clique", "top", "clusters")
TEACHINGS = ("accumulated", "chain")
LABELS = ("soft", "confident_target", "literal", "smoothed", "hard", "clusters")
REGIONS = ("all", "clique")
FEEDBACKS = ("none", "same", "previous")
PRECISIONS = ("fp32", "bf16", "fp16")  # what layers multiply in
CHOICES = {
    "scoring": SCORINGS,
    "discovery_loss": DISCOVERY_LOSSES,
    "objects": OBJECTS,
    "teaching": TEACHINGS,
    "labels": LABELS,
    "region": REGIONS,
    "feedback": FEEDBACKS,
}


@dataclass(frozen=True, slots=True)
class MethodConfig:
    """The method, piece by piece. The defaults are MELM with three accumulated localization branches (L2+ARL)."""

    # Object clique discovery
    scoring: str = "two_stream"  # Eq. 4: one softmax over classes and cliques, or one over each and their product
    surround: bool = False  # the location logit reads the frame less the ring around it, not the box
    prior_weight: float = 0.0  # b: what the class-agnostic prior adds to the location logit
    # Evidence that takes part where an object is chosen, not where it is learned
    contrast_weight: float = 0.0  # of the contrast of a box with its surround
    score_weight: float = 0.0  # of the score that the proposals came with
    size_weight: float = 0.0  # of how far the size of a box is from the middle one
    # Cliques
    cliques: bool = True  # Eq. 2; without, every proposal is its own clique
    top: int = 200  # proposals that are partitioned
    clique_iou: float = 0.7  # tau
    weighted: bool = True  # w_Hc of Eq. 6; without, w = 1
    discovery_loss: str = "min_entropy"  # Eq. 7, or WSDDN's loss of the image's class scores
    # Object localization
    branches: int = 3  # T
    objects: str = "clique"  # who names the first objects: the discovered clique, the top proposal, or PCL's clusters
    teaching: str = "accumulated"  # a branch learns from everything found before it, or from the one before it
    labels: str = "soft"  # the reading of Eq. 10
    region: str = "all"  # Omega: all proposals, averaged, or the clique of h*, summed
    kernel: float = 10.0  # a of the Gaussian
    object_iou: float = 0.5  # below this overlap with h*, a proposal is a hard negative
    branch_sees_surround: bool = False  # localization branches read box, frame and ring together
    localization_weight: float = 1.0  # lambda of Eq. 1
    # Recurrent learning
    feedback: str = "same"  # objectness of the same forward pass, of the preceding iteration (Alg. 1), or none
    feedback_rate: float = 1.0  # r anneals as 1 - exp(-progress x this): to 0.63 at the end

    def __post_init__(self) -> None:
        for field in fields(self):
            check_type(field.name, getattr(self, field.name), str(field.type))
        for name, choices in CHOICES.items():
            one_of(name, getattr(self, name), choices)
        _within("clique_iou", self.clique_iou, 0, 1)
        _within("object_iou", self.object_iou, 0, 1)
        _within("prior_weight", self.prior_weight, -1e6, 1e6)
        _within("contrast_weight", self.contrast_weight, 0, 1e6)
        _within("score_weight", self.score_weight, 0, 1e6)
        _within("size_weight", self.size_weight, 0, 1e6)
        _within("kernel", self.kernel, 0, 1e6)
        _within("feedback_rate", self.feedback_rate, 0, 100)
        _within("branches", self.branches, 0, 100)
        _within("top", self.top, 1, 10**9)
        _within("localization_weight", self.localization_weight, 0, 1e6)
        if self.feedback != "none" and self.branches == 0:
            raise UsageError("feedback needs a localization branch to come from; set feedback to none or branches to 1")
        if (self.labels == "clusters") != (self.objects == "clusters"):
            raise UsageError("labels = clusters and objects = clusters belong together (PCL)")

    @property
    def reads_surround(self) -> bool:
        """Whether anything needs the frame and the ring of each proposal."""
        return self.surround or self.branch_sees_surround or self.contrast_weight > 0

    @property
    def has_evidence(self) -> bool:
        """Whether objects are chosen by more than what is learned."""
        return self.contrast_weight > 0 or self.score_weight > 0 or self.size_weight > 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def with_(self, **changes: Any) -> MethodConfig:
        """A copy with some settings changed; an unknown name is an error that suggests the right one."""
        for name in changes:
            one_of("setting", name, [field.name for field in fields(self)])
        return replace(self, **changes)


def check_type(name: str, value: object, kind: str) -> None:
    """Refuses a value that is not of the kind a setting has."""
    right = {
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, (int, float)) and not isinstance(value, bool),
    }[kind]
    if not right:
        raise UsageError(f"{name} is {value!r}; a value of type {kind} was expected")


def check_fields(record: Any, least: Mapping[str, int]) -> None:
    """Refuses values of a record that are not of their kind, or below the least that makes sense."""
    for kept in fields(record):
        if kept.type in ("str", "bool", "int", "float"):
            check_type(kept.name, getattr(record, kept.name), str(kept.type))
    for name, value in least.items():
        if getattr(record, name) < value:
            raise UsageError(f"{name} is {getattr(record, name)}; at least {value} was expected")


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value}; {low} to {high} was expected")


MELM = MethodConfig()
_ONE_BRANCH = MELM.with_(branches=1, feedback="none")
_NO_BRANCH = MELM.with_(branches=0, feedback="none")
_WSDDN = _NO_BRANCH.with_(cliques=False, weighted=False, discovery_loss="image", objects="top")

# The ablation table of the paper, and the methods of its tables that share this network. D and L are two read-outs of one
# training, and so are D+RL and L+RL, and D+ARL and L2+ARL: they differ in the branch that detects, not here.
METHODS: dict[str, MethodConfig] = {
    "base": _NO_BRANCH.with_(cliques=False, weighted=False),
    "base+clique": _NO_BRANCH.with_(weighted=False),
    "D": _ONE_BRANCH,
    "L": _ONE_BRANCH,
    "D+RL": _ONE_BRANCH.with_(feedback="same"),
    "L+RL": _ONE_BRANCH.with_(feedback="same"),
    "D+ARL": MELM,
    "L1+ARL": MELM.with_(branches=2),
    "L2+ARL": MELM,
    # what people start with: L2+ARL without Eq. 6, and with hard labels, both of which measured better (docs/results.md)
    "MELM": MELM.with_(weighted=False, labels="hard"),
    "WSDDN": _WSDDN,
    "ContextLocNet": _WSDDN.with_(surround=True),
    "OICR": _WSDDN.with_(branches=3, teaching="chain", labels="hard"),
    "PCL": _WSDDN.with_(branches=3, teaching="chain", objects="clusters", labels="clusters"),
}


def reads_discovery(method: str) -> bool:
    """Whether a method's detections come from its discovery branch."""
    return METHODS[method].branches == 0 or method.startswith("D")


def method_config(name: str) -> MethodConfig:
    return METHODS[one_of("method", name, METHODS)]
