"""Labels as other tools read them: melm's own readers, and those of the tools themselves where they are installed."""

import importlib
import json
import warnings

import numpy as np
import pytest
from labelled_images import NAMES, SIZE, images_with_labels, labelled
from PIL import Image

from melm.data import Source, read_tags
from melm.export.image_files import flat_name
from melm.export.label_voc import pixels
from melm.export.labels import ExportSettings, export_labels
from melm.measure.truth import read_truth
from writers import save_image

PLAIN = ("cat", "big dog", "猫 科")  # what a table of tags can hold: the table reader takes a comma for a separator


def needed(module, package=None):
    """A tool's own reader, or the test is skipped: most of these packages are heavy, and none is needed to use melm."""
    package = package or module.split(".")[0]
    return pytest.importorskip(module, reason=f"{package}, whose reader this asks, is not here", exc_type=ImportError)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "photos"


@pytest.fixture
def images(root):
    """With a photo that EXIF turns: 60 x 40 as a viewer shows it, 40 x 60 as it is stored."""
    found = images_with_labels(root)
    found.append(labelled("turned", root / "turned.jpg", [[0, 0, 30, 10], [45, 5, 60, 40]], [0.7, 0.3], [0, 3]))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", SIZE[::-1], "red").save(root / "turned.jpg", exif=exif)
    return found


def export(labels, out, format, names=NAMES, **options):
    return export_labels(labels, names, out, format, ExportSettings(**options))


def named_boxes(names, boxes, classes):
    return sorted((names[int(k)], *box) for k, box in zip(classes, np.asarray(boxes, float).tolist(), strict=True))


def same(got, image, boxes=None, within=1e-3):
    """The same names and, to within so many pixels, the same boxes; in whatever order."""
    expected = named_boxes(image.found.names, image.found.boxes if boxes is None else boxes, image.found.classes)
    assert [name for name, *_ in got] == [name for name, *_ in expected], image.id
    inside = np.clip([corners for _, *corners in expected], 0, [*SIZE, *SIZE]) if expected else np.zeros((0, 4))
    np.testing.assert_allclose(
        np.reshape([corners for _, *corners in got], (-1, 4)), inside, atol=within, err_msg=image.id
    )


def whole_pixels(image):
    """As VOC holds them, in our way to count."""
    return pixels(image.found) - [1, 1, 0, 0]


# melm reads what it wrote


@pytest.mark.parametrize("how", ["link", "copy", "none"])
def test_coco_by_melm(images, root, tmp_path, how):
    path = export(images, tmp_path / "out", "coco", images=how)
    truth = read_truth(Source(path, images=root if how == "none" else None))
    assert not truth.problems and truth.classes == NAMES
    for image in images:
        got = truth.images[image.id if how == "none" else flat_name(image.id)]
        same(named_boxes(truth.classes, got.boxes, got.classes), image)


@pytest.mark.parametrize("how", ["link", "copy"])
def test_voc_by_melm(images, tmp_path, how):
    truth = read_truth(Source(export(images, tmp_path / "out", "voc", images=how)))
    assert not truth.problems and truth.classes == tuple(sorted(NAMES))
    for image in images:
        got = truth.images[flat_name(image.id)]
        same(named_boxes(truth.classes, got.boxes, got.classes), image, whole_pixels(image))


@pytest.mark.parametrize("confidence", [False, True])
def test_yolo_by_melm(images, tmp_path, confidence):
    path = export(images, tmp_path / "out", "yolo", val_share=0.5, confidence=confidence)
    seen = 0
    for split in ("train", "val"):
        truth = read_truth(Source(path, split=split))
        assert not truth.problems and truth.classes == NAMES
        for image in images:
            if got := truth.images.get(f"images/{split}/{flat_name(image.id)}"):
                same(named_boxes(truth.classes, got.boxes, got.classes), image)
                seen += 1
    assert seen == len(images)


def test_table_by_melm(root, tmp_path):
    images = [
        labelled("a b/one", root / "a b/one.jpg", [[0, 0, 9, 9]] * 3, [1, 0.5, 0.2], [0, 1, 1], names=PLAIN),
        labelled("猫", root / "猫.jpg", [[0, 0, 9, 9]], [1], [2], names=PLAIN),
    ]
    for image in images:
        save_image(image.path)
    path = export(images, tmp_path / "out", "csv", PLAIN)
    data = read_tags(Source(path, images=root))
    assert {image.id: image.tags for image in data} == {"a b/one": ("big dog", "cat"), "猫": ("猫 科",)}


