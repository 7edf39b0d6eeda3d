"""Labels as predictions for Label Studio, where people check and correct them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from melm.detect.labels import LabelledImage
from melm.detect.lines import exact
from melm.errors import UsageError
from melm.export.export_settings import ExportSettings
from melm.export.image_files import path_under
from melm.export.text_files import whole_text
from melm.export.xml_text import attribute, require_xml

DECIMALS = 6  # of a percentage: a thousandth of a pixel in an image of 100,000


def write_label_studio(
    labels: Iterable[LabelledImage], names: Sequence[str], folder: Path, settings: ExportSettings
) -> Path:
    """`tasks.json` to import, in the order given, and `labelling-config.xml` to paste into the project's labelling interface.

    Images stay where they are, and are named as Label Studio's local files: `/data/local-files/?d=` and the path under
    LOCAL_FILES_DOCUMENT_ROOT, which `image_root` must equal. If it is None, that is the root of the disk, which is Label
    Studio's own default. Label Studio shows a file once LOCAL_FILES_SERVING_ENABLED is true and the project has a source
    storage, of local files, for a folder above the image and below that root. Browsers turn photos by EXIF, and the boxes are
    those of the upright image.

    `doubt` and `tags` are columns to sort by; a prediction's score is 1 less the doubt.
    """
    require_xml("class", names)
    path = folder / "tasks.json"
    with whole_text(folder / "labelling-config.xml") as file:
        file.write(labelling_config(names))
    with whole_text(path) as file:
        between = "[\n"
        for image in labels:
            task = task_of(image, local_url(image.path, settings.image_root), settings.model_version)
            file.write(between + json.dumps(task))  # ASCII: any name survives
            between = ",\n"
        file.write("[]\n" if between == "[\n" else "\n]\n")
    return path


def labelling_config(names: Sequence[str]) -> str:
    """The tags of Label Studio's interface that the predictions name: `label` on `image`."""
    labels = "".join(f"    <Label value={attribute(name)}/>\n" for name in names)
    return (
        '<View>\n  <Image name="image" value="$image" zoom="true"/>\n  <RectangleLabels name="label" toName="image">\n'
        f"{labels}  </RectangleLabels>\n</View>\n"
    )


def local_url(path: Path, root: Path | None) -> str:
    """Where Label Studio serves a file of its disk."""
    name = path_under(path, root or Path(path.absolute().anchor))
    if "/" not in name:
        raise UsageError(
            f"{path}: lies in the image root itself; Label Studio serves only folders below. Name a folder above (--image-root)"
        )
    return f"/data/local-files/?d={quote(name, errors='surrogateescape')}"


def task_of(image: LabelledImage, url: str, model_version: str) -> dict[str, object]:
    """One image with one prediction, which has all its boxes: in percent of the image, from the top left corner."""
    found, doubt = image.found, round(image.doubt, 6)
    size = np.array([found.width, found.height], np.float64)
    first, last = np.clip(found.boxes.astype(np.float64).reshape(-1, 2, 2), 0, size).transpose(1, 0, 2) / size * 100
    tool = {"from_name": "label", "to_name": "image", "type": "rectanglelabels"}
    about = {"original_width": found.width, "original_height": found.height, "image_rotation": 0}
    result: list[dict[str, object]] = []
    for (x, y), (width, height), name, sure in zip(
        first.round(DECIMALS).tolist(),
        (last - first).round(DECIMALS).tolist(),
        found.class_names(),
        exact(found.scores),
        strict=True,
    ):
        corner = {
            "x": x,
            "y": y,
            "width": min(width, round(100 - x, DECIMALS)),
            "height": min(height, round(100 - y, DECIMALS)),
        }
        value = {**corner, "rotation": 0, "rectanglelabels": [name]}
        result.append({"id": f"box{len(result) + 1}", **tool, **about, "value": value, "score": sure})
    data = {"image": url, "image_id": image.id, "doubt": doubt, "tags": list(image.tags)}
    prediction = {"model_version": model_version, "score": round(1 - doubt, 6), "result": result}
    return {"data": data, "predictions": [prediction]}
