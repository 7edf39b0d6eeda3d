"""Several runs that speak together: proposal by proposal where they share them, box by box where they do not."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import melm
from learners import BOXES, small_train
from melm.boxes import iou
from melm.data.images import read_image
from melm.detect.detections import Detections
from melm.detect.detector import DetectSettings, load
from melm.detect.ensemble import Ensemble, fused, grouped, together
from melm.detect.results import read_results
from melm.errors import UsageError
from melm.proposals import Proposals, ProposalSettings, compute_proposals

NAMES = ("a", "b")


@pytest.fixture(scope="module")
def runs(learned, small_scenes, tmp_path_factory):
    """Two seeds on the same proposals, and one on others."""
    folder = tmp_path_factory.mktemp("several")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MELM_CACHE", str(learned.cache))
        seed = small_train(small_scenes / "train-tags.csv", folder / "seed", seed=3)
        boxes = ProposalSettings("edge-boxes", max_boxes=40)
        other = small_train(small_scenes / "train-tags.csv", folder / "other", proposals=boxes)
        return [learned.run, seed, other]


def test_groups():
    assert grouped(["x", "y", "x", "z", "y"]) == [[0, 2], [1, 4], [3]]


def test_proposal_by_proposal_by_hand():
    scores = [np.array([[0.4, 0.1]], np.float32), np.array([[0.1, 0.4]], np.float32)]
    found = [
        Proposals(np.array([box], np.float32), *np.zeros((2, 1), np.float32), 20, 20)
        for box in ([0, 0, 8, 8], [2, 0, 10, 8])
    ]
    both, placed = together(list(zip(scores, found, strict=True)), [True, True])
    np.testing.assert_allclose(both, [[0.2, 0.2]], rtol=1e-6)  # the root of 0.04
    assert placed.boxes.tolist() == [[1, 0, 9, 8]]
    assert together(list(zip(scores, found, strict=True)), [False, True])[1].boxes.tolist() == [[2, 0, 10, 8]]
    # a run that is ten times surer of everything changes no ranks
    more, _ = together([(scores[0] * 10, found[0]), (scores[1], found[1])], [True, True])
    np.testing.assert_allclose(more, both * np.sqrt(10), rtol=1e-5)


def found_of(rows):
    boxes, scores, classes = ([row[n] for row in rows] for n in range(3))
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.array(classes, np.intp),
        NAMES,
        100,
        100,
    )


def test_box_by_box_by_hand():
    one = found_of([([0, 0, 10, 10], 0.8, 0), ([50, 50, 60, 60], 0.4, 0), ([0, 0, 10, 10], 0.2, 1)])
    two = found_of([([0, 0, 10, 8], 0.4, 0), ([80, 0, 90, 10], 0.6, 0)])
    result = fused([one, two], [1, 1], 2)
    assert result.classes.tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(result.scores, [0.6, 0.3, 0.2, 0.1], rtol=1e-6)
    np.testing.assert_allclose(result.boxes[0], [0, 0, 10, (0.8 * 10 + 0.4 * 8) / 1.2], rtol=1e-6)
    np.testing.assert_allclose(result.boxes[1:], [[80, 0, 90, 10], [50, 50, 60, 60], [0, 0, 10, 10]])
    alone = fused([one], [1], 2)  # the other found no proposal at all
    np.testing.assert_allclose(alone.scores, [0.4, 0.2, 0.1], rtol=1e-6)


def test_a_group_counts_by_how_many_are_in_it():
    one, two = found_of([([0, 0, 10, 10], 0.9, 0)]), found_of([([0, 0, 10, 8], 0.3, 0)])
    result = fused([one, two], [2, 1], 3)
    np.testing.assert_allclose(result.scores, [(2 * 0.9 + 0.3) / 3], rtol=1e-6)
    np.testing.assert_allclose(result.boxes, [[0, 0, 10, (2 * 0.9 * 10 + 0.3 * 8) / 2.1]], rtol=1e-6)


CORNERS = st.tuples(st.floats(0, 60), st.floats(0, 60), st.floats(5, 40), st.floats(5, 40))
ROW = st.tuples(CORNERS.map(lambda c: [c[0], c[1], c[0] + c[2], c[1] + c[3]]), st.floats(0.01, 1), st.integers(0, 1))


@given(st.lists(st.lists(ROW, max_size=6), min_size=1, max_size=3))
def test_nothing_is_lost_or_made_up(several):
    several = [found_of(rows) for rows in several]
    result = fused(several, [1] * len(several), len(several))
    assert list(result.scores) == sorted(result.scores, reverse=True)
    for k in range(2):
        given = sum(float(one.scores[one.classes == k].sum()) for one in several) / len(several)
        assert float(result.scores[result.classes == k].sum()) == pytest.approx(given, rel=1e-4, abs=1e-6)
        inputs = np.concatenate([one.boxes[one.classes == k] for one in several])
        for box in result.boxes[result.classes == k]:  # each lies within what was found
            assert (iou(box[None], inputs) > 0.2).any()


def test_what_they_find_together(runs, small_scenes, shared_cache):
    path = next((small_scenes / "test").glob("*.jpg"))
    members = [load(run, device="cpu") for run in runs[:2]]
    found = melm.Ensemble(members)(path)
    pixels = read_image(path)
    proposals = compute_proposals(pixels, BOXES)
    scores = [one.scores(pixels, proposals) for one in members]
    expected = members[0].chosen(np.sqrt(scores[0] * scores[1]), proposals)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=0.01)
    three = melm.Ensemble([*members, load(runs[2], device="cpu")])(path)
    assert len(three) and (three.scores <= 1).all()


def test_an_image_without_a_proposal(runs, shared_cache, monkeypatch):
    none = Proposals(np.zeros((0, 4), np.float32), *np.zeros((2, 0), np.float32), 8, 8)
    monkeypatch.setattr("melm.detect.ensemble.compute_proposals", lambda pixels, settings: none)
    assert len(Ensemble([load(run, device="cpu") for run in runs])(np.zeros((8, 8, 3), np.uint8))) == 0


def test_who_cannot_speak_together(runs, small_scenes, shared_cache, tmp_path):
    one = load(runs[0], device="cpu")
    with pytest.raises(UsageError, match="two detectors or more"):
        Ensemble([one])
    few = small_train(small_scenes / "few.csv", tmp_path / "few")
    with pytest.raises(UsageError, match="its classes are even, odd; those of"):
        Ensemble([one, load(few, device="cpu")])


def test_detecting_together(runs, small_scenes, shared_cache, tmp_path, command):
    def detect(out, *others):
        words = [word for other in others for word in ("--with", other)]
        return command("detect", runs[0], small_scenes / "test", *words, "--out", tmp_path / out, "--workers", "1")

    said = detect("both", runs[1])
    assert said.returncode == 0, said.stderr
    members = [load(run, device="cpu") for run in runs[:2]]
    results = list(read_results(tmp_path / "both" / "detections.jsonl"))
    assert len(results) == 4
    for _, path, found in results:
        np.testing.assert_allclose(found.scores, Ensemble(members)(path).scores, rtol=1e-3)
    assert detect("both", runs[1]).returncode == 0  # goes on, with nothing left to do
    said = detect("both", runs[2])
    assert said.returncode == 2 and "--overwrite" in said.stderr  # other runs are other results
    assert detect("three", runs[1], runs[2]).returncode == 0
    said = detect("twice", runs[0])
    assert said.returncode == 2 and "the same run is named twice" in said.stderr
    said = detect("none", tmp_path / "none")
    assert said.returncode == 1 and "there is no such run" in said.stderr


@pytest.mark.parametrize("count", [2, 3])
def test_measured_together(runs, small_scenes, shared_cache, command, count):
    said = command(
        "evaluate", *runs[:count], "--ensemble", "--data", small_scenes / "test.json", "--json", "--workers", "1"
    )
    assert said.returncode == 0, said.stderr
    figures = json.loads(said.stdout)
    names = [one["name"] for one in figures["evaluations"]]
    assert names[-1] == "ensemble" and len(names) == count + 1
    assert sum("ensemble" in json.dumps(one) for one in figures["comparisons"]) == count
    said = command("evaluate", runs[0], "--ensemble", "--data", small_scenes / "test.json")
    assert said.returncode == 2 and "two RUNS or more" in said.stderr


def test_settings_hold_for_all(runs, small_scenes, shared_cache):
    others = [load(runs[0], DetectSettings(nms=0.4), "cpu"), load(runs[1], device="cpu")]
    with pytest.raises(UsageError, match="speaks with another nms"):
        Ensemble(others)
    path = next((small_scenes / "test").glob("*.jpg"))
    settings = DetectSettings(max_boxes=5)
    assert len(Ensemble([load(run, settings, "cpu") for run in runs])(path)) <= 5
    sure = DetectSettings(min_score=0.05)
    assert (Ensemble([load(run, sure, "cpu") for run in runs])(path).scores >= 0.05).all()


def test_the_order_does_not_matter(runs, small_scenes, shared_cache):
    path = next((small_scenes / "test").glob("*.jpg"))
    members = [load(run, device="cpu") for run in runs]
    there, back = Ensemble(members)(path), Ensemble(members[::-1])(path)
    np.testing.assert_allclose(there.scores, back.scores, rtol=1e-5)
    np.testing.assert_allclose(there.boxes, back.boxes, atol=0.01)


def test_given_proposals_serve_all(runs, small_scenes, shared_cache):
    pixels = read_image(next((small_scenes / "test").glob("*.jpg")))
    found = Ensemble([load(run, device="cpu") for run in runs])(pixels, compute_proposals(pixels, BOXES))
    assert len(found)
    with pytest.raises(ValueError, match="bytes of shape"):
        Ensemble([load(run, device="cpu") for run in runs])(pixels.astype(float))