# The tools' own readers


def test_coco_by_pycocotools(images, tmp_path):
    coco_api = needed("pycocotools.coco")
    path = export(images, tmp_path / "out", "coco")
    coco = coco_api.COCO(path)
    assert [c["name"] for c in coco.loadCats(coco.getCatIds())] == [*NAMES]
    assert [i["file_name"] for i in coco.loadImgs(coco.getImgIds())] == [i.id + i.path.suffix for i in images]
    for number, image in enumerate(images, 1):
        annotations = coco.loadAnns(coco.getAnnIds(imgIds=[number]))
        corners = [[x, y, x + w, y + h] for x, y, w, h in (a["bbox"] for a in annotations)]
        same(named_boxes(NAMES, corners, [a["category_id"] - 1 for a in annotations]), image)
    results = coco.loadRes(json.loads(path.read_bytes())["annotations"])  # scores make them results, too
    assert len(results.getAnnIds()) == 9
    cocoeval = needed("pycocotools.cocoeval")
    measured = cocoeval.COCOeval(coco, results, "bbox")
    measured.evaluate()
    measured.accumulate()
    measured.summarize()
    assert measured.stats[1] == 1  # the labels against themselves, at an overlap of 0.5


def test_coco_by_supervision(images, root, tmp_path):
    supervision = needed("supervision")
    path = export(images, tmp_path / "out", "coco", images="copy")
    data = supervision.DetectionDataset.from_coco(str(tmp_path / "out/images"), str(path))
    check_supervision(data, images, NAMES)
    path = export(images, tmp_path / "named", "coco", image_root=root)
    assert len(supervision.DetectionDataset.from_coco(str(root), str(path))) == len(images)


def test_voc_by_supervision(images, tmp_path):
    supervision = needed("supervision")
    out = export(images, tmp_path / "out", "voc", images="link")
    data = supervision.DetectionDataset.from_pascal_voc(str(out / "JPEGImages"), str(out / "Annotations"))
    assert sorted(data.classes) == sorted(NAMES)
    check_supervision(data, images, data.classes, whole_pixels)


def test_yolo_by_supervision(images, tmp_path):
    supervision = needed("supervision")
    path = export(images, tmp_path / "out", "yolo", val_share=0)
    out = path.parent
    folders = str(out / "images/train"), str(out / "labels/train")
    data = supervision.DetectionDataset.from_yolo(*folders, str(path))
    check_supervision(data, images, NAMES)


def check_supervision(data, images, names, boxes=lambda image: None):
    """All images are there, upright, with their boxes."""
    by_name = {path.rsplit("/", 1)[1]: (pixels, found) for path, pixels, found in data}
    assert len(by_name) == len(images)
    for image in images:
        shown, found = by_name[flat_name(image.id) + image.path.suffix]
        assert shown.shape == (SIZE[1], SIZE[0], 3)
        same(named_boxes(names, found.xyxy, found.class_id if len(found) else []), image, boxes(image))


@pytest.fixture
def ultralytics(tmp_path, monkeypatch):
    """Its dataset module. It wants torchvision's metadata, not torchvision, to be imported; and fonts from the network."""
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = needed("ultralytics.data.utils")
    monkeypatch.setattr(module, "check_font", lambda font: None)
    return module


def test_yolo_by_ultralytics(images, tmp_path, ultralytics):
    path = export(images, tmp_path / "out", "yolo", val_share=0.5)
    data = ultralytics.check_det_dataset(str(path), autodownload=False)
    assert data["names"] == dict(enumerate(NAMES)) and data["nc"] == len(NAMES)
    base = importlib.import_module("ultralytics.data.base").BaseDataset
    reader = base.__new__(base)
    reader.prefix, reader.fraction = "", 1.0
    seen = 0
    for split in ("train", "val"):
        files = reader.get_img_files(data[split])
        for file, label in zip(files, ultralytics.img2label_paths(files), strict=True):
            image = next(i for i in images if file.endswith(f"/{flat_name(i.id)}{i.path.suffix}"))
            _, rows, shape, *_, missing, found, empty, corrupt, message = ultralytics.verify_image_label(
                (file, label, "", False, len(NAMES), 0, 0, False)
            )
            assert (missing, found, empty, corrupt, message) == (0, 1, int(not len(image.found)), 0, "")
            assert shape == (SIZE[1], SIZE[0])  # upright, that of the turned photo too
            centre, side = rows[:, 1:3], rows[:, 3:]
            corners = np.hstack([centre - side / 2, centre + side / 2]) * [*SIZE, *SIZE]
            same(named_boxes(NAMES, corners, rows[:, 0]), image)
            seen += 1
    assert seen == len(images)


