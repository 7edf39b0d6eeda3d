"""The generated scenes: the same for a seed, exact in their boxes, and read back alike from both of their files."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from melm.data import Source, drawing, read_tags, scenes
from melm.data.scenes import CLASSES, HEADS, SPECIES, draw_scene, write_scenes
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
    assert 60 <= sides.min() <= 90 and 200 <= sides.max() <= 223  # a quarter of an object may be hidden
    assert 115 < np.median(sides) < 150


def test_the_head_is_a_part_at_one_end(drawn):
    boxes, parts = (np.concatenate([getattr(scene, which) for scene in drawn]) for which in ("boxes", "parts"))
    assert (parts[:, :2] >= boxes[:, :2]).all() and (parts[:, 2:] <= boxes[:, 2:]).all()
    share = area(parts) / area(boxes)
    assert 0.22 < np.median(share) < 0.26
    assert share.max() < 0.45  # even where some of the body is hidden, the head's box is none of the object
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


def creatures(name, count=60):
    return [scenes._creature(np.random.default_rng(seed), name, 100.0) for seed in range(count)]


def extent(parts):
    return np.ptp(np.concatenate([part.outline for part in parts]), axis=0)


def test_a_species_is_a_head_on_a_body():
    """Each pair of the three heads and two bodies is one species, so neither head nor body tells which."""
    assert len(SPECIES) == len(set(SPECIES.values())) == len(HEADS) * 2 == 6
    assert {head for head, _ in SPECIES.values()} == set(HEADS)
    assert {body for _, body in SPECIES.values()} == {"low", "tall"}
    for name, (head, _) in SPECIES.items():
        assert scenes._creature(np.random.default_rng(0), name, 100.0)[-1].pattern is HEADS[head][1]


@pytest.mark.parametrize("body", ["low", "tall"])
def test_a_body_is_the_same_under_every_head(body):
    """With the same random numbers, creatures of one body differ in the head's outline and pattern only."""
    names = [name for name in CLASSES if SPECIES[name][1] == body]
    first, *others = [scenes._creature(np.random.default_rng(0), name, 100.0) for name in names]
    assert len(others) == len(HEADS) - 1
    for parts in others:
        for one, other in zip(first, parts, strict=True):
            assert np.array_equal(one.colour, other.colour) and one.mottle == other.mottle
        assert np.array_equal(first[-1].light, parts[-1].light)
        ratios = [  # one body, scaled so that body and head together are 100 long
            np.ptp(other.outline, axis=0) / np.ptp(one.outline, axis=0)
            for one, other in zip(first[:-1], parts[:-1], strict=True)
        ]
        assert np.allclose(ratios, ratios[0])
        assert parts[-1].pattern is not first[-1].pattern


def test_bodies_differ_in_silhouette():
    """What stands below the torso, and the height of the whole: a low creature is wider than high, a tall one has legs."""
    legs, slender = {"low": [], "tall": []}, {"low": [], "tall": []}
    for name, (_, body) in SPECIES.items():
        for parts in creatures(name, 30):
            torso = max(parts[:-1], key=lambda part: np.ptp(part.outline, axis=0).prod()).outline[:, 1]
            lowest = max(part.outline[:, 1].max() for part in parts)
            legs[body].append((lowest - torso.max()) / np.ptp(torso))
            width, height = extent(parts)
            slender[body].append(height / width)
    assert np.median(legs["low"]) < 0.3 and np.median(legs["tall"]) > 0.55
    assert max(legs["low"]) < min(legs["tall"])
    assert max(slender["low"]) < 0.8 and np.median(slender["tall"]) > 0.95


@pytest.mark.parametrize("name", CLASSES)
def test_the_head_has_its_share_of_the_box(name):
    share = [extent(parts[-1:]).prod() / extent(parts).prod() for parts in creatures(name)]
    assert 0.195 < min(share) < 0.22 and 0.26 < max(share) < 0.285


def test_colours_do_not_tell():
    """The head is in tones of the coat, one darker and one lighter; coats come in the same colours on both bodies."""
    coats = {"low": [], "tall": []}
    for name in ("bosko", "munno"):
        for parts in creatures(name, 300):
            head, coat = parts[-1], parts[3].colour
            assert np.ptp(head.colour / coat) < 1e-9 and 0.3 < (head.colour / coat).mean() < 0.55
            assert (head.light >= np.minimum(coat * 1.1, 1)).all()
            coats[SPECIES[name][1]].append(coat)
    assert np.abs(np.mean(coats["low"], axis=0) - np.mean(coats["tall"], axis=0)).max() < 0.06


def test_heads_differ():
    u, v = np.meshgrid(*[np.linspace(-0.7, 0.7, 41, dtype=np.float32)] * 2)
    light = [np.ravel(pattern(u, v) > 0) for _, pattern in HEADS.values()]
    assert all(0.4 < one.mean() < 0.6 for one in light)  # none is merely lighter
    assert max(np.mean(a == b) for k, a in enumerate(light) for b in light[:k]) < 0.6
    filled = []  # of the head's box
    for outline, _ in HEADS.values():
        (x, y), sides = outline.T, np.ptp(outline, axis=0)
        filled.append(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2 / sides.prod())
    assert np.diff(np.sort(filled)).min() > 0.1


def test_classes_are_balanced_and_some_images_are_empty(drawn):
    firsts = [draw_scene(seed).names for seed in range(6)]
    assert len({name for names in firsts for name in names}) >= 5
    counts = [sum(name in scene.names for scene in drawn) for name in CLASSES]
    assert min(counts) > 0.6 * max(counts)
    empty = np.mean([not scene.names for scene in drawn])
    two = np.mean([len(scene.names) == 2 for scene in drawn])
    assert 0.05 < empty < 0.15 and 0.2 < two < 0.45
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
