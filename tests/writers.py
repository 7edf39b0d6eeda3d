"""Writes one small data set in every format that melm reads. Each writer returns the path to give to `Source`."""

from __future__ import annotations

import csv
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import yaml
from PIL import Image


@dataclass(frozen=True)
class Thing:
    """An object in a picture. `box` is x1, y1, x2, y2 in pixels; x2 and y2 are the first pixels outside."""

    name: str
    box: tuple[int, int, int, int] = (1, 2, 9, 8)
    difficult: bool = False
    crowd: bool = False


@dataclass(frozen=True)
class Picture:
    file: str
    things: tuple[Thing, ...] = ()
    size: tuple[int, int] = (20, 16)
    split: str = "train"

    @property
    def stem(self):
        return Path(self.file).stem

    @property
    def names(self):
        return sorted({thing.name for thing in self.things})


def classes(pictures):
    return sorted({name for picture in pictures for name in picture.names})


def splits(pictures):
    return sorted({picture.split for picture in pictures})


def save_image(path, size=(20, 16), seed=None, **options):
    """Random pixels, the same for the same file name and different for another."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(path.name.encode()) if seed is None else seed)
    Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8)).save(path, **options)
    return path


def write_text(path, text, encoding="utf-8"):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def voc_xml(size, things, first_pixel=1):
    """An annotation: the first and the last pixel of each box, counted from `first_pixel`."""
    objects = ""
    for thing in things:
        x1, y1, x2, y2 = thing.box
        corners = {"xmin": x1, "ymin": y1, "xmax": x2 - 1, "ymax": y2 - 1}
        box = "".join(f"<{key}>{value + first_pixel}</{key}>" for key, value in corners.items())
        objects += f"<object><name>{escape(thing.name)}</name><difficult>{int(thing.difficult)}</difficult>"
        objects += f"<bndbox>{box}</bndbox></object>\n"
    shape = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    return f"<annotation>{shape}\n{objects}</annotation>\n"


def write_voc(root, pictures, lists=True):
    """`lists`: also ImageSets/Main, with a list per split and one per class and split."""
    main = root / "ImageSets" / "Main"
    for picture in pictures:
        save_image(root / "JPEGImages" / picture.file, picture.size)
        write_text(root / "Annotations" / f"{picture.stem}.xml", voc_xml(picture.size, picture.things))
    for split in splits(pictures) if lists else ():
        members = [picture for picture in pictures if picture.split == split]
        write_text(main / f"{split}.txt", "".join(f"{picture.stem}\n" for picture in members))
        for name in classes(pictures):
            lines = (f"{picture.stem} {_voc_value(picture, name):2d}\n" for picture in members)
            write_text(main / f"{name}_{split}.txt", "".join(lines))
    return root


def _voc_value(picture, name):
    difficult = [thing.difficult for thing in picture.things if thing.name == name]
    return -1 if not difficult else 0 if all(difficult) else 1


def write_labelimg(root, pictures):
    for picture in pictures:
        folder = root / picture.split if len(splits(pictures)) > 1 else root
        save_image(folder / picture.file, picture.size)
        write_text(folder / f"{picture.stem}.xml", voc_xml(picture.size, picture.things))
    return root


def coco_json(pictures, names=None):
    numbers = {name: 10 * k for k, name in enumerate(names or classes(pictures), 1)}
    images, annotations = [], []
    for number, picture in enumerate(pictures, 100):
        width, height = picture.size
        images.append({"id": number, "file_name": picture.file, "width": width, "height": height})
        for thing in picture.things:
            x1, y1, x2, y2 = thing.box
            annotation = {"id": len(annotations) + 1, "image_id": number, "category_id": numbers[thing.name]}
            annotations.append(annotation | {"bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": int(thing.crowd)})
    categories = [{"id": number, "name": name} for name, number in numbers.items()]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_coco(root, pictures):
    for split in splits(pictures):
        members = [picture for picture in pictures if picture.split == split]
        for picture in members:
            save_image(root / split / picture.file, picture.size)
        text = json.dumps(coco_json(members, classes(pictures)))
        write_text(root / "annotations" / f"instances_{split}.json", text)
    return root


def yolo_line(number, box, size):
    x1, y1, x2, y2 = box
    width, height = size
    shares = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height)
    return " ".join([str(number), *(f"{share:.8f}" for share in shares)]) + "\n"


def write_yolo(root, pictures):
    names = classes(pictures)
    for picture in pictures:
        save_image(root / "images" / picture.split / picture.file, picture.size)
        lines = (yolo_line(names.index(thing.name), thing.box, picture.size) for thing in picture.things)
        write_text(root / "labels" / picture.split / f"{picture.stem}.txt", "".join(lines))
    config = {split: f"images/{split}" for split in splits(pictures)} | {"nc": len(names), "names": names}
    write_text(root / "data.yaml", yaml.safe_dump(config, allow_unicode=True))
    return root


def synset(names, name):
    return f"n{names.index(name) + 1:08d}"


def map_det(names):
    """map_det.txt: synset, number, name."""
    return "".join(f"{synset(names, name)} {k} {name}\n" for k, name in enumerate(names, 1))


def write_ilsvrc(root, pictures, later=False):
    """All pictures as the split val, in the folders of 2013 or in those of `later` years."""
    names = classes(pictures)
    images, xml = (
        ("Data/DET/val", "Annotations/DET/val") if later else ("ILSVRC2013_DET_val", "ILSVRC2013_DET_bbox_val")
    )
    for picture in pictures:
        save_image(root / images / picture.file, picture.size)
        things = [Thing(synset(names, thing.name), thing.box, thing.difficult) for thing in picture.things]
        write_text(root / xml / f"{picture.stem}.xml", voc_xml(picture.size, things, first_pixel=0))
    write_text(root / ("devkit/data" if later else "ILSVRC2013_devkit/data") / "map_det.txt", map_det(names))
    return root


def write_ilsvrc_later(root, pictures):
    return write_ilsvrc(root, pictures, later=True)


def write_csv(root, pictures):
    """tags.csv beside a folder of images; a column of splits where there are several."""
    several = len(splits(pictures)) > 1
    for picture in pictures:
        save_image(root / "images" / picture.file, picture.size)
    with (root / "tags.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "tags", *(["split"] if several else [])])
        for picture in pictures:
            table.writerow([picture.file, "|".join(picture.names), *([picture.split] if several else [])])
    return root


def write_folders(root, pictures):
    """A picture of two classes lies in both folders, one of none in the folder background."""
    for picture in pictures:
        folder = root / picture.split if len(splits(pictures)) > 1 else root
        for name in picture.names or ["background"]:
            save_image(folder / name / picture.file, picture.size)
    return root


BOXED = {
    "voc": write_voc,
    "labelimg": write_labelimg,
    "coco": write_coco,
    "yolo": write_yolo,
    "ilsvrc": write_ilsvrc,
    "ilsvrc-later": write_ilsvrc_later,
}
WRITERS = BOXED | {"csv": write_csv, "folders": write_folders}
