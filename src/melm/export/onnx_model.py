"""A learned detector as an ONNX file: written, run beside PyTorch on several images, and kept only where both say the same."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import melm
from melm.detect.detector import Detector
from melm.errors import MelmError, UsageError
from melm.export.onnx_graph import Scorer
from melm.export.onnx_parity import DRAWN, Parity, compared, drawn, given, inputs_of
from melm.files import write_whole

PACKAGES = ("onnx", "onnxruntime")  # melm itself does without
OUTPUTS = ("scores", "places")
OPSETS = range(17, 21)  # what the exporter that traces can write
OPSET = 17
TOLERANCE = 1e-4  # of the best score of a class in an image
PIXELS = 0.1  # between two ends of a box


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    path: Path
    card_path: Path
    card: dict[str, Any]
    parity: Parity

    def lines(self) -> list[str]:
        """What was written and how near it comes, to print."""
        parity, card = self.parity, self.card
        named = [("in", *one) for one in card["inputs"].items()] + [("out", *one) for one in card["outputs"].items()]
        counts = ", ".join(f"{count:,}" for count in parity.proposals)
        return [
            f"{self.path}: {self.path.stat().st_size / 1e6:.1f} MB, opset {card['opset']}, branch {card['branch']}",
            *(f"  {way:4}{name:8}{of['type']:9}({', '.join(map(str, of['shape']))})" for way, name, of in named),
            f"compared with PyTorch on {len(parity.proposals)} images with {counts} proposals",
            f"  largest difference   {parity.absolute:.1e}, {parity.difference:.1e} of a class's best score in an image "
            f"(tolerance {card['tolerance']:g})",
            f"  largest distance     {parity.pixels:.1e} pixels between two ends of a box",
            f"  same best box        {parity.same_best:.1%} of images and classes; lowest rank correlation "
            f"{parity.rank_agreement:.6f}",
            f"  seconds an image     {parity.seconds_onnx:.2f} in ONNX Runtime, {parity.seconds_torch:.2f} in PyTorch "
            f"(threads: {torch.get_num_threads()})",
        ]


def export_onnx(
    detector: Detector,
    path: Path,
    images: Sequence[Path] = (),
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Writes `path` and its card, `path`.json, once ONNX Runtime gives PyTorch's scores on drawn images and on `images`.

    A difference above `tolerance` is an error, and nothing is written then: what is at `path` passed.
    """
    if path.suffix != ".onnx":
        raise UsageError(f"--onnx {path}: a name that ends in .onnx was expected")
    if not tolerance > 0:
        raise UsageError(f"--tolerance is {tolerance}; a number above 0 was expected")
    require_packages()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # before the work, not after it
    except OSError as error:
        raise MelmError(f"{path.parent}: cannot be made ({error.strerror})") from None
    detector = detector.exact()  # as what is exported
    examples = [drawn(*sizes, seed) for seed, sizes in enumerate(DRAWN)] + [given(detector, image) for image in images]
    model, card = to_onnx(detector, opset)
    parity = compared(detector, model, examples)
    if not parity.difference <= tolerance:
        raise MelmError(
            f"{path}: not written. Scores of ONNX Runtime and PyTorch differ by up to {parity.absolute:.2g}, or "
            f"{parity.difference:.2g} of a class's best score in an image; at most {tolerance:g} of it was expected (--tolerance)"
        )
    if not parity.pixels <= PIXELS:
        raise MelmError(
            f"{path}: not written. ONNX Runtime and PyTorch place a box up to {parity.pixels:.2g} pixels apart; at most "
            f"{PIXELS:g} was expected"
        )
    card |= {"sha256": hashlib.sha256(model).hexdigest(), "tolerance": tolerance, "parity": asdict(parity)}
    card_path = path.with_name(f"{path.name}.json")  # a run has a model.json of its own
    try:
        write_whole(path, model)
        write_whole(card_path, json.dumps(card, indent=1).encode())
    except OSError as error:
        raise MelmError(f"{path}: cannot be written ({error.strerror})") from None
    return Exported(path, card_path, card, parity)


def require_packages() -> None:
    """Says which package is not installed, before any work."""
    for name in PACKAGES:
        if find_spec(name) is None:
            raise MelmError(
                f"{name} is not installed. Install what export needs with: pip install {' '.join(PACKAGES)}"
            )


