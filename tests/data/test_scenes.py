"""The generated scenes: the same for a seed, exact in their boxes, and read back alike from both of their files."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from melm.data import Source, drawing, read_tags, scenes
from melm.data.scenes import CLASSES, HEADS, draw_scene, write_scenes
from melm.errors import UsageError
from melm.measure.truth import read_truth

SEEDS = range(120)


@pytest.fixture(scope="module")
def drawn():
    return [draw_scene(seed) for seed in SEEDS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, train=36, test=24, seed=3)
    return folder


def area(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def test_a_seed_is_a_scene():
    again, other = draw_scene(5), draw_scene(6)
    assert np.array_equal(draw_scene(5).pixels, again.pixels)
    assert np.array_equal(draw_scene(5).boxes, again.boxes)
    assert not np.array_equal(again.pixels, other.pixels)


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_scenes(tmp_path / name, train=3, test=2, seed=1)
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*") if p.is_file())
    assert len(files) == 3 + 2 + 4
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)


def test_no_two_images_are_alike(folder):
    images = [p.read_bytes() for p in folder.rglob("*.jpg")]
    assert len(set(images)) == len(images) == 60


def test_other_seeds_share_no_scene(tmp_path, folder):
    write_scenes(tmp_path, train=4, test=4, seed=4)
    assert not {p.read_bytes() for p in tmp_path.rglob("*.jpg")} & {p.read_bytes() for p in folder.rglob("*.jpg")}


@pytest.mark.parametrize("size", [(320, 240), (160, 120), (240, 320), (300, 500)])
def test_objects_are_inside(size):
    for seed in range(12):
        scene = draw_scene(seed, size)
        assert scene.pixels.shape == (size[1], size[0], 3) and scene.pixels.dtype == np.uint8
        assert scene.boxes.shape == scene.parts.shape == (len(scene.names), 4)
        assert scene.boxes.dtype == scene.parts.dtype == np.float64
        assert (scene.boxes[:, :2] >= 0).all() and (scene.boxes[:, 2:] <= size).all()
        assert (scene.boxes[:, :2] < scene.boxes[:, 2:]).all()


def test_objects_have_many_sizes(drawn):
    sides = np.array([max(x2 - x1, y2 - y1) for scene in drawn for x1, y1, x2, y2 in scene.boxes])
    assert 45 <= sides.min() <= 65 and 180 <= sides.max() <= 203  # a quarter of an object may be hidden
    assert 95 < np.median(sides) < 130


def test_the_head_is_a_small_part_at_one_end(drawn):
    boxes, parts = (np.concatenate([getattr(scene, which) for scene in drawn]) for which in ("boxes", "parts"))
    assert (parts[:, :2] >= boxes[:, :2]).all() and (parts[:, 2:] <= boxes[:, 2:]).all()
    share = area(parts) / area(boxes)
    assert share.min() > 0.12 and share.max() < 0.22 and 0.14 < share.mean() < 0.18
    left = parts[:, 0] + parts[:, 2] < boxes[:, 0] + boxes[:, 2]
    assert 0.35 < left.mean() < 0.65  # creatures look both ways


def test_boxes_are_those_of_the_pixels(monkeypatch):
    """Creatures in flat red on black, without clutter, lens and noise: the box is that of the pixels at least half red."""
    red = np.array([1.0, 0.0, 0.0])
    creature = scenes._creature

    def painted(random, name, longest):
        return [replace(part, colour=red, light=None, mottle=0.0) for part in creature(random, name, longest)]

    monkeypatch.setattr(scenes, "_creature", painted)
    monkeypatch.setattr(scenes, "_clutter", lambda *_: [scenes.Part(np.full((3, 2), -90.0), red, 0.0)])
    monkeypatch.setattr(scenes, "_backdrop", lambda random, w, h: (np.zeros((h, w, 3), np.float32), 0.3))
    monkeypatch.setattr(scenes, "_photograph", lambda random, canvas: canvas)
    monkeypatch.setattr(drawing, "_relief", lambda mask, light: np.ones_like(mask))
    alone = [scene for scene in map(draw_scene, range(40)) if len(scene.names) == 1]
    assert len(alone) > 10
    for scene in alone:
        rows, columns = np.nonzero(scene.pixels[..., 0] >= 0.5)
        assert scene.boxes[0].tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def test_what_is_hidden_is_little():
    """Of two objects, the farther one keeps most of itself."""
    seen = 0
    for seed in SEEDS:
        size = (160, 120)
        random = np.random.default_rng(seed)
        names, layers, visible = scenes._placed(random, seed, size, 0.2, np.array([0.0, -1.0]))
        for layer, masks in zip(layers, visible, strict=True):
            whole, head = layer.masks(size[1], size[0])
            assert masks[0].sum() >= 0.75 * whole.sum() and masks[1].sum() >= 0.9 * head.sum()
            seen += masks[0].sum() < whole.sum()
        assert len(names) < 2 or not (visible[0][0] & visible[1][0]).any()
    assert seen > 5  # objects do overlap now and then


def test_body_and_colours_do_not_tell_the_species():
    """All but the head's outline and pattern is the same for the same random numbers, whatever the species."""
    creatures = [scenes._creature(np.random.default_rng(0), name, 100.0) for name in CLASSES]
    for parts in creatures[1:]:
        for one, other in zip(creatures[0], parts, strict=True):
            assert np.array_equal(one.colour, other.colour) and one.mottle == other.mottle
        assert np.array_equal(creatures[0][-1].light, parts[-1].light)
        ratios = [  # one body, scaled so that body and head together are 100 long
            np.ptp(other.outline, axis=0) / np.ptp(one.outline, axis=0)
            for one, other in zip(creatures[0][:-1], parts[:-1], strict=True)
        ]
        assert np.allclose(ratios, ratios[0])


