"""Strips: the right boxes in the right colours at the right pixels, words under them, and names of files."""

import itertools

import numpy as np
import pytest
from PIL import Image

from melm.data.images import ImageError
from melm.errors import MelmError
from melm.measure.truth import TrueBoxes, Truth
from melm.measure.watching import Look
from melm.show.drawings import TRUE, class_colour
from melm.show.evolution import (
    DARK,
    FRAME,
    GAP,
    LEARNED,
    LIKELY,
    chosen_epochs,
    clique_strip,
    evolution_strip,
    file_name,
    write_strips,
)

GREY = np.full((100, 120, 3), 90, np.uint8)
PANEL = 120 + 2 + GAP  # from one panel to the next, at the size of the image


def look(epoch=1, box=(20, 20, 60, 70), likely=(), cliques=(), id="a", tag="cat", file="a.png"):
    return Look(epoch, id, file, tag, box, tuple(likely), tuple(map(tuple, cliques)))


def at(strip, panel, x, y):
    """The colour of an image's pixel in a panel of a strip that is drawn at the size of `GREY`."""
    return tuple(strip[GAP + 1 + y, GAP + 1 + panel * PANEL + x].tolist())


def caption(strip, panel):
    return strip[GAP + 102 :, GAP + panel * PANEL :][:, : PANEL - GAP]


def has(strip, colour):
    return bool((strip == colour).all(axis=2).any())


def test_the_image_then_its_looks():
    looks = [look(2, (50, 30, 110, 90)), look(1, likely=[(10, 10, 80, 80)])]
    strip = evolution_strip(GREY, looks, np.array([[30, 40, 90, 95]]), height=100)
    assert strip.dtype == np.uint8 and strip.shape[1] == GAP + 3 * PANEL
    assert at(strip, 0, 30, 60) == at(strip, 0, 31, 60) == at(strip, 0, 89, 60) == TRUE
    assert at(strip, 0, 32, 60) == at(strip, 0, 90, 60) == (90, 90, 90)
    assert not has(strip[:, GAP + PANEL :], TRUE)
    for x, colour in ((9, GREY[0, 0]), (10, LIKELY), (11, GREY[0, 0]), (79, LIKELY), (80, GREY[0, 0])):
        assert at(strip, 1, x, 40) == tuple(colour)  # epoch 1 comes first
    for x, colour in ((48, GREY[0, 0]), (49, DARK), (50, LEARNED), (52, LEARNED), (53, DARK), (54, GREY[0, 0])):
        assert at(strip, 2, x, 60) == tuple(colour)
    assert at(strip, 2, 109, 60) == LEARNED and at(strip, 2, 110, 60) == DARK
    assert (strip[GAP, GAP : GAP + 122] == FRAME).all() and (strip[:GAP] == 255).all() and (strip[:, :GAP] == 255).all()
    assert (GREY == 90).all()


def test_the_learned_box_covers_the_likely_ones():
    strip = evolution_strip(GREY, [look(box=(20, 20, 60, 70), likely=[(20, 20, 60, 70)] * 3)], height=100)
    assert not has(strip, LIKELY) and at(strip, 1, 20, 40) == LEARNED


def test_captions_tell_tag_epoch_and_overlap():
    objects = np.array([[20, 20, 60, 70], [0, 0, 5, 5]])
    plain = evolution_strip(GREY, [look(3)], height=100)
    for panel in range(2):
        assert (caption(plain, panel) != 255).any()
    assert (caption(plain, 0) != caption(evolution_strip(GREY, [look(3, tag="dog")], height=100), 0)).any()
    assert (caption(plain, 1) != caption(evolution_strip(GREY, [look(4)], height=100), 1)).any()
    whole = evolution_strip(GREY, [look(3)], objects, height=100)
    half = evolution_strip(GREY, [look(3, box=(20, 20, 60, 45))], objects, height=100)
    assert (caption(whole, 1) != caption(plain, 1)).any() and (caption(whole, 1) != caption(half, 1)).any()
    same = evolution_strip(GREY, [look(3, box=(60, 20, 100, 70))], np.array([[60, 20, 100, 70]]), height=100)
    assert (caption(whole, 1) == caption(same, 1)).all()  # both say 1.00
    assert (evolution_strip(GREY, [look(3)], np.zeros((0, 4)), height=100) == plain).all()


@pytest.mark.parametrize("tag", ["", "a tag with no end " * 20, "猫", "\U000f1234", "a\nb", "🐈"])
def test_any_tag_is_written(tag):
    strip = evolution_strip(GREY, [look(tag=tag)], height=100)
    assert strip.shape == evolution_strip(GREY, [look()], height=100).shape
    assert (caption(strip, 0) != 255).any() == bool(tag)
    assert (caption(strip, 0)[:, 0] == 255).all()


