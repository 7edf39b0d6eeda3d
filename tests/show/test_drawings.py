"""Drawings: the right colours at the right pixels, and labels that stay in the picture."""

import itertools

import numpy as np
import pytest
from PIL import Image

from melm.detect.detections import Detections, no_detections
from melm.errors import MelmError, UsageError
from melm.measure.truth import TrueBoxes
from melm.show.drawings import RIGHT, TRUE, WRONG, class_colour, contact_sheet, draw_detections, save_drawing
from melm.show.fonts import font_for
from melm.show.labels import place_labels

GREY = np.full((150, 200, 3), 90, np.uint8)


def found(boxes, scores=None, classes=None, names=("cat", "dog"), size=(200, 150)):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    scores = np.array(scores if scores is not None else [0.9] * len(boxes), np.float32)
    return Detections(boxes, scores, np.array(classes or [0] * len(boxes), np.intp), names, *size)


def true(boxes, classes):
    none = np.zeros(len(boxes), bool)
    return TrueBoxes("a", np.array(boxes, float).reshape(-1, 4), np.array(classes, np.intp), none, none)


def test_a_box_ends_where_it_ends():
    drawn = draw_detections(GREY, found([[50, 60, 100, 120]]))
    colour = class_colour(0)
    for x, y in ((50, 119), (99, 119), (99, 100)):
        assert tuple(drawn[y, x]) == colour
    for x, y in ((49, 100), (100, 100), (75, 120), (75, 90)):
        assert tuple(drawn[y, x]) == (90, 90, 90)
    assert (GREY == 90).all()  # a copy was drawn on


def test_only_good_ones_are_drawn():
    both = found([[50, 60, 100, 120], [110, 60, 150, 120]], [0.9, 0.2])
    assert (draw_detections(GREY, both) == draw_detections(GREY, both[0])).all()
    assert (draw_detections(GREY, both, min_score=0.1) != draw_detections(GREY, both[0])).any()
    assert (draw_detections(GREY, no_detections(("cat",), 200, 150)) == GREY).all()


def test_right_wrong_and_true():
    boxes = [[10, 40, 60, 90], [12, 40, 62, 90], [100, 40, 150, 90], [150, 100, 190, 140]]
    detections = found(boxes, [0.9, 0.8, 0.7, 0.6], [0, 0, 1, 0])  # right, a second time, the wrong class, nothing
    drawn = draw_detections(GREY, detections, truth=true([[10, 44, 60, 94], [100, 44, 150, 94]], [0, 0]))
    assert tuple(drawn[89, 20]) == RIGHT
    assert [tuple(drawn[y, x]) for x, y in ((61, 80), (149, 50), (170, 139))] == [WRONG] * 3
    assert tuple(drawn[93, 30]) == tuple(drawn[93, 120]) == TRUE
    nothing_true = draw_detections(GREY, detections, truth=true([], []))
    assert tuple(nothing_true[89, 20]) == WRONG


def test_colours_differ():
    colours = np.array([class_colour(k) for k in range(20)], int)
    assert min(np.abs(a - b).sum() for a, b in itertools.combinations(colours, 2)) > 40
    assert len({class_colour(k) for k in range(200)}) == 200
    assert class_colour(500) == class_colour(500)


@pytest.mark.parametrize("size", [(200, 150), (1, 1), (3, 500), (500, 3), (30, 20), (4000, 20)])
@pytest.mark.parametrize("name", ["cat", "a very long name of a class " * 9, "ÄÖÜ ящик", "猫", "🐈 \n\t", ""])
def test_labels_stay_in_the_picture(size, name):
    width, height = size
    boxes = [[0, 0, width, height], [width - 1, height - 1, width, height], [-9, -9, width + 9, height + 9], [0] * 4]
    detections = found(boxes, names=(name,), size=size)
    for label in place_labels(detections, size):
        left, top, right, bottom = label.place
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
    image = np.zeros((height, width, 3), np.uint8)
    assert draw_detections(image, detections, truth=true([boxes[0]], [0])).shape == image.shape


