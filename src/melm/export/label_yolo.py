"""Labels for YOLO, as ultralytics and its relatives read them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from os.path import abspath
from pathlib import Path

import numpy as np
import yaml

from melm.data.images import ENDINGS
from melm.detect.detections import Detections
from melm.detect.labels import LabelledImage
from melm.detect.lines import exact
from melm.errors import UsageError
from melm.export.export_folder import require_count, subfolder
from melm.export.export_settings import ExportSettings
from melm.export.image_files import placed_image
from melm.export.text_files import as_melm_error, whole_text, write_small

SPLITS = ("train", "val")
ABOUT = "# Labels by melm. If you move this folder, set `path` to its new place, or remove that line.\n"


def write_label_yolo(
    labels: Iterable[LabelledImage], names: Sequence[str], folder: Path, settings: ExportSettings
) -> Path:
    """`images` and `labels`, each with train and val, and `data.yaml`, written last. An image without boxes has an empty file.

    Readers find the labels of an image by writing `labels` for `images` in its path, so images must be here: links or copies.
    ultralytics drops an image whose labels have a column too many ("labels require 5 columns"), which is why the confidence is
    left out unless it is asked for. Shares are of the upright image: ultralytics turns photos by EXIF both when it checks their
    size and when it reads them, supervision likewise.
    """
    if settings.images == "none":
        raise UsageError("yolo needs its images beside the labels: link or copy them (--images-as)")
    places = {
        name: subfolder(folder, name) for kind in ("images", "labels") for name in (f"{kind}/{s}" for s in SPLITS)
    }
    for split in SPLITS:  # the labels as ultralytics read them before; older versions do not see that a box moved
        (folder / "labels" / f"{split}.cache").unlink(missing_ok=True)
    count: Counter[str] = Counter()
    for image in labels:
        split = split_of(image.id, settings.val_share)
        count[split] += 1
        place = placed_image(image, places[f"images/{split}"], settings)
        with as_melm_error(folder):
            lines = yolo_lines(image.found, settings.confidence)
            write_small(places[f"labels/{split}"] / f"{place.stem}.txt", lines)
    for kind, endings in (("images", ENDINGS), ("labels", (".txt",))):
        require_count(folder, [f"{kind}/{split}" for split in SPLITS], endings, count.total())
    with whole_text(folder / "data.yaml") as file:
        file.write(ABOUT + data_yaml(folder, names, [split for split in SPLITS if count[split]]))
    return folder / "data.yaml"


def split_of(id: str, val_share: float) -> str:
    """Always the same for an image, whatever others there are."""
    number = int.from_bytes(hashlib.blake2b(id.encode(errors="surrogatepass"), digest_size=8).digest(), "big")
    return "val" if number < val_share * 2**64 else "train"


def yolo_lines(found: Detections, confidence: bool = False) -> str:
    """A line per box: the class's number, then centre, width and height in shares of the image, and perhaps the confidence."""
    size = np.array([found.width, found.height], np.float64)
    first, last = np.clip(found.boxes.astype(np.float64).reshape(-1, 2, 2), 0, size).transpose(1, 0, 2) / size
    shares = np.concatenate([(first + last) / 2, last - first], axis=1)
    lines = ""
    for k, share, sure in zip(found.classes.tolist(), shares.tolist(), exact(found.scores), strict=True):
        lines += " ".join([str(k), *(f"{value:.8f}" for value in share), *([str(sure)] if confidence else [])]) + "\n"
    return lines


def data_yaml(folder: Path, names: Sequence[str], filled: Sequence[str]) -> str:
    """The path is absolute because ultralytics looks for another from where it is started, and YOLOv5 from its own folder.
    Readers demand train and val, so one that got no image is the other."""
    splits = {split: f"images/{split if split in filled else (*filled, 'train')[0]}" for split in SPLITS}
    config = {"path": abspath(folder), **splits, "names": dict(enumerate(names))}
    return yaml.safe_dump(config, allow_unicode=True, sort_keys=False, width=1000)