def test_cliques_have_colours_and_the_discovered_one_is_on_top():
    cliques = [[(20, 20, 60, 70), (30, 30, 50, 60)], [(20, 20, 60, 70), (80, 10, 100, 90)], [(2, 2, 12, 12)]]
    strip = clique_strip(GREY, [look(5), look(2, cliques=cliques)], height=100)
    assert strip.shape[1] == GAP + 2 * PANEL
    assert at(strip, 0, 20, 40) == at(strip, 0, 21, 40) == at(strip, 0, 30, 40) == class_colour(0)
    assert at(strip, 0, 22, 40) == (90, 90, 90)
    assert at(strip, 0, 80, 40) == class_colour(1) and at(strip, 0, 81, 40) == (90, 90, 90)
    assert at(strip, 0, 2, 5) == class_colour(2)
    assert (strip[GAP + 1 : GAP + 101, GAP + PANEL + 1 : GAP + PANEL + 121] == 90).all()  # a look without cliques


def test_at_most_twelve_cliques_are_drawn():
    cliques = [[(4 * i, 10, 4 * i + 3, 90)] for i in range(20)]
    strip = clique_strip(GREY, [look(cliques=cliques)], height=100)
    assert [has(strip, class_colour(i)) for i in range(20)] == [True] * 12 + [False] * 8


def test_boxes_are_scaled_with_the_image():
    large = np.full((1000, 1200, 3), 90, np.uint8)
    small = np.full((10, 12, 3), 90, np.uint8)
    expected = evolution_strip(GREY, [look(box=(20, 20, 60, 70), likely=[(0, 10, 30, 90)])], height=100)
    for image, scale in ((large, 10), (small, 0.1)):
        one = look(box=tuple(scale * v for v in (20, 20, 60, 70)), likely=[tuple(scale * v for v in (0, 10, 30, 90))])
        assert (evolution_strip(image, [one], height=100) == expected).all()


@pytest.mark.parametrize("box", [(-50, -50, 500, 500), (-50, 20, 60, 400), (-1e9, -1e9, 1e9, 1e9)])
def test_a_box_that_leaves_the_image_ends_at_its_edge(box):
    strip = evolution_strip(GREY, [look(box=box)], height=100)
    assert at(strip, 1, 0, 50) == LEARNED and at(strip, 1, 3, 50) == DARK
    assert (strip[:, GAP + PANEL - GAP : GAP + PANEL] == 255).all()  # nothing between the panels


@pytest.mark.parametrize("box", [(40, 40, 40, 40), (0, 0, 0, 0), (120, 100, 120, 100), (60, 70, 20, 20)])
def test_a_box_without_size_is_a_dot(box):
    strip = evolution_strip(GREY, [look(box=box)], height=100)
    inside = strip[GAP + 1 : GAP + 101, GAP + PANEL + 1 : GAP + PANEL + 121]
    assert 0 < (inside == LEARNED).all(axis=2).sum() <= 9 and has(inside, DARK)


@pytest.mark.parametrize("box", [(200, 10, 300, 90), (10, -90, 50, -10), (float("nan"),) * 4])
def test_a_box_that_is_not_in_the_image_is_not_drawn(box):
    strip = evolution_strip(GREY, [look(box=box, likely=[box])], height=100)
    assert (strip[GAP + 1 : GAP + 101, GAP + PANEL + 1 : GAP + PANEL + 121] == 90).all()


@pytest.mark.parametrize("size", [(1, 1), (10, 10), (4000, 3000), (4000, 30), (30, 4000), (1, 3000)])
def test_images_of_any_size(size):
    width, height = size
    image = np.zeros((height, width, 3), np.uint8)
    looks = [
        look(i, (0, 0, width / 2, height / 2), [(0, 0, width, height)], [[(0, 0, width, height)]]) for i in (1, 20)
    ]
    for strip, panels in (
        (evolution_strip(image, looks, np.array([[0, 0, width, height]])), 3),
        (clique_strip(image, looks), 2),
    ):
        assert len(strip) <= 270 and panels * 160 < strip.shape[1] < panels * 460
        assert has(strip, (0, 0, 0)) or min(size) <= 30


def test_a_look_and_a_picture_are_needed():
    for draw in (evolution_strip, clique_strip):
        with pytest.raises(ValueError, match="no look"):
            draw(GREY, [])
        for image in (GREY[..., 0], GREY.astype(float), GREY[:0]):
            with pytest.raises(ValueError, match="expected"):
                draw(image, [look()])