def test_labels_make_room_for_each_other():
    labels = place_labels(found([[40, 50, 180, 120]] * 3, names=("cat",)), (200, 150))
    for a, b in itertools.combinations([label.place for label in labels], 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_a_label_in_view():
    detections = found([[40, 50, 180, 120]], [0.876], names=("ящик ß",))
    (label,) = place_labels(detections, (200, 150))
    assert label.text == "ящик ß 0.88" and label.place[3] == 50
    drawn = draw_detections(GREY, detections)
    left, top, right, bottom = label.place
    inside = drawn[top:bottom, left:right].reshape(-1, 3)
    assert len(np.unique(inside, axis=0)) > 5  # letters, not only the ground
    outside = drawn.copy()
    outside[top:bottom, left:right] = 90
    outside[50:120, 40:180] = 90
    assert (outside == 90).all()


def test_a_name_that_no_font_has_becomes_a_number():
    private = "\U000f1234"  # a character that means nothing
    assert font_for(private, 12) is None
    (label,) = place_labels(found([[40, 50, 180, 120]], classes=[1], names=("cat", private)), (200, 150))
    assert label.text == "#1 0.90"


def test_chinese_is_written_or_numbered():
    (label,) = place_labels(found([[40, 50, 180, 120]], names=("猫",)), (200, 150))
    assert label.text == ("#0 0.90" if font_for("猫", 12) is None else "猫 0.90")


@pytest.mark.parametrize("image", [GREY[:100], GREY[..., 0], GREY.astype(float), np.zeros((150, 200, 4), np.uint8)])
def test_another_image_is_refused(image):
    with pytest.raises(ValueError, match="image"):
        draw_detections(image, found([[0, 0, 10, 10]]))


@pytest.mark.parametrize("ending", [".png", ".jpg", ".JPEG"])
def test_save(tmp_path, ending):
    path = tmp_path / f"drawing{ending}"
    save_drawing(path, GREY, found([[50, 60, 100, 120]]))
    with Image.open(path) as image:
        assert image.size == (200, 150) and image.format == ("PNG" if ending == ".png" else "JPEG")
        assert np.abs(np.asarray(image, int) - draw_detections(GREY, found([[50, 60, 100, 120]]))).mean() < 3


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match=r"\.jpg or \.png"):
        save_drawing(tmp_path / "drawing.gif", GREY, found([]))
    with pytest.raises(MelmError, match="cannot be written"):
        save_drawing(tmp_path / "none" / "drawing.png", GREY, found([]))


def test_contact_sheet():
    red, blue = np.zeros((50, 100, 3), np.uint8), np.zeros((300, 100, 3), np.uint8)
    red[..., 0] = blue[..., 2] = 255
    sheet = contact_sheet([red, blue, red], columns=2, width=400)
    assert sheet.shape[1] == 400 and sheet.dtype == np.uint8
    is_red = (sheet == (255, 0, 0)).all(axis=2)
    is_blue = (sheet == (0, 0, 255)).all(axis=2)
    assert is_red[:, :200].sum() > 30_000 and not is_red[:, 200:].any()  # one above the other, on the left
    assert is_blue[:, 200:].any() and not is_blue[:, :200].any()
    rows, columns = np.nonzero(is_blue)
    assert np.ptp(rows) == pytest.approx(3 * np.ptp(columns), abs=4)  # its shape is kept
    assert (sheet[[0, -1]] == 255).all() and (sheet[:, [0, -1]] == 255).all()


@pytest.mark.parametrize("images, columns, width", [([], 2, 400), ([GREY], 0, 400), ([GREY], 300, 200)])
def test_no_sheet(images, columns, width):
    with pytest.raises(ValueError, match="sheet"):
        contact_sheet(images, columns, width)
