"""What is written in one format is read the same in another, and no file makes a reader fail in other than plain words."""

import csv
import io
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from melm.data import DataError, Source, read_tags
from melm.data.formats import read
from melm.data.formats.listing import SPLIT_FOLDERS
from melm.data.formats.table import read_rows
from melm.data.formats.voc_xml import read_voc_xml
from melm.data.images import image_info
from melm.measure.truth import read_truth
from writers import BOXED, WRITERS, Picture, Thing, coco_json, save_image, voc_xml, write_text, yolo_line

FEW = settings(max_examples=25, deadline=None)
MANY = settings(max_examples=150, deadline=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


# Round trips

WORD = st.text(st.characters(categories=["L", "N"], codec="utf-8"), min_size=1, max_size=6)
NAME = st.one_of(
    st.sampled_from(["cat", "big dog", "potted plant", "猫", "été", "straße", "Кот", "1", "no", "tv_monitor", "a-b"]),
    st.lists(WORD, min_size=1, max_size=3).map(" ".join),
).filter(lambda name: name.strip() and name.lower() not in (*SPLIT_FOLDERS, "background"))


@st.composite
def things(draw, names, size):
    x1, x2 = sorted(draw(st.lists(st.integers(0, size[0]), min_size=2, max_size=2, unique=True)))
    y1, y2 = sorted(draw(st.lists(st.integers(0, size[1]), min_size=2, max_size=2, unique=True)))
    return Thing(draw(st.sampled_from(names)), (x1, y1, x2, y2))


@st.composite
def data_sets(draw):
    names = draw(st.lists(NAME, min_size=1, max_size=4, unique=True))
    pictures = []
    for number in range(draw(st.integers(1, 4))):
        size = (draw(st.integers(1, 60)), draw(st.integers(1, 60)))
        least = 1 if number == 0 else 0  # a data set without any object has no format
        objects = draw(st.lists(things(names, size), min_size=least, max_size=4))
        pictures.append(Picture(f"{number:03d}{draw(st.sampled_from(['.jpg', '.png']))}", tuple(objects), size))
    return pictures


def read_back(root):
    """The pictures of a data set, as its files say."""
    files = {image.id: image.path for image in read_tags(Source(root))}
    truth = read_truth(Source(root))
    return [
        Picture(
            files[id].name,
            tuple(
                Thing(truth.classes[k], tuple(box)) for k, box in zip(image.classes, image.boxes.tolist(), strict=True)
            ),
            (image_info(files[id]).width, image_info(files[id]).height),
        )
        for id, image in truth.images.items()
    ]


def whole(pictures):
    """Coordinates without the rounding of shares; they must be within a thousandth of a pixel."""
    for picture in pictures:
        corners = np.array([thing.box for thing in picture.things])
        np.testing.assert_allclose(corners, np.round(corners), atol=1e-3)
    return [
        Picture(p.file, tuple(Thing(t.name, tuple(round(v) for v in t.box)) for t in p.things), p.size)
        for p in pictures
    ]


def by_file(pictures):
    return {picture.file: (picture.size, picture.things) for picture in pictures}


@FEW
@given(data_sets(), st.sampled_from(sorted(BOXED)), st.sampled_from(sorted(BOXED)))
def test_boxes_from_format_to_format(pictures, first, second):
    with tempfile.TemporaryDirectory() as folder:
        once = whole(read_back(BOXED[first](Path(folder, "one"), pictures)))
        assert by_file(once) == by_file(pictures)
        twice = whole(read_back(BOXED[second](Path(folder, "two"), once)))
        assert by_file(twice) == by_file(pictures)


@FEW
@given(data_sets(), st.sampled_from(sorted(WRITERS)))
def test_tags_of_every_format(pictures, format):
    with tempfile.TemporaryDirectory() as folder:
        root = WRITERS[format](Path(folder), pictures)
        empty = format == "folders" and not all(picture.things for picture in pictures)
        data = read_tags(Source(root, background="background" if empty else None))
        assert {image.path.name: list(image.tags) for image in data} == {p.file: p.names for p in pictures}
        assert sorted(data.classes) == sorted({name for picture in pictures for name in picture.names})


# Tables

CELL = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
TAG = st.text(st.characters(codec="utf-8", exclude_characters="\0|;,"), max_size=8)


@MANY
@given(
    rows=st.lists(st.tuples(CELL.filter(str.strip), st.lists(TAG, max_size=3), CELL), min_size=1, max_size=4),
    delimiter=st.sampled_from([",", ";", "\t"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_any_text_in_cells(folder, rows, delimiter, quoting, encoding):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting)
    writer.writerow(["note", "tags", "file"])
    writer.writerows([note, "|".join(tags), file] for file, tags, note in rows)
    got = read_rows(write_text(folder / "tags.csv", text.getvalue(), encoding))
    assert [(row.file, row.tags) for row in got] == [
        (file.strip(), [tag.strip() for tag in tags if tag.strip()]) for file, tags, _ in rows
    ]


def only_data_errors(function, *arguments):
    try:
        return function(*arguments)
    except DataError as error:
        assert str(error)


@MANY
@given(
    st.sampled_from([b"", b"file,tags\n", b"file;cat;dog\n", b"a.jpg,cat\n", b"\xff\xfe", b"\xef\xbb\xbf"]),
    st.one_of(st.binary(max_size=60), st.text("a./\\,;\t|\"'\n\r01 é\0", max_size=60).map(str.encode)),
)
@example(b"a.jpg,cat\n", b".")
def test_any_bytes_as_a_table(folder, start, content):
    path = folder / "any.csv"
    path.write_bytes(start + content)
    only_data_errors(read, Source(path), True)


# Annotations


@MANY
@given(st.sampled_from([b"", b"<annotation>", b"<?xml version='1.0' encoding='"]), st.binary(max_size=80))
@example(b"", voc_xml((20, 16), [Thing("cat")]).encode("utf-16"))
@example(b"<?xml version='1.0' encoding='", b"utf-7'?><a/>")
def test_any_bytes_as_xml(folder, start, content):
    path = folder / "any.xml"
    path.write_bytes(start + content)
    only_data_errors(read_voc_xml, path, True)


VALUE = st.one_of(
    st.sampled_from(["", "1", "-1", "1e999", "nan", "0x1", "1_0", "¹", " 7 ", "<b/>", "<b>1</b>", "&amp;", "9" * 500]),
    st.floats().map(str),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="<&"), max_size=5),
)


@MANY
@given(st.lists(VALUE, min_size=8, max_size=8), st.sets(st.integers(0, 10)))
def test_any_values_in_xml(folder, values, dropped):
    keys = ["width", "height", "name", "difficult", "xmin", "ymin", "xmax", "ymax"]
    parts = [f"<{key}>{value}</{key}>" for key, value in zip(keys, values, strict=True)]
    parts = ["" if k in dropped else part for k, part in enumerate(parts)]
    size = "" if 8 in dropped else f"<size>{''.join(parts[:2])}</size>"
    box = "" if 9 in dropped else f"<bndbox>{''.join(parts[4:])}</bndbox>"
    thing = "" if 10 in dropped else f"<object>{''.join(parts[2:4])}{box}</object>"
    path = write_text(folder / "values.xml", f"<annotation>{size}{thing}</annotation>")
    got = only_data_errors(read_voc_xml, path, True)
    if got is not None:
        assert all(np.isfinite(thing.box).all() and thing.name for thing in got.objects)


NUMBER = st.one_of(
    st.sampled_from(["0", "1", "2", "-1", "0.5", "1e999", "nan", "-inf", "cat", "1_0", "²", "\x85"]),
    st.floats().map(str),
)


@MANY
@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(st.lists(NUMBER, max_size=8).map(" ".join), max_size=3).map("\n".join).map(str.encode),
    )
)
@example(b"inf 0.5 0.5 1 1")
def test_any_bytes_as_a_yolo_label(folder, content):
    save_image(folder / "labels" / "a.png", (4, 4))
    write_text(folder / "labels" / "data.yaml", "train: .\nnames: [cat, dog]\n")
    (folder / "labels" / "a.txt").write_bytes(content)
    listing = only_data_errors(read, Source(folder / "labels"), True)
    assert listing is not None and (len(listing.entries) == 1) == (not listing.problems)


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just("."), st.just("..")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.integers(0, 3), st.text(max_size=2)), inner, max_size=3),
    ),
    max_leaves=4,
)