@pytest.mark.parametrize(
    ("count", "most", "expected"),
    [
        (1, 8, [0]),
        (8, 8, range(8)),
        (9, 2, [0, 8]),
        (9, 3, [0, 4, 8]),
        (20, 8, [0, 3, 5, 8, 11, 14, 16, 19]),
        (0, 8, []),
    ],
)
def test_chosen_epochs_are_spread_evenly(count, most, expected):
    looks = [look(i) for i in range(count)]
    assert [one.epoch for one in chosen_epochs(looks[::-1], most)] == list(expected)


def test_an_epoch_is_chosen_once():
    looks = [look(1), look(2), look(2, (0, 0, 9, 9)), look(3)]
    assert [one.epoch for one in chosen_epochs(looks)] == [1, 2, 3]
    assert chosen_epochs(looks)[1].box == (0, 0, 9, 9)  # as it was done last
    with pytest.raises(ValueError, match="the first and the last"):
        chosen_epochs(looks, 1)


def test_names_of_files_are_plain_where_they_can_be():
    assert file_name("2007_000027", "person") == "2007_000027-person"
    assert file_name("IMG-1.b", "猫") == "IMG-1.b-猫"


def test_names_of_files_differ_and_never_leave_the_folder(tmp_path):
    parts = ["a", "b", "a-b", "a b", "a_b", "a/b", "a\\b", "../a", "..", "/a", "", "-", "+", "a+b", "a\0b", "A" * 300]
    parts += ["A" * 301, "猫" * 100, "猫" * 101, "\udcff", "\ud800", "a:b", "a\nb"]
    names = [file_name(id, tag) for id, tag in itertools.product(parts, parts)]
    assert len(set(names)) == len(parts) ** 2
    for name in names:
        path = tmp_path / f"evolution-{name}.jpg"
        assert path.parent == tmp_path and "\\" not in name and len(path.name.encode()) < 225
        path.touch()


def test_strips_for_every_tag_of_every_image(tmp_path):
    file = tmp_path / "a.png"
    Image.fromarray(GREY).save(file)
    none = np.zeros(2, bool)
    boxes = np.array([[30, 40, 90, 95], [0, 0, 20, 20]], float)
    truth = Truth(("dog", "cat"), {"a": TrueBoxes("a", boxes, np.array([1, 0]), none, none)})
    looks = [
        look(e, id=id, tag=tag, file=str(file))
        for id, tag in (("b", "cat"), ("a", "dog"), ("a", "cat"))
        for e in (1, 2)
    ]
    folder = tmp_path / "new" / "strips"
    paths = write_strips(looks, folder, truth)
    pairs = ("a-cat", "a-dog", "b-cat")
    assert paths == [folder / f"{kind}-{pair}.jpg" for pair in pairs for kind in ("evolution", "cliques")]
    assert sorted(folder.iterdir()) == sorted(paths)
    pixels = {}
    for path in paths:
        with Image.open(path) as image:
            assert image.format == "JPEG"
            pixels[path.stem] = np.asarray(image).astype(int)
    for pair, objects in (("a-cat", boxes[:1]), ("a-dog", boxes[1:]), ("b-cat", None)):  # b's boxes are not known
        expected = evolution_strip(GREY, [look(1, tag=pair[2:]), look(2, tag=pair[2:])], objects)
        assert np.abs(pixels[f"evolution-{pair}"] - expected).mean() < 1
    with_none = write_strips(looks, tmp_path / "none", None)
    assert with_none[0].read_bytes() != paths[0].read_bytes() and with_none[4].read_bytes() == paths[4].read_bytes()


def test_a_long_run_makes_a_strip_of_eight(tmp_path):
    Image.fromarray(GREY).save(tmp_path / "a.png")
    looks = [look(e, file=str(tmp_path / "a.png")) for e in range(1, 31)]
    evolution, cliques = write_strips(looks, tmp_path, None)
    with Image.open(evolution) as image, Image.open(cliques) as other:
        assert image.size[0] == GAP + 9 * (264 + 2 + GAP) and other.size[0] == GAP + 8 * (264 + 2 + GAP)


def test_places_without_images_or_room(tmp_path):
    with pytest.raises(ImageError, match=r"gone\.png"):
        write_strips([look(file=str(tmp_path / "gone.png"))], tmp_path, None)
    Image.fromarray(GREY).save(tmp_path / "a.png")
    with pytest.raises(MelmError, match=r"a\.png.*cannot be written"):
        write_strips([look(file=str(tmp_path / "a.png"))], tmp_path / "a.png", None)
    assert write_strips([], tmp_path / "empty", None) == []
