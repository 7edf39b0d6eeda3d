"""`melm report`: one file, nothing from outside, all that is known of a run, and plain words for what is not."""

import base64
import hashlib
import io
import json
import re
import shutil

import click
import numpy as np
import pytest
from PIL import Image
from report_pages import OnPage, labelled, write_labels, write_many, write_run

from learners import SMALL, small_config, small_train
from melm.boxes import iou
from melm.commands.learning import learning_config, retrain, train
from melm.commands.reporting import report
from melm.data import Source, read_tags
from melm.detect.detector import load
from melm.detect.labelling import label_images
from melm.detect.labels import Labels
from melm.errors import MelmError, UsageError
from melm.learn.retrain import retrain as learn_students
from melm.learn.students import RetrainConfig
from melm.measure.truth import read_truth
from melm.measure.watching import WhileLearning
from melm.proposals import ProposalSettings
from melm.show.report import write_report
from melm.show.report_commands import reading_words, retrain_command, train_command
from melm.show.report_curves import CHARTS, chart_svg, nice_ticks, series_of
from melm.show.report_facts import spread_over
from melm.show.report_gallery import chosen
from melm.show.report_pictures import thumbnail
from melm.show.score_map import draw_cliques, draw_proposals, draw_score_map, score_map
from writers import Picture, Thing, save_image, write_coco

LIMIT = 15_000_000
HOSTILE = ("<script>alert(1)</script>", "猫 \"x\" & 'y'", "</script><img src=x onerror=alert(2)>")


def run_command(*words):
    """The command as the command line runs it."""
    return report.main([str(word) for word in words], prog_name="melm report", standalone_mode=False)


@pytest.fixture(scope="module")
def whole(learned, small_scenes, tmp_path_factory):
    """A run that was watched and measured, with labels and boxes to measure against: everything a report can show."""
    folder = tmp_path_factory.mktemp("reported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MELM_CACHE", str(learned.cache))
        patch.setattr("melm.measure.watching.available_cores", lambda: 1)  # starting processes takes longer
        source = Source(small_scenes / "train.json")
        images, config = read_tags(source), small_config()
        tagged = [image.id for image in images if image.tags]
        watching = WhileLearning(
            folder / "run", images, images.classes, config, None, read_truth(source), 5, [tagged[0], tagged[3]]
        )
        run = small_train(source, folder / "run", config=config, after_epoch=watching)
        label_images(load(run, device="cpu"), images, run / "labels", workers=1)
        written = write_report(run, None, source, device="cpu")
    return written, OnPage(written.path), run, source


def test_every_part_is_there(whole):
    written, page, run, _ = whole
    assert written.path == run / "report.html" and written.size == written.path.stat().st_size and written.notes == ()
    assert page.balanced
    expected = ["data", "learning", "scores", "images", "looks", "errors", "configuration"]
    assert page.sections() == expected
    assert [a.attributes["href"] for a in page.all("a", inside=None) if a.inside[-1].tag == "li"] == [
        f"#{id}" for id in expected
    ]
    assert len(page.all("svg", "chart")) == len(CHARTS) == 7
    assert not page.all("div", "missing")
    charts = " ".join(svg.attributes["aria-label"] for svg in page.all("svg", "chart"))
    for title in ("Loss", "Global entropy", "Local entropy", "Localization accuracy", "Localization variance"):
        assert f"{title} over 2 epochs" in charts


