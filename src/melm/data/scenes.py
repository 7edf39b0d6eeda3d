"""The embedded demo data set: generated scenes of toy creatures, seeded, with exactly known boxes.

A species is one of three heads, told by outline and pattern, on one of two bodies, low or tall. The head is the strongest
single cue, yet its look leaves two species, and the body leaves three: the whole creature tells. All share the colours.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from melm.data.drawing import (
    Colour,
    Floats,
    Layer,
    Masks,
    Part,
    Pattern,
    Points,
    Random,
    blob,
    colour,
    lay,
    limb,
    noise,
    polar,
    render,
    turn,
)
from melm.errors import UsageError

TEST_SEEDS = 500_000  # a seed has 1,000,000 scenes of its own; those for testing start here
LONGER_SIDE = 80, 220  # of an object, in pixels of an image of 320 x 240


def _rounded(power: float) -> Points:
    """A superellipse: 2 is a circle, more almost a square."""
    return polar(lambda t: (np.abs(np.cos(t)) ** power + np.abs(np.sin(t)) ** power) ** (-1 / power))


# Heads: the outline, and the pattern: positive where light, for u and v from -1 to 1 across the head.
HEADS: dict[str, tuple[Points, Pattern]] = {
    "rings": (_rounded(2), lambda u, v: np.cos(np.hypot(u, v) * 11)),
    "bars": (_rounded(6), lambda u, v: np.cos(u * 8.5)),
    "cross": (polar(lambda t: 1 + 0.25 * np.cos(4 * t)), lambda u, v: np.minimum(abs(u), abs(v)) - 0.2),
}
SPECIES = {  # the head, and the body
    "bosko": ("rings", "low"),
    "fimple": ("bars", "low"),
    "grolt": ("cross", "low"),
    "munno": ("rings", "tall"),
    "pelk": ("bars", "tall"),
    "zwick": ("cross", "tall"),
}
CLASSES: tuple[str, ...] = tuple(SPECIES)

COATS = "b58a5a 7d5a41 8b8f94 a8563a 76804a 5f7590 d9c8a4 b9898c 5f5855 c9a23f"
GROUNDS = "5d7a3a 86905a c2a878 8a7052 8d8a84 a99d8a 7b6a45 d8dadd 65745c"
SKIES = "8fb6de c5d3de e6c9a8 6b7b66 4e5b4f b9b2a6 a3a9b8 7c8f78"
THINGS = "8f8b86 6c6058 a39a8c 5d7a45 9a5f4c b98f55 7e6648 96a36a 5f7a8b a0664f d6cfc0"


@dataclass(frozen=True, slots=True)
class Scene:
    """One image and what is in it. A box ends with the last pixel that its object covers by half or more."""

    pixels: NDArray[np.uint8]  # (H, W, 3)
    names: tuple[str, ...]  # the species of each object
    boxes: NDArray[np.float64]  # (M, 4) xyxy of what is visible of each object
    parts: NDArray[np.float64]  # (M, 4) xyxy of what is visible of each head


def draw_scene(seed: int, size: tuple[int, int] = (320, 240)) -> Scene:
    """The scene of a seed, always the same. Species take turns: where six seeds in a row show any object, all six are there."""
    if min(size) < 96:
        raise UsageError(
            f"scenes of {size[0]} x {size[1]} pixels are too small to show the patterns; 96 is the least side"
        )
    random = np.random.default_rng([seed, *size])
    canvas, horizon = _backdrop(random, *size)
    light = turn(random.uniform(-0.9, 0.9)) @ (0.0, -1.0)
    things = [render(random, _clutter(random, size, horizon), light) for _ in range(random.integers(4, 11))]
    for thing in sorted(things, key=lambda thing: thing.bottom):  # from far to near
        lay(canvas, thing, shadow=0.35)
    names, layers, visible = _placed(random, seed, size, horizon, light)
    for layer in layers:
        lay(canvas, layer, shadow=0.5)
    boxes = np.array([[_box(mask) for mask in masks] for masks in visible], np.float64).reshape(-1, 2, 4)
    return Scene(_photograph(random, canvas), tuple(names), boxes[:, 0], boxes[:, 1])


def write_scenes(folder: Path, train: int, test: int, seed: int = 0, size: tuple[int, int] = (320, 240)) -> None:
    """Images in train/ and test/; for each, the tags in NAME-tags.csv and, to measure against, the boxes in NAME.json (COCO)."""
    if max(train, test) > TEST_SEEDS:
        raise UsageError(
            f"{max(train, test):,} scenes were asked for; there are {TEST_SEEDS:,} for training and as many for testing"
        )
    for split, count, first in (("train", train, 0), ("test", test, TEST_SEEDS)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        images: list[dict[str, object]] = []
        annotations: list[dict[str, object]] = []
        table = io.StringIO()
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(("file", "tags"))
        for i in range(count):
            scene = draw_scene(seed * 2 * TEST_SEEDS + first + i, size)
            file = f"{split}/{i:05d}.jpg"
            Image.fromarray(scene.pixels).save(folder / file, quality=88)
            rows.writerow((file, "|".join(sorted(set(scene.names)))))
            images.append({"id": i, "file_name": file, "width": size[0], "height": size[1]})
            for name, (x1, y1, x2, y2) in zip(scene.names, scene.boxes.tolist(), strict=True):
                box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
                ids = {"id": len(annotations) + 1, "image_id": i, "category_id": CLASSES.index(name) + 1}
                annotations.append({**ids, **box})
        categories = [{"id": k, "name": name} for k, name in enumerate(CLASSES, 1)]
        coco = {"images": images, "annotations": annotations, "categories": categories}
        (folder / f"{split}.json").write_text(json.dumps(coco), encoding="utf-8")
        (folder / f"{split}-tags.csv").write_text(table.getvalue(), encoding="utf-8")


def _placed(
    random: Random, seed: int, size: tuple[int, int], horizon: float, light: Points
) -> tuple[list[str], list[Layer], list[Masks]]:
    """No, one or two creatures on the ground, from far to near, and the (2, H, W) visible pixels of each and of its head."""
    names: list[str] = []
    layers: list[Layer] = []
    visible: list[Masks] = []
    for k in range(random.choice(3, p=(0.1, 0.55, 0.35))):
        name = CLASSES[seed % len(CLASSES)] if k == 0 else str(random.choice(CLASSES))
        longest = _unit(size) * LONGER_SIDE[0] * (LONGER_SIDE[1] / LONGER_SIDE[0]) ** random.random()
        layer = render(random, _creature(random, name, longest), light)
        room = np.array(size) - layer.cover.shape[::-1]
        for _ in range(12):  # places, until neither hides too much of the other
            x, y = room * (random.random(), random.uniform(horizon, 1))
            layer = replace(layer, x=int(x), y=int(y))
            order = sorted([*zip(names, layers, strict=True), (name, layer)], key=lambda named: named[1].bottom)
            shown = _visible([layer for _, layer in order], size)
            if shown is not None:
                names, layers, visible = [name for name, _ in order], [layer for _, layer in order], shown
                break
    return names, layers, visible


def _visible(layers: list[Layer], size: tuple[int, int]) -> list[Masks] | None:
    """What nearer layers leave of each; None where that is less than three quarters, or nine tenths of a head."""
    masks = [layer.masks(size[1], size[0]) for layer in layers]
    left = [mask & ~np.any([near[0] for near in masks[k + 1 :]], axis=0) for k, mask in enumerate(masks)]
    kept = [(a.sum(axis=(1, 2)) >= (0.75, 0.9) * b.sum(axis=(1, 2))).all() for a, b in zip(left, masks, strict=True)]
    return left if all(kept) else None


def _box(mask: Masks) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _unit(size: tuple[int, int]) -> float:
    """The scale of things: 1 in an image of 320 x 240."""
    return min(size[0] / 320, size[1] / 240)


def _creature(random: Random, name: str, longest: float) -> list[Part]:
    """A creature from back to front, the head last. `longest` is the longer side of its box in pixels; the torso is 1 long."""
    kind, build = SPECIES[name]
    tall = build == "tall"  # long legs, a raised head and a tail that hangs; low: short legs, a level head, a long tail
    high = random.uniform(0.34, 0.44)
    legs = random.uniform(0.4, 0.5) if tall else random.uniform(0.03, 0.1)
    torso = blob((0, 0), (0.5, high), random.normal(0, 0.03, 3))
    hips = np.array([-0.33, -0.22, 0.22, 0.34]) + random.uniform(-0.05, 0.05, 4)
    feet = np.stack([hips + random.uniform(-0.1, 0.1, 4), high + legs * random.uniform(0.9, 1.1, 4)], 1)
    limbs = [limb((x, high * 0.5), foot, 0.11, 0.08) for x, foot in zip(hips, feet, strict=True)]
    tip = (-0.55, random.uniform(0.1, 0.3)) if tall else (-0.75 - random.uniform(0.0, 0.2), random.uniform(-0.3, 0.1))
    tail = limb((-0.4, -0.02), tip, 0.2, 0.06)
    at = np.array([random.uniform(0.5, 0.6), random.uniform(-0.35, -0.2) if tall else random.uniform(-0.1, 0.1)])
    body = [limbs[0], limbs[2], tail, torso, limbs[1], limbs[3], limb((0.3, -0.02), at, 0.16, 0.11)]

    mirror = np.diag((random.choice((-1, 1)), 1.0))
    stand = turn(random.normal(0, 0.12)) @ np.diag(random.uniform(0.88, 1.12, 2)) @ mirror
    nod = turn(random.normal(0, 0.15))
    outline, pattern = HEADS[kind]
    face = (outline / np.ptp(outline, axis=0) * 2) @ nod.T
    share, radius = random.uniform(0.2, 0.28), 0.22
    for _ in range(8):  # the head has its share of the box, and the box depends on the head
        head = at + radius * face
        box = np.ptp(np.concatenate([*body, head]) @ stand.T, axis=0)
        radius *= float(np.sqrt(share * box.prod() / np.ptp(head @ stand.T, axis=0).prod()))
    stand = stand * longest / box.max()
    inverse = np.linalg.inv(stand @ nod) / radius
    frame = np.column_stack([inverse, -inverse @ stand @ at])

    coat, mottle = colour(random, COATS), random.uniform(0.02, 0.08)
    tones = (0.75, 0.72, 0.9, 1, 0.96, 1, 1)  # the far legs lie in the shade
    parts = [Part(p @ stand.T, coat * tone, mottle) for p, tone in zip(body, tones, strict=True)]
    # the head is in tones of the coat: no colour sets it apart from the body
    dark, light = coat * random.uniform(0.35, 0.5), np.clip(coat * random.uniform(1.1, 1.3) + 0.08, 0, 1)
    return [*parts, Part(head @ stand.T, dark, mottle, light, pattern, frame)]


def _clutter(random: Random, size: tuple[int, int], horizon: float) -> list[Part]:
    """A stone, a bush, a log, a stick, a leaf or a tuft of grass, somewhere on the ground."""
    at = np.array([random.uniform(0, size[0]), size[1] * random.uniform(horizon, 1.05)])
    paint, tilt = colour(random, THINGS), turn(random.normal(0, 0.5))
    tones, mottle = np.ones(1), 0.1
    kind = random.integers(6)
    if kind == 0:
        stone = blob((0, 0), random.uniform(6, 34, 2) * (1, 0.7), random.normal(0, 0.08, 4))
        shapes = [np.minimum(stone, (np.inf, stone[:, 1].max() * 0.5))]  # flat below
    elif kind == 1:
        shapes = [blob(random.normal(0, 14, 2), random.uniform(8, 24, 2), random.normal(0, 0.08, 6)) for _ in range(4)]
        tones, mottle = random.uniform(0.8, 1.1, 4), 0.18
    elif kind == 2:
        end, thick = tilt @ (random.uniform(25, 70), 0), random.uniform(5, 14)
        shapes = [limb((0, 0), end, thick, thick), blob(end, (thick * 0.5, thick))]
        tones = np.array([0.8, 1.2])
    elif kind == 3:
        end = tilt @ (random.uniform(30, 90), 0)
        twig = end * 0.5 + turn(random.uniform(-2, 2)) @ end * 0.3
        shapes = [limb((0, 0), end, 2.5, 1.2), limb(end * 0.5, twig, 1.5, 1)]
        tones = np.array([0.8, 0.8])
    elif kind == 4:
        blade = polar(lambda t: np.sqrt(np.cos(t) ** 2 + 0.1 * np.sin(t) ** 4)) * (1, 0.8)
        shapes = [random.uniform(6, 20) * blade @ turn(random.uniform(0, 6))]
    else:
        tips = np.stack([random.normal(0, 12, 7), -random.uniform(12, 40, 7)], 1)
        shapes = [limb((x * 0.3, 0), (x, y), 2, 0.6) for x, y in tips]
        tones = random.uniform(0.7, 1.1, 7)
    at[1] -= _unit(size) * max(shape[:, 1].max() for shape in shapes)  # stands or lies there, above nothing
    return [Part(at + _unit(size) * p, paint * tone, mottle) for p, tone in zip(shapes, tones, strict=True)]


def _backdrop(random: Random, width: int, height: int) -> tuple[Floats, float]:
    """Ground and, above the horizon (a share of the height), a sky, a wood or a wall."""

    def mixed(one: Colour, other: Colour, share: Floats) -> Floats:
        blend: Floats = one.astype(np.float32) + (other - one).astype(np.float32) * share[..., None]
        return blend

    y = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    patches = np.clip(0.3 + 0.35 * noise(random, width, height, 3, 3), 0, 1)
    rough = noise(random, width, height, int(random.integers(10, 30)), 5, random.uniform(0.6, 0.95))
    floor = mixed(colour(random, GROUNDS), colour(random, GROUNDS), patches)
    floor *= ((1 + np.float32(random.uniform(0.02, 0.05)) * rough) * (0.85 + 0.3 * y))[..., None]
    horizon = float(random.uniform(0.12, 0.5)) if random.random() < 0.7 else 0.0
    if horizon:
        sky = mixed(colour(random, SKIES), colour(random, SKIES), np.sqrt(y).repeat(width, axis=1))
        sky *= 1 + np.float32(random.uniform(0.02, 0.08)) * noise(random, width, height, 4, 4)[..., None]
        edge = horizon + np.float32(random.uniform(0, 0.04)) * noise(random, width, 1, 5, 4)
        above = np.clip((edge - y) * (height / random.uniform(1, 6)) + 0.5, 0, 1).astype(np.float32)
        floor += above[..., None] * (sky - floor)
    return floor, horizon


def _photograph(random: Random, canvas: Floats) -> NDArray[np.uint8]:
    """Uneven light, exposure, lens and sensor."""
    height, width = canvas.shape[:2]
    y, x = np.linspace(-1, 1, height)[:, None], np.linspace(-1, 1, width)
    slant = 1 + random.uniform(-0.18, 0.18) * x + random.uniform(-0.12, 0.12) * y
    fall = slant * (1 - random.uniform(0.05, 0.2) * (x**2 + y**2)) * random.uniform(0.9, 1.22)
    image = canvas * fall.astype(np.float32)[..., None] * random.uniform(0.92, 1.08, 3).astype(np.float32)
    image = cv2.GaussianBlur(image, (0, 0), random.uniform(0.35, 0.85) * max(1, _unit((width, height))))
    image += np.float32(random.uniform(0.008, 0.025)) * random.standard_normal(image.shape, np.float32)
    pixels: NDArray[np.uint8] = np.clip(image * 255 + 0.5, 0, 255).astype(np.uint8)
    return pixels
