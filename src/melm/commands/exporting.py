"""`melm export`."""

from __future__ import annotations

from pathlib import Path

import click

from melm.errors import UsageError

OWN = "RUN/model.onnx"


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--onnx",
    is_flag=False,
    flag_value=OWN,
    metavar="[FILE]",
    help=f"Write an ONNX file, {OWN} if it is not named, and its card beside it.",
)
@click.option("--branch", help="Whose scores, as for melm detect; the method's own if not given.")
@click.option("--opset", type=int, default=17, show_default=True, help="Of ONNX's operators: 17 to 20.")
@click.option(
    "--tolerance",
    type=float,
    default=1e-4,
    show_default=True,
    help="Largest difference from PyTorch's scores, as a share of a class's best score in an image.",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Compare on this image, too; can be repeated.",
)
def export(
    run: Path, onnx: str | None, branch: str | None, opset: int, tolerance: float, images: tuple[Path, ...]
) -> int:
    """Write the detector of RUN as ONNX: an image and its proposals in, scores of the proposals out.

    The file is run in ONNX Runtime beside PyTorch on several images, and kept only where the scores are the same up to
    --tolerance; else the exit code is 1. Needs the packages onnx and onnxruntime.

    \b
    Example:
      melm export runs/birds --onnx
      melm export runs/birds --onnx birds.onnx --image photo.jpg
    """
    if onnx is None:
        raise UsageError("melm export: nothing to write was named. Add --onnx, or --onnx FILE")
    from melm.detect.detector import DetectSettings, load
    from melm.export.onnx_model import export_onnx, require_packages

    require_packages()
    detector = load(run, DetectSettings(branch), "cpu")
    written = export_onnx(
        detector, run / "model.onnx" if onnx == OWN else Path(onnx), images, opset=opset, tolerance=tolerance
    )
    print("\n".join(written.lines()))
    return 0
