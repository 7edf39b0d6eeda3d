"""What `make demo` runs: everything there is so far, end to end, on a small generated data set.

The scenes are plain shapes in clutter, drawn from a fixed seed; their boxes are known and serve only to measure the proposals.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

FOLDER = Path("demo")
IMAGES, SIZE = 16, (320, 240)


def main() -> None:
    os.environ.setdefault("MELM_CACHE", str(FOLDER / "cache"))
    write_data(FOLDER / "photos")
    run("check", FOLDER / "photos" / "tags.csv")
    run("proposals", FOLDER / "photos" / "boxes.json", "--recall", "--plot", FOLDER / "proposals-recall.png")
    print(f"\nLook at {FOLDER / 'photos'} and {FOLDER / 'proposals-recall.png'}. Learning from the tags comes next.")


def run(*arguments: object) -> None:
    command = [str(part) for part in ("melm", *arguments)]
    print(f"\n$ {' '.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", *command], check=True)


def write_data(folder: Path) -> None:
    """Images, their tags as a CSV, and their boxes as COCO JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    names = ["ball", "crate"]
    coco: dict[str, list[dict[str, object]]] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": k, "name": name} for k, name in enumerate(names, 1)],
    }
    rows = []
    for i in range(IMAGES):
        image, objects = scene(random)
        image.save(folder / f"{i:02d}.jpg", quality=92)
        coco["images"].append({"id": i, "file_name": f"{i:02d}.jpg", "width": SIZE[0], "height": SIZE[1]})
        for kind, (x1, y1, x2, y2) in objects:
            number = len(coco["annotations"]) + 1
            coco["annotations"].append(
                {"id": number, "image_id": i, "category_id": kind + 1, "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0}
            )
        rows.append((f"{i:02d}.jpg", "|".join(sorted({names[kind] for kind, _ in objects}))))
    (folder / "boxes.json").write_text(json.dumps(coco))
    with (folder / "tags.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file", "tags"), *rows])


def scene(random: np.random.Generator) -> tuple[Image.Image, list[tuple[int, tuple[int, int, int, int]]]]:
    """One or two objects of two kinds on a ground of strokes."""
    width, height = SIZE
    image = Image.fromarray(random.integers(100, 140, (height, width, 3)).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        points = [(int(random.integers(0, width)), int(random.integers(0, height))) for _ in range(2)]
        draw.line(points, fill=tuple(int(c) for c in random.integers(70, 170, 3)), width=int(random.integers(1, 5)))
    objects = []
    for _ in range(int(random.integers(1, 3))):
        w, h = (int(random.integers(50, 130)) for _ in range(2))
        x, y = int(random.integers(0, width - w)), int(random.integers(0, height - h))
        kind = int(random.integers(0, 2))
        colour = tuple(int(c) for c in random.integers(0, 255, 3))
        (draw.ellipse, draw.rectangle)[kind]((x, y, x + w - 1, y + h - 1), fill=colour, outline=(20, 20, 20), width=3)
        objects.append((kind, (x, y, x + w, y + h)))
    return image, objects


if __name__ == "__main__":
    main()