def test_it_is_one_file_that_asks_for_nothing(whole):
    _, page, _, _ = whole
    for element in page.elements:
        for name in ("src", "srcset", "data", "action", "poster", "xlink:href", "style", "onclick", "onload"):
            value = element.attributes.get(name, "")
            assert not value or (name == "src" and value.startswith("data:image/jpeg;base64,")), (element.tag, name)
        href = element.attributes.get("href", "#")
        assert href.startswith("#")
        assert element.tag not in ("link", "iframe", "object", "embed", "base")
    (policy,) = [m.attributes["content"] for m in page.all("meta") if m.attributes.get("http-equiv")]
    assert policy.startswith("default-src 'none'; img-src data:;") and "unsafe" not in policy
    for kind in ("style", "script"):
        (element,) = page.all(kind)
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    style, script = page.all("style")[0].text, page.all("script")[0].text
    assert "url(" not in style and "@import" not in style
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|import\(|innerHTML|eval\(", script)


def test_boxes_of_the_gallery_are_the_labels(whole):
    """In their order, with their places and confidences; right and wrong by overlap with the true objects."""
    _, page, run, source = whole
    labels, truth = list(Labels(run / "labels")), read_truth(source)
    figures = page.all("figure", "shot")
    assert len(figures) == len(labels) == 13
    rights = 0
    for number, (image, shown) in enumerate(zip(labels, figures, strict=True)):
        assert shown.attributes["id"] == f"image-{number}"
        assert image.id in shown.text and f"doubt {image.doubt:.2f}" in shown.text
        rects = page.all("rect", "box", inside=f"image-{number}")
        assert len(rects) == len(image.found)
        scores = [float(rect.attributes["data-score"]) for rect in rects]
        assert sorted(scores) == scores and scores == pytest.approx(sorted(image.found.scores), abs=1e-5)
        assert sum("best" in rect.attributes["class"] for rect in rects) == len(image.tags)
        true = truth.images[image.id]
        assert len(page.all("rect", "true", inside=f"image-{number}")) == len(true.boxes)
        for rect in rects:
            x, y, w, h = (float(rect.attributes[name]) for name in ("x", "y", "width", "height"))
            name = image.found.names[int(rect.attributes["data-class"])]
            objects = true.boxes[true.classes == truth.classes.index(name)]
            overlap = iou(np.array([[x, y, x + w, y + h]]), objects).max(initial=0.0)
            right = "right" in rect.attributes["class"].split()
            rights += right
            if abs(overlap - 0.5) > 0.02:  # places are rounded
                assert not right or overlap > 0.5
                assert right or overlap < 0.5 or "duplicate" in rect.attributes["data-verdict"]
    assert "CorLoc of the labels" in page.text and rights > 0


def test_closer_looks_show_proposals_cliques_scores_and_how_boxes_moved(whole):
    page = whole[1]
    looks = page.all("article", "look")
    assert 4 <= len(looks) <= 6  # four, and those of the watched ones that are not among them
    assert "the most doubtful" in looks[0].text and any("the least doubtful" in look.text for look in looks)
    strips = page.all("div", "strip")
    assert len(strips) == 4  # two images were watched: the box, and the cliques
    text = page.all("section")[4].text
    for words in (
        "proposals of the highest score",
        "cliques of proposals in colours",
        "Score map",
        "How the box moved",
    ):
        assert words in text
    pictures = page.all("img", inside="looks")
    assert len(pictures) == 3 * len(looks) + len(strips)
    for picture in pictures:
        Image.open(io.BytesIO(base64.b64decode(picture.attributes["src"].partition(",")[2]))).load()
        assert picture.attributes["alt"]


def test_the_same_data_gives_the_same_page(whole, shared_cache, tmp_path):
    written, _, run, source = whole
    again = write_report(run, tmp_path / "new" / "again.html", source, device="cpu")
    assert again.path.read_bytes() == written.path.read_bytes()


def test_the_command_finds_data_and_labels_itself(whole, shared_cache, tmp_path, capsys):
    """run.json tells where the data lies; no option is needed."""
    _, page, run, _ = whole
    assert run_command(run, "--out", tmp_path / "a.html", "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert (
        said
        == f"{tmp_path / 'a.html'}: {(tmp_path / 'a.html').stat().st_size / 1e6:.1f} MB, 13 images in its gallery\n"
    )
    assert OnPage(tmp_path / "a.html").sections() == page.sections()


def test_looking_at_images_that_are_asked_for(whole, shared_cache, tmp_path):
    run = whole[2]
    image = next(image for image in Labels(run / "labels") if image.tags)
    options = ("--out", tmp_path / "a.html", "--device", "cpu")
    run_command(run, *options, "--look-at", image.path.name)
    page = OnPage(tmp_path / "a.html")
    (look,) = page.all("article", "look")
    assert image.id in look.text and "asked for" in look.text
    run_command(run, *options, "--looks", 0)
    assert "looks" not in OnPage(tmp_path / "a.html").sections()
    with pytest.raises(
        UsageError, match=f"--look-at {image.id}x: no labelled or watched image has this id. Did you mean"
    ):
        run_command(run, *options, "--look-at", f"{image.id}x")
    empty = next((image for image in Labels(run / "labels") if not image.tags), None)
    if empty is not None:
        with pytest.raises(UsageError, match="no tag that was learned"):
            run_command(run, *options, "--look-at", empty.id)


def test_a_run_without_labels_says_so(learned, shared_cache, tmp_path, capsys):
    run = shutil.copytree(learned.run, tmp_path / "run")
    assert run_command(run, "--device", "cpu") == 0
    page = OnPage(run / "report.html")
    assert page.sections() == ["data", "learning", "configuration"] and page.balanced
    assert "melm label" in capsys.readouterr().out
    (words, measuring) = [element.text for element in page.all("div", "missing")]
    assert f"melm label {run} " in words and "train-tags.csv" in words
    assert "melm train ... --measure" in measuring
    assert len(page.all("svg", "chart")) == 4


@pytest.mark.parametrize("there", [True, False])
def test_labels_without_boxes_are_drawn_plain(learned, small_scenes, shared_cache, tmp_path, there):
    run = shutil.copytree(learned.run, tmp_path / "run")
    scenes = shutil.copytree(small_scenes, tmp_path / "scenes")
    images = read_tags(Source(scenes / "train-tags.csv"))
    label_images(load(run, device="cpu"), images, run / "labels", workers=1)
    about = json.loads((run / "run.json").read_text())
    about["data"]["path"] = str(scenes / ("train-tags.csv" if there else "gone.csv"))
    (run / "run.json").write_text(json.dumps(about))
    written = write_report(run, looks=1, device="cpu")
    page = OnPage(written.path)
    assert page.sections() == ["data", "learning", "scores", "images", "looks", "configuration"]
    assert not page.all("rect", "true") and not page.all("input", inside="truth")
    assert page.all("rect", "box") and all("plain" in rect.attributes["class"] for rect in page.all("rect", "box"))
    why = "has no boxes to measure against" if there else "is not there. Name data with boxes with --data"
    assert any(why in note for note in written.notes) and why in page.text
    assert "No image was watched" in page.text


def test_images_that_moved(whole, shared_cache, small_scenes, tmp_path):
    """Named with --data, they are found by id; otherwise the boxes stand alone, and why is said."""
    _, _, run, _ = whole
    run = shutil.copytree(run, tmp_path / "run")
    scenes = shutil.copytree(small_scenes, tmp_path / "scenes")
    for path in (run / "labels" / "labels.jsonl", run / "run.json", run / "watched.jsonl"):
        path.write_text(path.read_text().replace(str(small_scenes), "/gone"))
    there = OnPage(write_report(run, None, Source(scenes / "train.json"), device="cpu").path)
    assert len(there.all("img", inside="gallery")) == 13
    written = write_report(run, device="cpu")
    page = OnPage(written.path)
    assert not page.all("img") and len(page.all("figure", "shot")) == 13 and page.all("rect", "box")
    assert any("there is no such file (and 12 more). If the data has moved, name its place" in n for n in written.notes)


def test_refusals(whole, small_scenes, tmp_path):
    _, _, run, _ = whole
    with pytest.raises(MelmError, match=r"no run\.json in it; the folder of a run, which `melm train --out` makes"):
        run_command(tmp_path / "nothing")
    with pytest.raises(MelmError, match="there is no such file; `melm label RUN DATA"):
        run_command(run, "--labels", tmp_path)
    with pytest.raises(UsageError, match="--split says how --data is read, and there is no --data"):
        run_command(run, "--split", "train")
    with pytest.raises(UsageError, match="there is no --file"):
        run_command(run, "--file-boxes", "xyxy")
    with pytest.raises(MelmError, match="none of the labelled images is in it"):
        write_coco(tmp_path / "other", [Picture("elsewhere.png", (Thing("cat"),))])
        run_command(run, "--data", tmp_path / "other")
    other = shutil.copytree(run, tmp_path / "run")
    settings = other / "labels" / "labels.settings.json"
    settings.write_text(settings.read_text().replace('"data_digest": "', '"data_digest": "0'))
    with pytest.raises(MelmError, match="labels of another run than"):
        run_command(other)
    (tmp_path / "file").write_text("")
    with pytest.raises(MelmError, match=r"cannot be written .* Name another file with --out"):
        run_command(run, "--out", tmp_path / "file" / "x.html", "--looks", 0)


def test_names_stay_names(tmp_path):
    """Whatever a class, an id or a file is called, it is text on the page; a name that is not UTF-8 too."""
    photo = save_image(tmp_path / "a.png", (160, 120))
    boxes = [(name, 0.5 + 0.1 * i, 10, 10, 60 + i, 80) for i, name in enumerate(HOSTILE)]
    ids = ["</script><b>", 'a" onload="x', "名 'x'", "b\udcff\n"]
    images = [labelled(id, photo, HOSTILE, boxes[: 1 + i % 3]) for i, id in enumerate(ids)]
    run = write_run(tmp_path / "<i>run", HOSTILE, data="<u>'data\"")
    write_labels(run / "labels", HOSTILE, images)
    page = OnPage(write_report(run).path)
    assert page.balanced and page.sections() == ["data", "learning", "scores", "images", "configuration"]
    assert (
        len(page.all("script")) == 1
        and not page.all("b", inside="gallery")[4:]
        and not page.all("i")
        and not page.all("u")
    )
    assert not [e for e in page.elements if any(name.startswith("on") for name in e.attributes)]
    options = [option.text for option in page.all("option")]
    assert options == ["all", *HOSTILE]
    captions = [b.text for b in page.all("b", inside="gallery")]
    assert sorted(captions) == sorted(["</script><b>", 'a" onload="x', "名 'x'", "b\\udcff\n"])
    labels = [button.attributes["aria-label"] for button in page.all("button", inside="gallery")]
    assert any(HOSTILE[0] in label and HOSTILE[1] in label for label in labels)
    assert "This run is not finished" in page.text


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """350 labelled images of pure noise, the hardest to make small."""
    run, images = write_many(tmp_path_factory.mktemp("many"), 350)
    return write_report(run), images


def test_many_images_are_the_most_doubtful_and_some_at_random(many):
    written, images = many
    page = OnPage(written.path)
    shown = page.all("figure", "shot")
    assert written.images == len(shown) == 300
    doubt = {image.id: image.doubt for image in images}
    ids = [re.search(r"n\d{3}", figure.text).group() for figure in shown]
    assert len(set(ids)) == 300
    by_doubt = sorted(doubt, key=lambda id: -doubt[id])
    assert ids[:200] == by_doubt[:200]
    assert all("drawn at random" in figure.text for figure in shown[200:])
    assert not any("drawn at random" in figure.text for figure in shown[:200])
    assert "The 200 most doubtful of 350 labelled images" in page.text and "100 of the others" in page.text


def test_many_images_stay_below_15_megabytes(many):
    written, _ = many
    assert written.path.stat().st_size == written.size < LIMIT
    pictures = [img.attributes["src"] for img in OnPage(written.path).all("img", inside="gallery")]
    assert len(pictures) == 300
    sizes = {Image.open(io.BytesIO(base64.b64decode(p.partition(",")[2]))).size for p in pictures[:9]}
    assert min(max(size) for size in sizes) >= 190  # small, and still pictures


@pytest.mark.parametrize(
    ("count", "first", "drawn"), [(0, 0, 0), (1, 1, 0), (300, 300, 0), (301, 200, 100), (9000, 200, 100)]
)
def test_what_is_chosen_of_so_many(count, first, drawn):
    doubtful, at_random = chosen(count)
    assert doubtful == list(range(first)) and len(at_random) == len(set(at_random)) == drawn
    assert all(first <= place < count for place in at_random) and at_random == sorted(at_random)
    assert chosen(count) == (doubtful, at_random)


def test_spread_over():
    assert spread_over([3, 5, 6, 8, 9, 20, 21], 4) == [3, 6, 9, 21]
    assert spread_over([7], 4) == [7] and spread_over([], 4) == [] and spread_over([1, 2], 0) == []


@pytest.mark.parametrize("room", [200, 3000, 20_000, 10**6])
def test_a_thumbnail_fits_its_room(room):
    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    data = thumbnail(image, room)
    assert len(data) <= room or room < 2500
    size = Image.open(io.BytesIO(data)).size
    assert size[0] <= 640 and size[0] / size[1] == pytest.approx(4 / 3, abs=0.03)


# The commands that do it again.


def config_of(words):
    """The configuration that a command line learns with."""
    assert words[:2] == ("melm", "train")
    options = train.make_context("train", list(words[2:])).params
    changes = {name: options.pop(name) for name in ("epochs", "learning_rate", "accumulate", "seed")}
    changes = {name: value for name, value in changes.items() if value is not None}
    if "epochs" in changes:
        changes["drop_after"] = max(1, changes["epochs"] * 3 // 4)
    return learning_config(options, changes)[0]


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("MELM", {}),
        ("MELM", {**SMALL}),
        ("OICR", {"epochs": 8, "drop_after": 6, "seed": 7}),
        ("MELM", {"epochs": 8, "drop_after": 2, "learning_rate": 3e-4, "weights": "123", "scales": (64, 96)}),
        ("WSDDN", {"surround": False, "contrast_weight": 0.0, "proposals": ProposalSettings("selective-search")}),
        ("PCL", {"proposals": ProposalSettings("selective-search", max_boxes=77), "weights": 'a file\'s "name".pth'}),
        ("L2+ARL", {"proposals": ProposalSettings("edge-boxes", max_boxes=77), "weighted": False, "flips": True}),
    ],
)
def test_the_command_learns_with_the_same_settings(method, changes):
    config = small_config(method) if changes == {} else small_config(method, **changes)
    command = train_command(config, {}, ["my photos/", "--split", "train"], "out")
    assert config_of(command.words) == config and command.unknown == ()
    assert "--split train" in command.line and "'my photos/'" in command.line


def test_the_command_says_what_only_its_user_knows():
    boxes = ProposalSettings("file", max_boxes=50, file_digest="d1", file_boxes="xyxy1")
    config = small_config(proposals=boxes)
    command = train_command(config, {"basis": "12", "left_out": ["x"], "processes": 2}, ["data"], "out")
    assert command.words[:6] == ("torchrun", "--nproc-per-node", "2", "-m", "melm", "train")
    assert "--skip-bad" in command.words and "--file-boxes" in command.words
    assert command.unknown == ("FILE: its boxes (digest d1)", "EARLIER-RUN: the run whose basis was used")
    strange = train_command(small_config(proposals=ProposalSettings("edge-boxes", min_side=3)), {}, ["data"], "out")
    assert strange.unknown == ("min_side = 3.0 of the proposals, in Python",)


@pytest.mark.parametrize(
    "changes", [{}, {"epochs": 5}, {"folds": 3, "scales": (96,), "drop_after": 1, "seed": 2, "weigh": False}]
)
def test_the_command_retrains_with_the_same_settings(changes):
    config = RetrainConfig().with_(**changes)
    about = {"retrained": config.as_dict(), "config": small_config().as_dict()}
    command = retrain_command(about, "first", ["data"], "out")
    assert command.unknown == ()
    words = command.words
    options = retrain.make_context("retrain", list(words[2:])).params
    given = {name: options[name] for name in ("epochs", "folds", "seed") if options[name] is not None}
    for text in options["changes"]:
        name, _, value = text.partition("=")
        value = json.loads(value)
        given[name] = tuple(value) if isinstance(value, list) else value
    assert RetrainConfig().with_(**given) == config


def test_the_command_that_retrains_says_what_only_its_user_knows():
    boxes = ProposalSettings("file", max_boxes=50, file_digest="d1", file_boxes="xyxy1")
    about = {"retrained": RetrainConfig().as_dict(), "config": small_config(proposals=boxes).as_dict()}
    about |= {"teaches_along": ["d2", "d3"], "left_out": ["x"], "processes": 2}
    command = retrain_command(about, "first", ["data"], "out")
    assert command.words[:6] == ("torchrun", "--nproc-per-node", "2", "-m", "melm", "retrain")
    options = retrain.make_context("retrain", list(command.words[6:])).params
    assert [path.name for path in options["others"]] == ["OTHER-1", "OTHER-2"] and options["skip_bad"]
    assert (options["file"].name, options["file_boxes"]) == ("FILE", "xyxy1")
    along = tuple(f"OTHER-{n}: a run that taught along" for n in (1, 2))
    assert command.unknown == (*along, "FILE: its boxes (digest d1)")


def test_the_options_that_read_the_data():
    source = Source("x", "voc", "train", "pictures", ("a b", "c"), None, 30)
    words = reading_words(source)
    command = click.Command("x", params=[p for p in report.params if isinstance(p, click.Option)])
    options = command.make_context("x", words).params
    assert {k: options[k] for k in ("format", "split", "classes", "limit")} == {
        "format": "voc",
        "split": "train",
        "classes": "a b,c",
        "limit": 30,
    }


# Retrained runs.


def test_a_retrained_run_and_its_teacher(whole, shared_cache, tmp_path):
    """The run beside it that taught it gives the entropies; another run there does not."""
    _, _, run, source = whole
    first = shutil.copytree(run, tmp_path / "run-first")
    config = RetrainConfig(scales=(96, 128), hidden=16, positives=4, negatives=6, epochs=1, drop_after=1, accumulate=4)
    again = learn_students(first, source, tmp_path / "run", config, device="cpu", workers=1)
    page = OnPage(write_report(again, looks=1, device="cpu").path)
    titles = [svg.attributes["aria-label"].partition(" over")[0] for svg in page.all("svg", "chart")]
    assert titles.count("Loss") == 2 and "Global entropy" in titles and "Localization accuracy" in titles
    assert page.all("div", "strip")  # what the teacher watched
    code = [element.text for element in page.all("code", inside="configuration")]
    assert code[0].startswith("melm train") and code[1].startswith(f"melm retrain {first}")
    shutil.move(first, tmp_path / "elsewhere")
    page = OnPage(write_report(again, looks=0, device="cpu").path)
    assert "Name it with --teacher" in page.text and len(page.all("svg", "chart")) == 1
    page = OnPage(write_report(again, looks=0, teacher=tmp_path / "elsewhere", device="cpu").path)
    assert len(page.all("svg", "chart")) == 8
    with pytest.raises(MelmError, match="not the run that taught"):
        write_report(again, looks=0, teacher=again, device="cpu")


# Curves.


def record(epoch, **figures):
    return {"epoch": epoch, "mean": figures}


def test_series_of_a_log():
    loss = CHARTS[0]
    epochs = [record(0, loss=3, discovery=2, localization=1), record(0, loss=4, discovery=2, localization=1)]
    epochs += [record(1, loss=float("nan"), discovery=1, localization=0), record(2, discovery=1)]
    series = {one.name: one.points for one in series_of(loss, epochs, [])}
    assert series == {"all": [(1, 4)], "discovery": [(1, 2), (2, 1), (3, 1)], "localization": [(1, 1), (2, 0)]}
    alone = series_of(loss, [record(0, loss=3, discovery=3, localization=0)], [])
    assert [one.name for one in alone] == ["all"]  # one part is all of it
    assert series_of(loss, [], []) == [] and series_of(CHARTS[4], epochs, []) == []


def test_steps_are_between_the_epochs_they_belong_to():
    steps = [{"epoch": epoch, "step": step, "loss": 1.0} for epoch in range(2) for step in range(500)]
    (one,) = series_of(CHARTS[0], [record(0, loss=1), record(1, loss=1)], steps)
    places = [x for x, _ in one.steps]
    assert len(places) <= 160 and places == sorted(places) and 0 < places[0] < 0.02 and 1.98 < places[-1] < 2
    assert [x for x, _ in one.drawn()] == [0.5, 1.5] and [x for x, _ in one.points] == [1, 2]


@pytest.mark.parametrize("values", [[0.5], [2, 2], [1e-9, 3e-9], [-3, 5], [0.001, 1e6]])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_lines_stay_in_the_picture(values, logarithmic):
    epochs = [record(i, loss=value) for i, value in enumerate(values)]
    svg = chart_svg("<Loss>", series_of(CHARTS[0], epochs, []), logarithmic)
    assert "&lt;Loss&gt;" in svg and "nan" not in svg
    numbers = re.findall(r'c([xy])="([-\d.]+)"', svg)
    assert len(numbers) == 2 * len([v for v in values if v > 0 or not logarithmic])
    for axis, number in numbers:
        assert 0 <= float(number) <= (360 if axis == "x" else 210)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.03), (-2, 7), (0, 6), (0.2, 0.2), (0, 123456), (5, 5)])