def test_heads_differ():
    u, v = np.meshgrid(*[np.linspace(-0.7, 0.7, 41, dtype=np.float32)] * 2)
    light = [np.ravel(pattern(u, v) > 0) for _, pattern in HEADS.values()]
    assert all(0.15 < one.mean() < 0.85 for one in light)
    agree = [np.mean(a == b) for k, a in enumerate(light) for b in light[:k]]
    assert max(agree) < 0.8


def test_classes_are_balanced_and_some_images_are_empty(drawn):
    firsts = [draw_scene(seed).names for seed in range(6)]
    assert len({name for names in firsts for name in names}) >= 5
    counts = [sum(name in scene.names for scene in drawn) for name in CLASSES]
    assert min(counts) > 0.6 * max(counts)
    empty = np.mean([not scene.names for scene in drawn])
    two = np.mean([len(scene.names) == 2 for scene in drawn])
    assert 0.05 < empty < 0.15 and 0.2 < two < 0.4
    assert tuple(sorted(CLASSES)) == CLASSES  # so that tables, which list no classes, give them in the same order


@pytest.mark.parametrize("split", ["train", "test"])
def test_tags_and_boxes_agree(folder, split):
    tagged, truth = read_tags(Source(folder / f"{split}-tags.csv")), read_truth(Source(folder / f"{split}.json"))
    assert not tagged.problems and not truth.problems
    assert tagged.classes == truth.classes == CLASSES
    assert [image.id for image in tagged] == list(truth.images)
    assert read_tags(Source(folder / f"{split}.json")) == tagged
    for image in tagged:
        assert set(image.tags) == {CLASSES[k] for k in truth.images[image.id].classes}
        assert image.unknown == ()  # an image without tags is known to show none
    assert any(image.tags == () for image in tagged)


def test_files_hold_the_scenes(folder):
    coco = json.loads((folder / "test.json").read_text())
    for i in (0, 11, 23):
        scene = draw_scene(3 * 1_000_000 + 500_000 + i)
        with Image.open(folder / "test" / f"{i:05d}.jpg") as image:
            assert np.abs(np.asarray(image).astype(int) - scene.pixels).mean() < 6  # JPEG
        boxes = [a["bbox"] for a in coco["annotations"] if a["image_id"] == i]
        assert [[x, y, x + w, y + h] for x, y, w, h in boxes] == scene.boxes.tolist()


def test_what_cannot_be_drawn_is_said(tmp_path):
    with pytest.raises(UsageError, match="64 x 48"):
        draw_scene(0, (64, 48))
    with pytest.raises(UsageError, match="500,001"):
        write_scenes(tmp_path, train=500_001, test=1)