@MANY
@given(
    st.one_of(
        st.binary(max_size=60),
        st.text("names:train [],{}&*!#|>-?'\"\n\t0129.cat", max_size=60).map(str.encode),
        st.builds(lambda head, tail: head + tail, st.just(b"names: [cat]\ntrain: .\nx: "), st.binary(max_size=20)),
        st.fixed_dictionaries(
            {"names": st.one_of(PLAIN, st.just(["cat", "dog"]))},
            optional={"train": PLAIN, "val": PLAIN, "path": PLAIN, "nc": PLAIN},
        ).map(lambda config: yaml.safe_dump(config).encode()),
    )
)
@example(b"names: []\ntrain: .\n")
@example(b"names: [cat]\ntrain: .\nx: 2024-13-45\n")
def test_any_bytes_as_a_yolo_config(folder, content):
    save_image(folder / "config" / "a.png", (4, 4))
    write_text(folder / "config" / "a.txt", yolo_line(0, (0, 0, 2, 2), (4, 4)))
    path = folder / "config" / "data.yaml"
    path.write_bytes(content)
    only_data_errors(read, Source(path), True)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just(10**400)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=4,
)


@MANY
@given(
    st.one_of(
        st.binary(max_size=60),
        st.text('{}[]",:0129.eE-truefalsnimagescato', max_size=60).map(str.encode),
        JSON.map(lambda value: json.dumps(value).encode()),
        st.builds(
            lambda key, rows: json.dumps({"images": [], "annotations": [], "categories": []} | {key: rows}).encode(),
            st.sampled_from(["images", "annotations", "categories"]),
            JSON,
        ),
    )
)
def test_any_bytes_as_coco(folder, content):
    path = folder / "any.json"
    path.write_bytes(content)
    only_data_errors(read, Source(path), True)


COCO = coco_json([Picture("a.jpg", (Thing("cat"),)), Picture("b.jpg", (Thing("dog"), Thing("cat")))])
PLACES = [(kind, row, key) for kind, rows in COCO.items() for row, values in enumerate(rows) for key in values]


@MANY
@given(st.sampled_from(PLACES), st.one_of(JSON, st.just("drop it")))
def test_any_value_in_coco(folder, place, value):
    coco = json.loads(json.dumps(COCO))
    kind, row, key = place
    if value == "drop it":
        del coco[kind][row][key]
    else:
        coco[kind][row][key] = value
    only_data_errors(read, Source(write_text(folder / "value.json", json.dumps(coco))), True)