def test_ticks_are_few_and_around(low, high):
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 8 and ticks == sorted(set(ticks)) and ticks[0] <= low and ticks[-1] >= high
    whole = nice_ticks(low, high, whole=True)
    assert all(tick == round(tick) for tick in whole)


# Drawings.


def test_a_score_map_by_hand():
    boxes = np.array([[0, 0, 4, 2], [2, 0, 6, 4], [-5, -5, 1, 1], [3, 3, 3, 3]])
    result = score_map(boxes, np.array([1.0, 3.0, 0.5, 9.0]), 6, 4)
    assert result.shape == (4, 6)
    by_hand = np.zeros((4, 6))
    by_hand[0:2, 0:4] += 1
    by_hand[0:4, 2:6] += 3
    by_hand[0, 0] += 0.5
    np.testing.assert_allclose(result, by_hand / 4)
    assert not score_map(boxes, np.zeros(4), 6, 4).any() and not score_map(np.zeros((0, 4)), np.zeros(0), 6, 4).any()
    with pytest.raises(ValueError, match=r"\(N,\)"):
        score_map(boxes, np.zeros(3), 6, 4)


def test_drawings_of_what_is_believed():
    grey = np.full((100, 200, 3), 90, np.uint8)
    boxes = np.array([[20, 20, 80, 80], [100, 10, 190, 60.0]])
    drawn = draw_proposals(grey, boxes, np.array([[30, 30, 90, 90.0]]), side=200)
    assert drawn.shape == grey.shape
    assert drawn[50, 20].tolist() == [255, 255, 255] and drawn[30, 100].tolist() == [64, 128, 255]
    assert drawn[89, 60].tolist() == [255, 220, 0] and drawn[95, 195].tolist() == [90, 90, 90]
    cliques = draw_cliques(grey, [boxes[:1], boxes[1:]], side=200)
    assert cliques[50, 22].tolist() == [255, 51, 85] and cliques[30, 100].tolist() == [51, 204, 85]
    assert cliques[30, 101].tolist() == [90, 90, 90]  # thin, but for the discovered one
    heat = draw_score_map(grey, boxes, np.array([1.0, 0.0]), side=100)
    assert heat.shape == (50, 100, 3) and heat[25, 25].astype(int).sum() > heat[45, 90].astype(int).sum() + 100
    with pytest.raises(ValueError, match="uint8"):
        draw_cliques(grey[..., 0], [], side=50)
