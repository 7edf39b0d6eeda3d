"""All measures under one roof: what `melm evaluate` says of runs and of other tools' results."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from measure_scenes import NAMES, found, objects, of_truth

import melm
from learners import log_of, small_arguments, weights_of
from melm.data import Source, read_tags
from melm.data.images import read_image
from melm.data.records import TaggedImage, TaggedImages
from melm.detect.detector import DetectSettings, load
from melm.detect.run import Looking
from melm.errors import MelmError
from melm.measure.average_precision import average_precision
from melm.measure.corloc import chance_of, corloc
from melm.measure.error_analysis import analyse_errors
from melm.measure.evaluation import Subject, by_seed, comparisons, evaluate
from melm.measure.of_run import SeenStore, look_at
from melm.measure.subjects import names_for
from melm.measure.truth import Truth, read_truth
from melm.proposals import ProposalSettings, ProposalStore, make_proposals
from melm.show.drawings import TRUE, WRONG
from melm.show.evaluation_report import Report, escaped

TRUTH = Truth(
    NAMES,
    {
        "a": objects([[0, 0, 100, 100], [200, 200, 300, 300]], [0, 1]),
        "b": objects([[0, 0, 100, 100]], [0]),
        "c": objects([[50, 50, 150, 150]], [2]),
    },
)


def tagged(truth, root):
    images = tuple(
        TaggedImage(id, root / f"{id}.jpg", tuple(sorted({truth.classes[k] for k in true.classes})))
        for id, true in truth.images.items()
    )
    return TaggedImages(root, truth.classes, images)


@pytest.fixture
def images(tmp_path):
    return tagged(TRUTH, tmp_path)


def test_the_truth_itself_is_perfect(images):
    result = evaluate(Subject("truth", of_truth(TRUTH)), TRUTH, images)
    assert list(result.summary().values()) == pytest.approx([1] * 9)
    assert result.best_boxes.shares()["correct"] == result.top_boxes.shares()["correct"] == 1
    assert result.top_boxes.missed.sum() == 0


def test_figures_are_those_of_the_measures(images):
    detections = {
        "a": found([("cat", 0.9, 0, 0, 100, 100), ("dog", 0.3, 0, 0, 50, 50)]),
        "b": found([("cat", 0.8, 60, 60, 200, 200), ("cow", 0.7, 0, 0, 100, 100)]),
    }
    result = evaluate(Subject("hand", detections), TRUTH, images)
    summary = result.summary()
    assert summary["mAP VOC07"] == average_precision(TRUTH, detections).mean
    assert summary["CorLoc"] == corloc(TRUTH, detections, {image.id: image.tags for image in images}).mean
    assert summary["CorLoc"] == pytest.approx((0.5 + 0 + 0) / 3)
    kinds = result.best_boxes.shares()
    assert kinds["correct"] == pytest.approx(1 / 3) and kinds["part"] == pytest.approx(0)
    assert result.as_dict()["classification"]["scores"] == "best detection"
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False)) == result.as_dict()


def test_an_image_whose_boxes_cannot_be_placed_is_left_out(images):
    less = Truth(NAMES, {id: true for id, true in TRUTH.images.items() if id != "b"}, left_out={"b": Path("b.jpg")})
    result = evaluate(Subject("truth", of_truth(TRUTH)), less, images)
    assert result.corloc.images() == {"cat": 1, "dog": 1, "cow": 1}
    assert result.summary()["CorLoc"] == 1


def test_nothing_detected_is_measured_as_nothing(images):
    summary = evaluate(Subject("none", {}), TRUTH, images).summary()
    assert summary["CorLoc"] == summary["mAP VOC07"] == summary["AP"] == summary["pointing"] == 0


def test_what_nobody_named_has_no_rank(images):
    result = evaluate(Subject("one", {"b": found([("cat", 0.9, 0, 0, 1, 1)])}), TRUTH, images)
    assert result.classification.ap.tolist() == [0.5, 0, 0]
    assert evaluate(Subject("none", {}), TRUTH, images, threshold=-1).classification.figures()["P-O"] == 0


def test_detections_of_unknown_images_are_refused(images):
    with pytest.raises(MelmError, match="typo"):
        evaluate(Subject("hand", {"typo": found([("cat", 0.9, 0, 0, 1, 1)])}), TRUTH, images)


def test_some_classes_of_a_truth_and_of_detections():
    less = TRUTH.only(("cow", "cat"))
    assert less.images["a"].classes.tolist() == [1] and less.images["c"].classes.tolist() == [0]
    some = found([("cat", 0.9, 0, 0, 1, 1), ("dog", 0.8, 0, 0, 2, 2), ("cow", 0.7, 0, 0, 3, 3)]).only(
        ("cow", "cat", "x")
    )
    assert some.class_names() == ["cat", "cow"] and some.names == ("cow", "cat", "x")


def test_as_many_detections_as_objects_are_looked_at():
    detections = {
        "a": found([("cat", 0.9, 0, 0, 100, 100), ("cat", 0.8, 400, 400, 450, 450), ("cat", 0.7, 0, 0, 99, 99)]),
        "b": found([("cow", 0.9, 0, 0, 100, 100)]),
    }
    analysis = analyse_errors(TRUTH, detections, as_many_as_objects=True)
    assert analysis.rows()[0] | {"correct": 1, "background": 1, "duplicate": 0, "missed": 1} == analysis.rows()[0]
    assert analysis.rows()[2]["wrong class"] == 1
    assert len(analysis.kind) == 3


def test_detections_of_difficult_objects_are_none_of_the_many():
    truth = Truth(NAMES, {"a": objects([[0, 0, 50, 50], [100, 100, 200, 200]], [0, 0], difficult=[True, False])})
    detections = {
        "a": found([("cat", 0.9, 0, 0, 50, 50), ("cat", 0.8, 100, 100, 200, 200), ("cat", 0.7, 9, 9, 19, 19)])
    }
    analysis = analyse_errors(truth, detections, as_many_as_objects=True)
    assert analysis.gathered.scores.tolist() == [pytest.approx(0.8)] and analysis.missed.sum() == 0


def test_runs_of_other_seeds_are_gathered_and_others_are_not(images):
    def run(name, alike, seed):
        return evaluate(Subject(name, of_truth(TRUTH), alike=alike, seeds=(seed,), method="MELM"), TRUTH, images)

    groups = by_seed([run("one", "x", 0), run("two", "x", 1), run("three", "y", 0), run("file", None, None)])
    assert not by_seed([run("one", "x", 0), run("copy", "x", 0)])
    assert list(groups) == ["MELM (one, two)"]
    assert groups["MELM (one, two)"]["CorLoc"].mean == 1 and groups["MELM (one, two)"]["CorLoc"].std == 0


def test_two_subjects_are_compared_by_the_paired_bootstrap(images):
    pair = [evaluate(Subject(n, d), TRUTH, images) for n, d in (("truth", of_truth(TRUTH)), ("none", {}))]
    (result,) = comparisons(pair, TRUTH, resamples=50)
    assert result.measures["CorLoc"].difference == result.measures["mAP VOC07"].difference == -1
    small = [evaluation.sample(TRUTH, 50).small() for evaluation in pair]
    assert not any(evaluation.subject.detections for evaluation in small)
    (again,) = comparisons(small, TRUTH, resamples=50)
    assert again.as_dict() == result.as_dict()
    assert json.dumps([e.as_dict() for e in small]) == json.dumps([e.as_dict() for e in pair])
    assert result.as_dict()["measures"]["CorLoc"]["interval_95"] == [-1, -1]
    text = Report("title", pair, {}, [result]).text()
    assert "none less truth is -100.0" in text and "could be chance" not in text


@pytest.mark.parametrize("style", ["markdown", "latex", "csv", "text"])
def test_tables_hold_the_same_figures(images, style):
    detections = {"a": found([("cat", 0.9, 0, 0, 100, 100)])}
    pair = [evaluate(Subject(n, d), TRUTH, images) for n, d in (("all_of it", of_truth(TRUTH)), ("50%", detections))]
    text = getattr(Report("a & b", pair, by_seed(pair), comparisons(pair, TRUTH, 20)), style)()
    if style == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["class"] for row in rows] == [*NAMES, "mean"] * 2
        assert float(rows[4]["CorLoc"]) == 0.5 and float(rows[-1]["CorLoc"]) == pytest.approx(0.5 / 3)
        assert float(rows[4]["AP voc07"]) == pytest.approx(6 / 11)
    else:
        assert "16.7" in text and "100.0" in text
    if style == "latex":
        assert r"all\_of it" in text and r"50\%" in text and r"a \& b" in text and text.count(r"\toprule") == 3
    if style == "markdown":
        assert all(line.count("|") == text.splitlines()[2].count("|") for line in text.splitlines()[2:6])


def test_latex_escapes_what_is_not_text():
    assert escaped("a_b\\c{~}") == r"a\_b\textbackslash{}c\{\textasciitilde{}\}"


def test_names_are_short_unless_two_would_be_the_same(tmp_path):
    for name in ("x/run", "y/run", "z/other"):
        (tmp_path / name).mkdir(parents=True)
    paths = [tmp_path / name for name in ("x/run", "y/run", "z/other")]
    assert list(names_for(paths).values()) == [str(paths[0]), str(paths[1]), "other"]


def test_chance_is_the_share_of_boxes_that_hit():
    boxes = {"a": np.array([[0, 0, 100, 100], [0, 0, 90, 100], [200, 200, 300, 290], [0, 0, 10, 10]]), "c": None}
    chances = chance_of(TRUTH, {"a": ("cat", "dog"), "b": ("cat",), "c": ("cow",)}, lambda id: boxes.get(id))
    assert chances["cat"] == 0.5 and chances["dog"] == 0.25 and np.isnan(chances["cow"])


def looking(run):
    return Looking(load(run, DetectSettings(max_boxes=0), "cpu"), keep=True)


def test_what_was_seen_is_kept_and_the_same(learned, small_scenes, shared_cache, tmp_path):
    run = shutil.copytree(learned.run, tmp_path / "run")
    source = Source(small_scenes / "test.json")
    images, truth, look = read_tags(source), read_truth(source), looking(run)
    keys = [str(done.key) for done in make_proposals(images, look.proposals, 1)]
    store = SeenStore(run, look, truth)
    assert store.prepare()
    first = look_at(look, images, keys, truth, store=store)
    count = len(list(store.folder.glob("*.npz")))
    assert count == len(images)
    (damaged := next(store.folder.glob("*.npz"))).write_bytes(b"PK damaged")
    again = look_at(looking(run), images, keys, truth, store=store)
    plain = look_at(look, images, keys, truth)
    assert damaged.stat().st_size > 100  # made anew
    for seen in (again, plain):
        assert seen.accuracies == first.accuracies and seen.variances == first.variances
        assert np.array_equal(seen.image_scores, first.image_scores)
        for id, expected in first.detections.items():
            assert np.array_equal(seen.detections[id].boxes, expected.boxes)
            assert np.array_equal(seen.detections[id].scores, expected.scores)
            assert np.array_equal(seen.detections[id].classes, expected.classes)


def test_other_true_boxes_are_looked_at_anew(learned, small_scenes, shared_cache):
    truth = read_truth(Source(small_scenes / "test.json"))
    id, true = next((id, true) for id, true in truth.images.items() if len(true.boxes))
    moved = {**truth.images, id: type(true)(id, true.boxes + 1, true.classes, true.difficult, true.crowd)}
    look = looking(learned.run)
    folders = [SeenStore(learned.run, look, t).folder for t in (truth, truth, Truth(truth.classes, moved))]
    assert folders[0] == folders[1] != folders[2]


def test_evaluate_command_on_a_run(learned, small_scenes, shared_cache, command, tmp_path):
    run = shutil.copytree(learned.run, tmp_path / "birds")
    said = command("evaluate", run, "--data", small_scenes / "train.json", "--json", "--device", "cpu", "--workers", 1)
    assert said.returncode == 0, said.stderr
    (figures,) = json.loads(said.stdout)["evaluations"]
    of_api = melm.evaluate(run, small_scenes / "train.json", device="cpu")
    assert figures == of_api.as_dict()
    assert figures["name"] == "birds" and figures["method"] == "MELM" and len(figures["epochs"]) == 2
    assert 0 < figures["randomness"]["localization_accuracy"] < 1
    assert {"global_entropy", "gradient_localization"} <= figures["randomness"].keys()
    assert figures["classification"]["scores"].startswith("sum of discovery")
    text = command("evaluate", run, "--data", small_scenes / "train.json", "--device", "cpu", "--workers", 1).stdout
    assert f"CorLoc {100 * of_api.corloc.mean:.1f}" in text and "localization accuracy" in text


def test_a_run_and_a_file_are_compared_and_drawn(learned, small_scenes, shared_cache, command, tmp_path):
    out = tmp_path / "found"
    data = ("--data", small_scenes / "test.json", "--device", "cpu", "--workers", 1)
    found = command("detect", learned.run, small_scenes / "test.json", "--out", out, "--to", "coco", "--max-boxes", 0)
    assert found.returncode == 0, found.stderr
    run = shutil.copytree(learned.run, tmp_path / "run")
    file = out / "detections.coco.json"
    plots = tmp_path / "plots"
    said = command("evaluate", run, "--detections", file, "--draws", 20, "--plots", plots, "--json", *data)
    assert said.returncode == 0, said.stderr
    of_run, of_file = json.loads(said.stdout)["evaluations"]
    for name in ("CorLoc", "mAP VOC07", "AP", "pointing"):
        assert of_run["summary"][name] == pytest.approx(of_file["summary"][name], abs=1e-6)
    assert {p.name for p in plots.rglob("*.png")} == {
        "precision-recall.png",
        "learning.png",
        "errors.png",
        "confusion.png",
    }
    sheets = [read_image(path) for path in plots.rglob("examples.jpg")]
    assert len(sheets) == 2 and (sheets[0] == sheets[1]).mean() > 0.99  # the file holds what the run says
    for colour in (WRONG, TRUE):
        assert (np.abs(sheets[0].astype(int) - colour).max(axis=2) < 60).any()


def test_some_classes_and_a_bad_image(learned, own_scenes, copied_cache, command, tmp_path):
    run = shutil.copytree(learned.run, tmp_path / "run")
    data = ("--data", own_scenes / "test.json", "--device", "cpu", "--workers", 1)
    names = list(read_truth(Source(own_scenes / "test.json")).classes)
    first = next(n for n in names if any(n in image.tags for image in read_tags(Source(own_scenes / "test.json"))))
    whole, some = (
        json.loads(command("evaluate", run, *data, "--json", *more).stdout)["evaluations"][0]
        for more in ((), ("--classes", first))
    )
    assert some["detection"]["voc07"]["classes"] == {first: whole["detection"]["voc07"]["classes"][first]}
    assert some["corloc"]["classes"] == {first: whole["corloc"]["classes"][first]}
    photo = next((own_scenes / "test").glob("*.jpg"))
    photo.write_bytes(photo.read_bytes()[:-400])
    stopped = command("evaluate", run, *data)
    assert stopped.returncode == 1 and photo.name in stopped.stderr and "--skip-bad" in stopped.stderr
    skipped = command("evaluate", run, *data, "--skip-bad", "--json")
    assert skipped.returncode == 0 and photo.name in skipped.stderr
    assert json.loads(skipped.stdout)["left_out"] == [f"test/{photo.stem}"]


def test_what_cannot_be_measured_is_said(learned, small_scenes, shared_cache, command, tmp_path):
    nothing = command("evaluate", "--data", small_scenes / "test.json")
    assert nothing.returncode == 2 and "--detections" in nothing.stderr
    no_boxes = command("evaluate", learned.run, "--data", small_scenes / "test-tags.csv")
    assert no_boxes.returncode == 1 and "no boxes" in no_boxes.stderr
    file = command("evaluate", small_scenes / "test.json", "--data", small_scenes / "test.json")
    assert file.returncode == 2 and "--detections" in file.stderr
    twice = command("evaluate", learned.run, learned.run, "--data", small_scenes / "test.json")
    assert twice.returncode == 2 and "twice" in twice.stderr
    not_a_number = command("evaluate", learned.run, "--data", small_scenes / "test.json", "--tolerance", "nan")
    assert not_a_number.returncode == 2 and "--tolerance" in not_a_number.stderr
    (tmp_path / "results.json").write_text(
        '[{"image_id": "nowhere", "category_id": "x", "bbox": [0,0,1,1], "score": 1}]'
    )
    unknown = command("evaluate", "--detections", tmp_path / "results.json", "--data", small_scenes / "test.json")
    assert unknown.returncode == 1 and "nowhere" in unknown.stderr and "Traceback" not in unknown.stderr


def test_measuring_while_learning_changes_nothing_but_the_log(own_scenes, command, tmp_path):
    source = own_scenes / "train.json"
    watched = [image.id for image in read_tags(Source(source)) if image.tags][:2]
    arguments = small_arguments(source, tmp_path / "measured")
    said = command(*arguments, "--measure", "--measure-images", 5, "--watch", watched[0], "--watch", watched[1])
    assert said.returncode == 0, said.stderr
    plain = command(*small_arguments(source, tmp_path / "plain"))
    assert plain.returncode == 0, plain.stderr
    assert weights_of(tmp_path / "measured") == weights_of(tmp_path / "plain")
    epochs = [record for record in log_of(tmp_path / "measured") if "mean" in record]
    assert all(0 < e["measured"]["localization_accuracy"] < 1 and 0 <= e["measured"]["corloc"] <= 1 for e in epochs)
    without = [{k: v for k, v in record.items() if k != "measured"} for record in log_of(tmp_path / "measured")]
    assert without == log_of(tmp_path / "plain")
    drawn = command(
        "evaluate", tmp_path / "measured", "--data", source, "--plots", tmp_path / "plots", "--device", "cpu"
    )
    assert drawn.returncode == 0, drawn.stderr
    assert len(list((tmp_path / "plots").glob("evolution-*.jpg"))) >= 2
    assert len(list((tmp_path / "plots").glob("cliques-*.jpg"))) >= 2


def test_watching_needs_an_image_of_the_data(own_scenes, command, tmp_path):
    said = command(*small_arguments(own_scenes / "train.json", tmp_path / "run"), "--watch", "nowhere")
    assert said.returncode == 2 and "nowhere" in said.stderr and not (tmp_path / "run").exists()


def test_random_boxes_reach_chance(voc2007, tmp_path):
    source = Source(voc2007, split="val")
    truth = read_truth(source)
    few = Truth(truth.classes, dict(list(truth.images.items())[:60]))
    images = [image for image in read_tags(source) if image.id in few.images]
    store = ProposalStore(ProposalSettings("edge-boxes", max_boxes=200))
    boxes = {d.id: store.get(d.key).boxes for d in make_proposals(images, store, 2)}
    tags = {image.id: image.tags for image in images}
    chances = chance_of(few, tags, boxes.get)
    random, draws = np.random.default_rng(0), []
    for _ in range(200):
        drawn = {
            image.id: found(
                [(t, 1.0, *boxes[image.id][random.integers(len(boxes[image.id]))]) for t in image.tags], truth.classes
            )
            for image in images
        }
        draws.append(corloc(few, drawn, tags).mean)
    assert np.mean(draws) == pytest.approx(np.nanmean(list(chances.values())), abs=0.02)
