"""Labels as COCO JSON, for nearly every detection library."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from melm.detect.labels import LabelledImage
from melm.detect.lines import exact
from melm.export.export_folder import subfolder
from melm.export.export_settings import ExportSettings
from melm.export.image_files import image_name
from melm.export.text_files import DECIMALS, beside, whole_text


def write_label_coco(
    labels: Iterable[LabelledImage], names: Sequence[str], folder: Path, settings: ExportSettings
) -> Path:
    """`annotations.json`, and the images in `images` if they are placed. All numbers count from 1.

    An image without boxes is among `images`. Every annotation keeps its confidence as `score`, which readers of annotations do
    not look at and readers of results do; `segmentation` is empty, as COCO has it for boxes alone.

    Width, height and boxes are those of the upright image. A reader that opens images without regard to EXIF (torchvision's
    CocoDetection and others that use Pillow plainly) sees a turned photo lying on its side; OpenCV turns it. supervision does
    not take links that lead out of the folder of images: copy them for it, or leave them where they are.
    """
    path, waiting = folder / "annotations.json", beside(folder / "annotations")
    images = subfolder(folder, "images") if settings.images != "none" else folder
    categories = [{"id": k, "name": name, "supercategory": "none"} for k, name in enumerate(names, 1)]
    count = 0
    try:
        with whole_text(path) as file, waiting.open("w+", encoding="ascii") as later:  # JSON in ASCII holds any name
            file.write(
                f'{{"info": {{"description": "labels by melm"}},\n"licenses": [],\n"categories": {json.dumps(categories)},'
            )
            file.write('\n"images": [')
            for number, image in enumerate(labels, 1):
                size = {"width": image.found.width, "height": image.found.height}
                entry = {"id": number, "file_name": image_name(image, images, settings), **size}
                file.write((",\n" if number > 1 else "\n") + json.dumps(entry))
                for annotation in annotations_of(image, number, count + 1):
                    count += 1
                    later.write((",\n" if count > 1 else "\n") + json.dumps(annotation))
            file.write('\n],\n"annotations": [')
            later.seek(0)
            shutil.copyfileobj(later, file)
            file.write("\n]}\n")
    finally:
        waiting.unlink(missing_ok=True)
    return path


def annotations_of(image: LabelledImage, number: int, first: int) -> list[dict[str, object]]:
    """The boxes of an image with this number, themselves numbered from `first` on."""
    annotations: list[dict[str, object]] = []
    found = image.found
    for k, sure, (x1, y1, x2, y2) in zip(found.classes.tolist(), exact(found.scores), exact(found.boxes), strict=True):
        width, height = round(x2 - x1, DECIMALS), round(y2 - y1, DECIMALS)
        ids = {"id": first + len(annotations), "image_id": number, "category_id": k + 1}
        box = {"bbox": [x1, y1, width, height], "area": round(width * height, DECIMALS)}
        annotations.append({**ids, **box, "iscrowd": 0, "segmentation": [], "score": sure})
    return annotations