def test_ultralytics_drops_images_whose_labels_have_a_confidence(images, tmp_path, ultralytics):
    """Why the confidence is left out unless it is asked for."""
    export(images[:1], tmp_path / "out", "yolo", val_share=0, confidence=True)
    name = flat_name(images[0].id)
    files = str(tmp_path / f"out/images/train/{name}.png"), str(tmp_path / f"out/labels/train/{name}.txt")
    *_, corrupt, message = ultralytics.verify_image_label((*files, "", False, len(NAMES), 0, 0, False))
    assert corrupt == 1 and "5 columns" in message


def test_yolo_of_training_images_alone_by_ultralytics(images, tmp_path, ultralytics):
    data = ultralytics.check_det_dataset(str(export(images, tmp_path / "out", "yolo", val_share=0)), autodownload=False)
    assert data["val"] == data["train"] == str(tmp_path / "out/images/train")


def test_voc_by_labelimg(images, tmp_path):
    reader = needed("libs.pascal_voc_io", "labelImg").PascalVocReader
    out = export(images, tmp_path / "out", "voc")
    for image in images:
        shapes = reader(str(out / f"Annotations/{flat_name(image.id)}.xml")).get_shapes()
        corners = [[*points[0], *points[2]] for _, points, *_ in shapes]
        got = sorted((name, *map(float, box)) for (name, *_), box in zip(shapes, corners, strict=True))
        assert got == [(name, *box) for name, *box in named_boxes(NAMES, pixels(image.found), image.found.classes)]


def test_tasks_by_label_studio(images, tmp_path):
    interface = needed("label_studio_sdk.label_interface", "label-studio-sdk").LabelInterface
    objects = needed("label_studio_sdk.label_interface.objects", "label-studio-sdk")
    path = export(images, tmp_path / "out", "labelstudio")
    config = interface((tmp_path / "out/labelling-config.xml").read_text(encoding="utf-8"))
    config.validate()
    assert list(config.get_control("label").labels) == [*NAMES]
    for task in json.loads(path.read_bytes()):
        assert config.validate_task({"data": task["data"]})
        for prediction in task["predictions"]:
            assert config.validate_prediction(prediction, return_errors=True) == []
        objects.TaskValue(**task)


def test_label_studio_would_refuse_other_tasks(images, tmp_path):
    """The validator of the test above does look."""
    interface = needed("label_studio_sdk.label_interface", "label-studio-sdk").LabelInterface
    path = export(images, tmp_path / "out", "labelstudio")
    config = interface((tmp_path / "out/labelling-config.xml").read_text(encoding="utf-8"))
    (prediction,) = json.loads(path.read_bytes())[0]["predictions"]
    for key, value in (("rectanglelabels", ["never"]), ("x", 101)):
        wrong = json.loads(json.dumps(prediction))
        wrong["result"][0]["value"][key] = value
        assert config.validate_prediction(wrong, return_errors=True)


def test_cvat_by_datumaro(images, tmp_path):
    cvat = needed("datumaro.plugins.data_formats.cvat.base", "datumaro")
    path = export(images, tmp_path / "out", "cvat", images="copy")
    data = cvat.CvatBase(str(path))
    (labels,) = [labels for labels in data.categories().values() if hasattr(labels, "items")]
    assert [label.name for label in labels.items] == [*NAMES]
    items = {item.id: item for item in data}
    assert len(items) == len(images)
    for number, image in enumerate(images):
        item = items[flat_name(image.id)]
        assert item.attributes["frame"] == number and item.media.size == (SIZE[1], SIZE[0])
        same(
            named_boxes(NAMES, [a.points for a in item.annotations], [a.label for a in item.annotations]),
            image,
            within=0.01,
        )
        got = sorted(float(a.attributes["confidence"]) for a in item.annotations)
        np.testing.assert_allclose(got, sorted(image.found.scores.tolist()), rtol=1e-6)