def to_onnx(detector: Detector, opset: int = OPSET) -> tuple[bytes, dict[str, Any]]:
    """The detector of one view as an ONNX model, and what its card says of it."""
    if opset not in OPSETS:
        raise UsageError(f"--opset is {opset}; {OPSETS[0]} to {OPSETS[-1]} was expected")
    import onnx

    scorer = Scorer(detector).eval()
    example = inputs_of(drawn(*DRAWN[1], seed=0), scorer.reads)
    buffer = io.BytesIO()
    axes = {"image": {0: "H", 1: "W"}, **{name: {0: "N"} for name in [*scorer.reads[1:], *OUTPUTS]}}
    with warnings.catch_warnings(), torch.no_grad():
        # A trace warns of every number it takes for fixed, and the exporter that takes one of being the older one. The newer
        # needs ten times as long (10 s a scale, for sizes that are not known yet) and another package.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            scorer,
            tuple(map(torch.from_numpy, example.values())),
            buffer,  # type: ignore[arg-type]  # the exporter that traces takes it
            input_names=scorer.reads,
            output_names=list(OUTPUTS),
            dynamic_axes=axes,
            opset_version=opset,
            dynamo=False,
        )
    model = onnx.load_from_string(buffer.getvalue())
    pad_explicitly(model)
    card = card_of(detector, scorer, [used.name for used in model.graph.input], opset)
    model.doc_string = f"Scores and places of proposals, branch {scorer.branch}. Suppression is not part of it."
    for name, value in (("classes", list(detector.classes)), ("melm", card)):
        model.metadata_props.add(key=name, value=json.dumps(value))  # ASCII: any name survives
    onnx.checker.check_model(model)
    return model.SerializeToString(), card


def pad_explicitly(model: Any) -> None:
    """Convolutions padded to keep a map's size say by how much: ONNX Runtime does not work that out where they are dilated."""
    from onnx.helper import make_attribute

    for node in model.graph.node:
        given = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Conv" and given.get("auto_pad") is not None and given["auto_pad"].s != b"NOTSET":
            reach = zip(given["kernel_shape"].ints, given["dilations"].ints, strict=True)
            before = [(kernel - 1) * dilation // 2 for kernel, dilation in reach]
            node.attribute.remove(given["auto_pad"])
            node.attribute.append(make_attribute("pads", before * 2))


def card_of(detector: Detector, scorer: Scorer, reads: Sequence[str], opset: int) -> dict[str, Any]:
    """What somebody who runs the model has to know. `reads`: inputs that the branch makes no use of are not in the model."""
    import onnx

    meanings = {
        "image": ("uint8", ["H", "W", 3], "an upright RGB image, as it is: resizing and normalisation are inside"),
        "boxes": ("float32", ["N", 4], "x1, y1, x2, y2 in its pixels; at least one"),
        "prior": ("float32", ["N"], "Proposals.prior: superpixel straddling"),
        "score": ("float32", ["N"], "Proposals.score: of the method that found the boxes"),
    }
    return {
        "classes": list(detector.classes),
        "branch": scorer.branch,
        "inputs": {n: dict(zip(("type", "shape", "is"), meanings[n], strict=True)) for n in reads},
        "outputs": {
            "scores": {"type": "float32", "shape": ["N", len(detector.classes)], "is": "p(class, box)"},
            "places": {"type": "float32", "shape": ["N", 4], "is": "where the boxes are moved to: suppress these"},
        },
        "scales": list(detector.config.scales) if scorer.scale is None else [scorer.scale],
        **({"student_scales": list(scorer.students.config.scales)} if scorer.students else {}),
        "normalisation": asdict(detector.network.trunk.backbone.convention),
        "backbone": detector.config.backbone,
        "proposals": detector.config.proposals.as_dict(),
        "after": {
            "agree": detector.agree,
            "nms": detector.overlap,
            "vote": detector.vote,
            "max_boxes": detector.settings.max_boxes,
        },
        "opset": opset,
        "versions": {"melm": melm.__version__, "torch": torch.__version__, "onnx": onnx.__version__},
    }
