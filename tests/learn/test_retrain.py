"""Retraining: students of folds, taught what a run has found, resumed exactly, never asked about an image they learned from."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import melm
import melm.data
from learners import TUNED, small_train, weights_of
from melm.boxes import agreed, iou, supported
from melm.data import Source, read_tags
from melm.data.images import content_key, read_bytes, read_image
from melm.detect.detector import DetectSettings, load
from melm.detect.run import Looking
from melm.errors import MelmError, UsageError
from melm.learn.data import Ready
from melm.learn.lessons import (
    Cells,
    Lesson,
    Lessons,
    StudentStep,
    cells_in,
    inside,
    middles_of_cells,
    scales_of_step,
    some,
    student_loss,
)
from melm.learn.looks import Look, Verdicts, best_rows, both_looks
from melm.learn.map_store import MapStore
from melm.learn.pseudo_objects import Objects, line_of, objects_of_tag, of_line
from melm.learn.pseudo_objects import kept as kept_objects
from melm.learn.retrain import _all_learn, retrain
from melm.learn.run_folder import RunFolder
from melm.learn.students import RetrainConfig, Students, fold_of, frozen_trunk
from melm.learn.teaching import Teacher, Teaching
from melm.model.backbones import build_backbone
from melm.model.backbones.efficientnet_lite import _LookAround
from melm.model.regression import mirrored_shift, moved, shift_to
from melm.model.student import FastRCNN, Said, by_scale, named_as
from melm.model.trunks import covers, means, mirrored, mirrored_boxes
from melm.proposals import ProposalSettings, ReadyMade, compute_proposals, make_proposals
from melm.proposals.run import proposal_key

CONFIG = RetrainConfig(
    scales=(96, 128),
    hidden=16,
    positives=4,
    negatives=6,
    epochs=2,
    drop_after=1,
    accumulate=2,
    move_iou=0.3,
    reach=1.75,
)


def small_retrain(run, scenes, out, config=CONFIG, threads=1, **options):
    torch.set_num_threads(threads)
    return retrain(run, scenes / "train-tags.csv", out, config, device="cpu", workers=1, **options)


@pytest.fixture(scope="module")
def taught(learned, small_scenes, tmp_path_factory):
    """A run that was retrained, in the cache of the run that taught it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MELM_CACHE", str(learned.cache))
        return small_retrain(learned.run, small_scenes, tmp_path_factory.mktemp("taught") / "run")


@pytest.mark.parametrize("sizes", [(90, 133), (96, 128), (33, 70)])  # where paddings are odd and even
@pytest.mark.parametrize("name", ["lite0", "lite2"])
def test_stem_and_tail_are_the_trunk(name, sizes, monkeypatch):
    backbone = build_backbone(name).eval()
    for module in backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.normal_(module.bias)
    image = torch.randn(1, 3, *sizes)
    with torch.no_grad():
        tail, middle = backbone.split()
        map = backbone.stem(image)
        assert map.shape[1] == middle
        again = tail(map[0].permute(1, 2, 0)).permute(2, 0, 1)
        torch.testing.assert_close(again, backbone.trunk(image)[0], rtol=1e-3, atol=1e-3)
        folded = backbone.reading()
        for by_onednn in (True, False):
            if not by_onednn:  # as on a GPU
                monkeypatch.setattr("melm.model.backbones.folded.onednn", lambda x: False)
            torch.testing.assert_close(folded.stem(image), map, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(folded.trunk(image), backbone.trunk(image), rtol=1e-3, atol=1e-3)


def test_a_tail_learns_apart_from_the_trunk():
    backbone = build_backbone("lite0").eval()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    tail = backbone.split()[0]
    tail(torch.randn(4, 5, 112)).sum().backward()
    with torch.no_grad():
        for parameter in tail.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize("dilation", [1, 2])
def test_the_way_back_of_looking_around(dilation):
    weight = torch.randn(3, 1, 5, 5, dtype=torch.float64)
    x = torch.randn(1, 3, 6, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: _LookAround.apply(x, weight, dilation), (x,))
    expected = torch.nn.functional.conv2d(x, weight, None, 1, "same", dilation, 3)
    torch.testing.assert_close(_LookAround.apply(x, weight, dilation), expected)


def test_a_network_in_one_part_says_so():
    with pytest.raises(UsageError, match="vgg16: its trunk is not made in two parts"):
        build_backbone("vgg16").split()


@given(
    sides=st.lists(st.tuples(st.floats(0, 300), st.floats(0, 300), st.floats(1, 300), st.floats(1, 300)), min_size=1),
    size=st.tuples(st.integers(20, 600), st.integers(20, 600)),
)
def test_every_box_is_read_once_at_the_nearest_scale(sides, size):
    boxes = torch.tensor([[x, y, x + w, y + h] for x, y, w, h in sides])
    there, rows = by_scale(boxes, (96, 192, 384), *size, normal_size=100)
    assert sorted(rows.tolist()) == list(range(len(boxes)))
    back = torch.cat(there)
    number = [s for s, of_scale in enumerate(there) for _ in of_scale]
    for row, box, s in zip(rows.tolist(), back, number, strict=True):
        side = float((boxes[row, 2:] - boxes[row, :2]).prod().sqrt())
        distances = [abs(np.log(side * other / max(size) / 100)) for other in (96, 192, 384)]
        assert distances[s] <= min(distances) + 1e-4
        small = [max(1, round(side * (96, 192, 384)[s] / max(size))) / side for side in size]  # as `resized` rounds
        torch.testing.assert_close(box, boxes[row] * torch.tensor(small * 2))


@given(key=st.text("0123456789abcdef", min_size=8, max_size=40), folds=st.integers(1, 9))
def test_folds_are_by_content(key, folds):
    assert 0 <= fold_of(key, folds) < folds and fold_of(key, folds) == fold_of(key + "00", folds)


@given(first=st.integers(0, 3), seed=st.integers(0, 99))
def test_a_step_sees_the_objects_scale_and_another(first, seed):
    seen = scales_of_step(first, 4, np.random.default_rng(seed))
    assert seen[0] == first and len(set(seen)) == 2 and set(seen) <= set(range(4))
    assert scales_of_step(0, 1, np.random.default_rng(seed)) == [0]


@given(these=st.lists(st.booleans()), most=st.integers(0, 10), seed=st.integers(0, 99))
def test_some_are_some_of_them(these, most, seed):
    rows = some(np.random.default_rng(seed), np.array(these, bool), most)
    assert len(rows) == min(sum(these), most) == len(set(rows.tolist()))
    assert all(these[row] for row in rows)


def test_what_lies_inside():
    boxes = np.array([[0, 0, 10, 10], [2, 2, 4, 4], [8, 0, 12, 10], [50, 50, 60, 60], [3, 3, 3, 3]], np.float32)
    objects = np.array([[0, 0, 10, 10], [10, 0, 20, 10]], np.float32)
    assert inside(boxes, objects).tolist() == pytest.approx([1, 1, 0.5, 0, 0])


def test_objects_of_a_tag():
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [20, 0, 30, 10], [40, 0, 50, 10]], np.float32)
    scores = np.array([0.8, 0.9, 0.5, 0.3], np.float32)
    one = objects_of_tag(boxes, scores, 7, CONFIG)
    np.testing.assert_allclose(one.boxes, [[0, 0, 10, (0.8 * 10 + 0.9 * 9) / 1.7]], rtol=1e-6)
    assert one.classes.tolist() == [7]
    np.testing.assert_allclose(one.sure, [1.7 / 2.5])
    stays = CONFIG.with_(vote=0.0)
    assert objects_of_tag(boxes, scores, 7, stays).boxes.tolist() == boxes[[1]].tolist()
    two = objects_of_tag(boxes, scores, 7, stays.with_(alike=0.5))  # 0 is 1 again, 3 is too weak
    assert two.boxes.tolist() == boxes[[1, 2]].tolist()
    np.testing.assert_allclose(two.sure, [1.7 / 2.5, 0.5 / 2.5])
    assert objects_of_tag(boxes, scores, 7, stays.with_(alike=0.1)).boxes.tolist() == boxes[1:].tolist()
    assert objects_of_tag(boxes, 0 * scores, 7, CONFIG).sure.tolist() == [0]
    with pytest.raises(UsageError, match="alike"):
        CONFIG.with_(alike=0.0)


def lessons_of(taught, small_scenes, config=CONFIG):
    detector = load(taught, device="cpu")
    looking = Looking(detector)
    images = read_tags(Source(small_scenes / "train-tags.csv"))
    objects = kept_objects(taught / "objects.npz")
    keys = tuple(content_key(read_bytes(image.path)) for image in images)
    ready = Ready(images, keys, looking.proposals)
    maps = MapStore(frozen_trunk(detector.network, config), config)
    return Lessons(ready, objects, config, maps, detector.network.trunk.normal_size), detector


@pytest.mark.parametrize("weigh", [True, False])
def test_a_lesson(taught, small_scenes, shared_cache, weigh):
    config = CONFIG.with_(weigh=weigh)
    lessons, detector = lessons_of(taught, small_scenes, config)
    kinds, farther = set(), 0
    for epoch in range(3):
        for index in lessons.order(epoch):
            lesson = lessons.load(index, epoch)
            again = lessons.load(index, epoch)
            assert torch.equal(lesson.target, again.target) and torch.equal(lesson.weight, again.weight)
            count = sum(map(len, lesson.boxes))
            assert count == len(lesson.target) == len(lesson.weight) <= CONFIG.positives + CONFIG.negatives
            objects = lesson.target < len(detector.classes)
            kinds |= set(objects.tolist())
            given = lessons.objects[index]
            assert {int(k) for k in lesson.target[objects]} <= {int(k) for k in given.classes}
            for scale, there, boxes in zip(CONFIG.scales, lesson.seen, lesson.boxes, strict=True):
                assert (there is None) == (len(boxes) == 0 and scale != 128)  # whose cells are named
            # boxes of a class lie on an object of it
            found = lessons.ready.proposals.get(lessons.ready.keys[index])
            there, rows = by_scale(torch.from_numpy(found.boxes), CONFIG.scales, found.width, found.height, 160.0)
            known = {tuple(box.tolist()): int(row) for box, row in zip(torch.cat(there), rows, strict=True)}
            own = [known[tuple(box.tolist())] for box in torch.cat(lesson.boxes)]
            overlap = iou(found.boxes[own], given.boxes)
            assert ((overlap.max(axis=1) >= CONFIG.object_iou) == objects.numpy()).all()
            # objects count as much as background, each by how sure it is
            sure = torch.from_numpy(given.sure[overlap.argmax(axis=1)] / lessons.mean_sure if weigh else np.ones(count))
            for of_kind in (objects, ~objects):
                torch.testing.assert_close(lesson.weight[of_kind], (sure[of_kind] / max(int(of_kind.sum()), 1)).float())
            # where to move is learned from farther away
            near = torch.from_numpy(overlap.max(axis=1) >= CONFIG.move_iou)
            torch.testing.assert_close(lesson.moving, (near * sure / max(int(near.sum()), 1)).float())
            aim = shift_to(*map(torch.from_numpy, (found.boxes[own], given.boxes[overlap.argmax(axis=1)])))
            torch.testing.assert_close(lesson.shift, aim * near[:, None])
            farther += int((near & ~objects).sum())
    assert kinds == {True, False} and farther


@pytest.mark.parametrize(("folds", "judges"), [(2, 1), (3, 2), (4, 2)])
def test_who_judges_an_image_does_not_learn_from_it(folds, judges, taught, small_scenes, shared_cache):
    config = CONFIG.with_(folds=folds, judges=judges)
    lessons, detector = lessons_of(taught, small_scenes, config)
    students = Students(detector.network, config, len(detector.classes), "all", detector.students.keys)
    step = StudentStep(students)
    assert len({lessons.load(index, 0).fold for index in lessons.order(0)}) > 1
    for index in lessons.order(0):
        students.zero_grad(set_to_none=True)
        step(lessons.load(index, 0), 0.0, None)[0].backward()
        asked = students.of(lessons.ready.keys[index])
        assert len(asked) == judges
        for student in students.students:
            moves = [p.grad is not None and bool(p.grad.any()) for p in student.parameters()]
            assert any(moves) == all(student is not judge for judge in asked)
    assert len(students.of(None)) == len(students.of("0" * 40)) == folds  # images that nobody learned from


@given(folds=st.integers(2, 9), judges=st.integers(1, 8))
def test_every_student_judges_as_many_folds(folds, judges):
    assume(judges < folds)
    config = CONFIG.with_(folds=folds, judges=judges)
    every = [config.judges_of(fold) for fold in range(folds)]
    assert all(len(set(some)) == judges and fold in some for fold, some in enumerate(every))
    assert {sum(student in some for some in every) for student in range(folds)} == {judges}


def test_students_are_not_taught_that_an_unknown_class_is_not_there():
    """Three classes and background, even odds: a box is one of four; one of three where a class is unknown."""
    said = Said(torch.zeros(1, 4).log_softmax(dim=1).requires_grad_(), torch.zeros(1, 4))
    rest = [None], [], torch.tensor([3]), torch.zeros(1, 4), torch.ones(1), torch.zeros(1)
    for known, odds in ((torch.ones(3), 4.0), (torch.tensor([1.0, 0.0, 1.0]), 3.0)):
        cells = Cells(torch.zeros(2, 5), torch.tensor([3, 0]), torch.tensor([0.5, 0.25]))
        named = torch.zeros(2, 4).log_softmax(dim=1)
        classes, _, of_cells = student_loss(said, named, Lesson(0, 0, *rest, known, cells))
        assert classes.item() == pytest.approx(math.log(odds))
        assert of_cells.item() == pytest.approx(0.75 * math.log(odds))
    (gradient,) = torch.autograd.grad(classes, said.log_prob)
    assert gradient[0, 1] == 0


def proposal_key_of_a_file(key):
    plain = proposal_key(b"an image")
    of_file = proposal_key(b"an image", np.zeros((1, 5)))
    assert of_file.startswith(plain) and of_file != proposal_key(b"an image", np.ones((1, 5))) != plain
    return of_file.replace(plain, key)


def test_an_image_is_judged_by_the_student_that_never_saw_it(taught):
    students = load(taught, device="cpu").students
    assert len(students.keys) == 11  # two of the images have no tag
    for key in students.keys:
        (judge,) = students.of(key)
        assert judge is students.students[fold_of(key, 2)]
        (same,) = students.of(proposal_key_of_a_file(key))  # whichever boxes it is asked about
        assert same is judge
    assert len(students.of("ab" * 16)) == 2 and len(students.of(None)) == 2


def test_a_retrained_run_detects(taught, small_scenes, shared_cache):
    path = next((small_scenes / "test").glob("*.jpg"))
    found = {
        branch: melm.load(taught, DetectSettings(branch=branch), "cpu")(path) for branch in ("fused", "student", None)
    }
    assert len(found["student"]) and (found["student"].scores <= 1).all()
    np.testing.assert_array_equal(found["fused"].scores, found[None].scores)
    assert not np.array_equal(found["fused"].scores, found["student"].scores)
    flipped = melm.load(taught, DetectSettings(views="flip"), "cpu")(path)
    assert len(flipped) and not np.array_equal(flipped.scores, found[None].scores)
    with pytest.raises(UsageError, match="Did you mean 'fused'"):
        melm.load(taught, DetectSettings(branch="fuse"), "cpu")


def test_what_student_and_teacher_say_together(taught, small_scenes, shared_cache):
    """0.2 of the teacher, 0.25 of its class stream, 0.25 of the evidence and 0.5 of what cells say, by hand."""
    detector = load(taught, device="cpu")
    pixels = read_image(small_scenes / "test" / "00001.jpg")
    found = compute_proposals(pixels, detector.proposal_settings)
    (output,) = detector.outputs(pixels, found)
    _, shift, cells = Look(detector.students, detector.students.inputs(detector.network, pixels), found).first()
    assert cells.shape == (len(found), len(detector.classes)) and cells.std() > 0
    torch.testing.assert_close(output.shift, 1.75 * shift)  # boxes move farther than students say
    assert (output.fused <= 0).all()  # a score is at most 1
    student, logits = output.student.double().numpy()[:, :-1], output.scores.class_logits.double().numpy()
    branches = [output.log_prob, *(p[:, :-1] for p in output.localized())]
    teacher = np.mean([p.double().numpy() for p in branches], axis=0)
    stream = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    known = output.evidence.double().numpy()[:, None]
    together = student + 0.2 * teacher + 0.25 * stream + 0.25 * (known - known.max()) + 0.5 * cells.double().numpy()
    np.testing.assert_allclose(output.fused.numpy(), together, rtol=1e-4, atol=1e-4)


def test_boxes_that_agree(taught, learned, small_scenes, shared_cache):
    """Where boxes move, and only there, it counts if asked for that others went to the same place."""
    image = small_scenes / "test" / "00001.jpg"
    alone, agree = (melm.load(taught, DetectSettings(agree=weight, max_boxes=0), "cpu") for weight in (0.0, 0.5))
    assert (alone.agree, agree.agree) == (0.0, 0.5)
    pixels = read_image(image)
    found = compute_proposals(pixels, alone.proposal_settings)
    scores, places = alone.judged(alone.outputs(pixels, found), found)
    expected = alone.chosen(supported(places.boxes, scores, 0.5), places)
    for one in (agree(image), melm.Ensemble([agree, agree])(image)):
        np.testing.assert_allclose(one.scores, expected.scores, rtol=1e-4)
        np.testing.assert_allclose(one.boxes, expected.boxes, rtol=1e-4, atol=1e-2)
    assert not np.allclose(alone(image).scores[:5], expected.scores[:5])
    assert melm.load(taught, DetectSettings(agree=0.5, branch="all"), "cpu").agree == 0  # boxes stay
    assert melm.load(learned.run, DetectSettings(agree=0.5), "cpu").agree == 0
    with pytest.raises(UsageError, match="--agree is -1"):
        DetectSettings(agree=-1)


@pytest.mark.parametrize("flip", [False, True])
def test_a_second_look(taught, small_scenes, shared_cache, flip):
    """The best boxes are judged where they have moved to, too. Both verdicts count there, other boxes keep the first, and where
    boxes end is not moved on."""
    detector = load(taught, device="cpu")
    students = detector.students
    pixels = read_image(small_scenes / "test" / "00001.jpg")
    found = compute_proposals(pixels, detector.proposal_settings)
    (output,) = detector.outputs(pixels, found)
    seen = students.inputs(detector.network, mirrored(pixels) if flip else pixels)
    once = Look(students, seen, found, flip=flip).judged(output)
    students.config = replace(students.config, second_look=5)
    look = Look(students, seen, found, flip=flip)
    twice = look.judged(output)
    best = once.fused.amax(dim=1).topk(5).indices
    others = [row for row in range(len(found)) if row not in set(best.tolist())]
    assert torch.equal(twice.fused[others], once.fused[others]) and torch.equal(
        twice.student[others], once.student[others]
    )
    assert torch.equal(twice.shift, once.shift)
    places = moved(torch.from_numpy(found.boxes), once.shift, found.width, found.height)[best]
    there = Look(
        students, seen, replace(found, boxes=places.numpy()), flip=flip
    ).first()  # as if they were the proposals
    torch.testing.assert_close(twice.student[best], (once.student[best] + there.student) / 2)
    first = look.first()
    gained = twice.fused[best] - once.fused[best]
    expected = (twice.student - once.student)[best, :-1] + 0.5 * (there.cells - first.cells[best]) / 2
    torch.testing.assert_close(gained, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(gained, torch.zeros(()))
    if not flip:
        (again,) = detector.outputs(pixels, found)  # what detects does so
        torch.testing.assert_close(again.fused, twice.fused)
    students.config = replace(students.config, second_look=10 * len(found))  # at most all of them
    assert torch.isfinite(Look(students, seen, found, flip=flip).judged(output).fused).all()
    students.config = replace(students.config, box_weight=0.0)  # where boxes stay there is nothing new to see
    stays = Look(students, seen, found, flip=flip).judged(output)
    assert stays.shift is None and torch.equal(stays.fused, once.fused)


def test_the_mean_of_two_looks():
    """By hand: 0.2 and 0.8 give 0.4, for 0.4 * 0.4 = 0.2 * 0.8; cells -1 and -3 give -2; of rows that were not looked at again
    nothing changes."""
    logs = torch.tensor([[0.2, 0.8], [0.5, 0.5], [0.1, 0.9]]).log()
    first = Verdicts(logs, torch.arange(12.0).reshape(3, 4), torch.tensor([[-1.0], [-5.0], [-7.0]]))
    again = Verdicts(torch.tensor([[0.8, 0.2], [0.4, 0.9]]).log(), torch.zeros(2, 4), torch.tensor([[-3.0], [-9.0]]))
    both = both_looks(first, again, torch.tensor([0, 2]))
    torch.testing.assert_close(both.student.exp(), torch.tensor([[0.4, 0.4], [0.5, 0.5], [0.2, 0.9]]))
    torch.testing.assert_close(both.cells, torch.tensor([[-2.0], [-5.0], [-8.0]]))
    assert torch.equal(both.shift, first.shift) and torch.isfinite(both.student).all()
    assert both_looks(first._replace(cells=None), again._replace(cells=None), torch.tensor([0, 2])).cells is None
    assert best_rows(torch.tensor([[-3.0, -9.0], [-9.0, -1.0], [-2.0, -2.0]]), 2).tolist() == [1, 2]


def test_of_one_class_the_class_stream_has_a_voice(taught):
    """A softmax over one class would be 1 for every box."""
    students, logits = load(taught, device="cpu").students, torch.tensor([[-1.0], [0.0], [2.0]])
    output = SimpleNamespace(
        prob=lambda branch: torch.ones(3, 1), evidence=torch.zeros(3), scores=SimpleNamespace(class_logits=logits)
    )
    fused = students.fused(torch.zeros(3, 2), output, None)
    torch.testing.assert_close(fused, 0.25 * logits.sigmoid().log())


def test_stored_maps_give_what_the_image_gives(taught, small_scenes, shared_cache):
    detector = melm.load(taught, DetectSettings(max_boxes=0), "cpu")
    image = read_tags(Source(small_scenes / "test-tags.csv"))[0]
    key = content_key(read_bytes(image.path))
    looking = Looking(detector, keep=True)
    make_proposals([image], looking.proposals, 1)
    outputs, found = looking.outputs(key, image.path)
    assert looking.maps.has(key)
    (direct,) = detector.outputs(melm.data.read_image(image.path), found)
    torch.testing.assert_close(outputs[0].fused, direct.fused, rtol=0.02, atol=0.02)  # half precision


@pytest.mark.parametrize("views", ["single", "flip"])
def test_the_measures_ask_the_student_that_never_saw_the_image(taught, small_scenes, shared_cache, views):
    detector = melm.load(taught, DetectSettings(views=views), "cpu")
    image = read_tags(Source(small_scenes / "train-tags.csv"))[0]
    key = content_key(read_bytes(image.path))
    assert key in detector.students.keys
    with torch.no_grad():  # opinions that are easily told apart
        for number, student in enumerate(detector.students.students):
            student.verdict.of_class.weight.zero_()
            student.verdict.of_class.bias.copy_(torch.arange(7) * (number + 1) / 10)
            student.cells.of_class.bias.copy_(torch.arange(7) * (number + 1) / 10)
    outputs, _ = Looking(detector).outputs(key, image.path)
    detector.students.keys = frozenset()
    every, _ = Looking(detector).outputs(key, image.path)
    detector.students.students[1 - fold_of(key, 2)] = detector.students.students[fold_of(key, 2)]
    only, _ = Looking(detector).outputs(key, image.path)
    for output, of_all, of_one in zip(outputs, every, only, strict=True):
        torch.testing.assert_close(output.student, of_one.student)
        assert not torch.allclose(output.student, of_all.student)
        cells, by_all, by_one = (one.fused - one.student[:, :-1] for one in (output, of_all, of_one))
        torch.testing.assert_close(cells, by_one)  # names of cells come from the same student
        assert not torch.allclose(cells, by_all)


def test_a_flipped_view_is_a_view_of_the_mirrored_image(taught, small_scenes):
    detector = melm.load(taught, DetectSettings(views="flip"), "cpu")
    pixels = read_image(small_scenes / "test" / "00001.jpg")
    found = compute_proposals(pixels, detector.proposal_settings)
    there = mirrored_boxes(torch.from_numpy(found.boxes), found.width).numpy()
    _, flipped = detector.outputs(pixels, found)
    plain, _ = detector.outputs(mirrored(pixels), replace(found, boxes=there))
    for name in ("student", "fused"):
        torch.testing.assert_close(getattr(flipped, name), getattr(plain, name))
    torch.testing.assert_close(flipped.shift, mirrored_shift(plain.shift))


def test_students_find_the_maps_that_were_stored_while_their_teacher_learned(small_scenes, tmp_path, monkeypatch):
    monkeypatch.setenv("MELM_CACHE", str(tmp_path / "cache"))
    source, first = Source(small_scenes / "few.csv"), tmp_path / "first"
    small_train(source, first, students=CONFIG)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "maps").rglob("*.npz")}
    assert len(before) == len(read_tags(source))
    retrain(first, source, tmp_path / "second", CONFIG.with_(epochs=1, folds=1), device="cpu")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "maps").rglob("*.npz")} == before


def test_what_is_measured(taught, small_scenes, shared_cache):
    """On the images learned from, the measures ask the student of the other fold."""
    result = melm.evaluate(taught, small_scenes / "train.json")
    assert 0 <= result.corloc.mean <= 1
    assert result.subject.about["branch"] == "fused"


def killed_and_taken_up(learned, scenes, out, config=CONFIG):
    def stop(epochs, network, strength):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_retrain(learned.run, scenes, out, config, after_epoch=stop)
    assert not (out / "model.json").exists()
    return small_retrain(learned.run, scenes, out, config)


def test_a_killed_run_goes_on_to_the_same_weights(learned, taught, small_scenes, shared_cache, tmp_path):
    assert weights_of(killed_and_taken_up(learned, small_scenes, tmp_path / "run")) == weights_of(taught)


def test_images_side_by_side_give_the_same_weights(learned, taught, small_scenes, shared_cache, tmp_path):
    """In steps where all images are of one fold, too: the other student has nothing to learn then."""
    run = small_retrain(learned.run, small_scenes, tmp_path / "run", threads=2)
    assert weights_of(run) == weights_of(taught)


def test_another_seed_and_a_second_round(learned, taught, small_scenes, shared_cache, tmp_path):
    other = small_retrain(learned.run, small_scenes, tmp_path / "other", CONFIG.with_(seed=5))
    second = small_retrain(taught, small_scenes, tmp_path / "second")
    for run in (other, second):
        before, after = weights_of(taught), weights_of(run)
        assert {name for name in after if after[name] != before[name]}
        assert all(name.startswith("students.") for name in after if after[name] != before[name])
    with pytest.raises(UsageError, match="its students have folds = 2"):
        small_retrain(taught, small_scenes, tmp_path / "third", CONFIG.with_(folds=3))
    with pytest.raises(UsageError, match="holds another run"):
        small_retrain(taught, small_scenes, other)
    said = []
    small_retrain(taught, small_scenes, second, say=said.append)
    assert f"{second} is learned already" in said
    subjects = [melm.evaluate(run, small_scenes / "train.json").subject for run in (taught, other, second)]
    assert [subject.seeds for subject in subjects] == [(0, 0), (0, 5), (0, 0, 0)]
    assert subjects[0].alike == subjects[1].alike != subjects[2].alike


def test_a_teacher_that_speaks_otherwise_is_another_one(taught, small_scenes, shared_cache, tmp_path):
    second = small_retrain(taught, small_scenes, tmp_path / "second", CONFIG.with_(epochs=1))
    changed = shutil.copytree(taught, tmp_path / "changed")
    card = json.loads((changed / "model.json").read_text())
    card["retrained"]["evidence_weight"] = 1.0  # which nothing learned depends on
    (changed / "model.json").write_text(json.dumps(card))
    with pytest.raises(UsageError, match="holds another run"):
        small_retrain(changed, small_scenes, second, CONFIG.with_(epochs=1))


def test_choosing_objects_goes_on_where_it_stopped(learned, taught, small_scenes, copied_cache, tmp_path, monkeypatch):
    shutil.rmtree(copied_cache / "objects")
    asked, choose = [], Teaching.objects

    def objects(self, index):
        asked.append(index)
        if len(asked) == 6:
            raise MelmError("the power went")
        return choose(self, index)

    monkeypatch.setattr(Teaching, "objects", objects)
    run = tmp_path / "run"
    with pytest.raises(MelmError, match="the power went"):
        small_retrain(learned.run, small_scenes, run)
    with (run / "objects.jsonl").open("ab") as lines:
        lines.write(b'{"image": 12, "box')  # which a killed process left
    small_retrain(learned.run, small_scenes, run)
    assert asked[:6] == list(range(6)) and asked[6:] == list(range(5, 13))
    assert (run / "objects.npz").read_bytes() == (taught / "objects.npz").read_bytes()
    assert weights_of(run) == weights_of(taught)
    assert not list(run.glob("objects.*json*"))
    with pytest.raises(MelmError, match="the power went"):
        asked.clear()
        shutil.rmtree(copied_cache / "objects")
        small_retrain(learned.run, small_scenes, run, overwrite=True)
    RunFolder(run).clear()
    assert not list(run.iterdir())


def test_a_store_that_cannot_be_written_costs_nothing(learned, taught, small_scenes, copied_cache, tmp_path):
    shutil.rmtree(copied_cache / "objects")
    (copied_cache / "objects").write_text("in the way")
    run = small_retrain(learned.run, small_scenes, tmp_path / "run", CONFIG.with_(epochs=1))
    assert (run / "objects.npz").read_bytes() == (taught / "objects.npz").read_bytes()


@given(st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_objects_as_lines(count, seed):
    random = np.random.default_rng(seed)
    boxes, sure = random.normal(0, 1e3, (count, 4)).astype(np.float32), random.random(count)
    found = Objects(boxes, random.integers(0, 20, count), sure, random.random(count) < 0.5)
    number, again = of_line(Path("lines"), 1, line_of(seed, found))
    assert number == seed
    for name in ("boxes", "classes", "sure", "taught"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name), strict=True)


@pytest.mark.parametrize("line", [b"{", b"3", b'{"image": 3}', b'{"image": 3, "boxes": [1]}'])
def test_a_damaged_line_of_objects(line):
    with pytest.raises(MelmError, match="lines, line 7: damaged"):
        of_line(Path("lines"), 7, line)


@pytest.fixture(scope="module")
def taught_apart(learned, small_scenes, tmp_path_factory):
    """Another run on the same proposals, with another basis, retrained with students of its own kind."""
    folder = tmp_path_factory.mktemp("apart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MELM_CACHE", str(learned.cache))
        first = small_train(small_scenes / "train-tags.csv", folder / "first", components=12)
        return small_retrain(first, small_scenes, folder / "run", CONFIG.with_(scales=(96,), folds=3))


@pytest.mark.parametrize("agree", [0.0, 0.5])
def test_runs_teach_together(learned, taught, taught_apart, small_scenes, shared_cache, tmp_path, agree):
    """What is taught is what the runs, asked by themselves, say together; each image's judges never learned from it."""
    config = CONFIG.with_(agree=agree)
    both = small_retrain(taught, small_scenes, tmp_path / "both", config, others=[taught_apart])
    source = Source(small_scenes / "train-tags.csv")
    images = read_tags(source)
    runs = [Looking(load(run, device="cpu")) for run in (taught, taught_apart)]
    found = kept_objects(both / "objects.npz")
    for image, objects in zip(images, found, strict=True):
        key = proposal_key(read_bytes(image.path))
        judged = [looking.judged(key, image.path) for looking in runs]
        scores, places = agreed([one[0] for one in judged], [one[1].boxes for one in judged])
        scores = supported(places, scores, agree)
        expected = [objects_of_tag(places, scores[:, k], k, CONFIG) for k in map(images.classes.index, image.tags)]
        np.testing.assert_array_equal(objects.boxes, Objects.joined(expected).boxes)
        np.testing.assert_array_equal(objects.sure, Objects.joined(expected).sure)
    alone = kept_objects(small_retrain(taught, small_scenes, tmp_path / "alone") / "objects.npz")
    assert any((one.boxes != other.boxes).any() for one, other in zip(found, alone, strict=True))
    # a run that does not move boxes has a voice in which one is best, and none in where it lies
    mixed = kept_objects(small_retrain(taught, small_scenes, tmp_path / "mixed", others=[learned.run]) / "objects.npz")
    assert any((one.boxes != other.boxes).any() for one, other in zip(mixed, alone, strict=True))


def test_what_is_taught_is_chosen_once(taught, taught_apart, small_scenes, copied_cache, tmp_path, monkeypatch):
    """Students of the same teachers and rules learn from the same objects, whoever of them is retrained and in any order."""
    shutil.rmtree(copied_cache / "objects", ignore_errors=True)
    asked = []
    judged = Teacher.judged
    monkeypatch.setattr(Teacher, "judged", lambda self, *given: asked.append(1) or judged(self, *given))

    def objects(run, other, name, config):
        asked.clear()
        return kept_objects(small_retrain(run, small_scenes, tmp_path / name, config, others=[other]) / "objects.npz")

    once, apart = CONFIG.with_(epochs=1), CONFIG.with_(scales=(96,), folds=3, epochs=1)
    first = objects(taught, taught_apart, "a", once)
    assert asked
    for number, again in enumerate(
        (objects(taught_apart, taught, "b", apart), objects(taught, taught_apart, "c", once.with_(seed=4)))
    ):
        assert not asked, number
        for one, other in zip(first, again, strict=True):
            np.testing.assert_array_equal(one.boxes, other.boxes)
    objects(taught, taught_apart, "d", once.with_(vote=0.0))
    assert asked
    card = json.loads((taught / "model.json").read_text())
    card["retrained"]["class_weight"] = 1.0  # it says something else, by the same weights
    changed = shutil.copytree(taught, tmp_path / "changed")
    (changed / "model.json").write_text(json.dumps(card))
    objects(changed, taught_apart, "e", once)
    assert asked
    for path in (copied_cache / "objects").iterdir():
        path.write_bytes(path.read_bytes()[:50])  # damaged: chosen anew
    again = objects(taught, taught_apart, "f", once)
    assert asked
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.boxes, other.boxes)


def test_who_teaches_together_is_part_of_the_run(learned, taught, taught_apart, small_scenes, shared_cache, tmp_path):
    both = small_retrain(taught, small_scenes, tmp_path / "both", others=[taught_apart])
    said = []
    small_retrain(taught, small_scenes, both, others=[taught_apart], say=said.append)
    assert f"{both} is learned already" in said
    for others in ([], [learned.run]):
        with pytest.raises(UsageError, match="holds another run:\n  teaches along"):
            small_retrain(taught, small_scenes, both, others=others)
    alone = small_retrain(taught, small_scenes, tmp_path / "alone")
    alike = {melm.evaluate(run, small_scenes / "train.json").subject.alike for run in (both, alone)}
    assert len(alike) == 2  # no two seeds of one thing


def test_who_cannot_teach_together(learned, taught, small_scenes, shared_cache, tmp_path):
    def refused(words, *others, run=taught):
        with pytest.raises(UsageError, match=words):
            small_retrain(run, small_scenes, tmp_path / "none", others=others)

    refused("the same run is named twice", taught)
    refused("the same run is named twice", learned.run, learned.run)
    boxes = ProposalSettings("edge-boxes", max_boxes=40)
    refused("other proposals", small_train(small_scenes / "train-tags.csv", tmp_path / "boxes", proposals=boxes))
    card = json.loads((learned.run / "model.json").read_text())
    other = shutil.copytree(learned.run, tmp_path / "other")
    card["classes"] = card["classes"][::-1]
    (other / "model.json").write_text(json.dumps(card))
    refused("in the same order, teach together", other)
    with pytest.raises(MelmError, match="nothing-there"):
        small_retrain(taught, small_scenes, tmp_path / "none", others=[tmp_path / "nothing-there"])
    assert not (tmp_path / "none").exists()


def test_stages_that_stay(learned, small_scenes, shared_cache, tmp_path):
    """Students have none of their own: all learn above those of the trunk."""
    run = small_retrain(learned.run, small_scenes, tmp_path / "run")
    found = load(run, device="cpu")
    begun = Students(found.network, CONFIG, len(found.classes), "all").students
    for one, new in zip(found.students.students, begun, strict=True):
        after = dict(one.named_parameters())
        assert {name.split(".")[0] for name in after} == {"neck", "verdict", "cells"}
        assert not any(torch.equal(value, after[name]) for name, value in new.named_parameters() if value.ndim == 2)
    with pytest.raises(UsageError, match=r"its students have tail_share = 0\.0; keep that"):
        small_retrain(run, small_scenes, tmp_path / "other", CONFIG.with_(tail_share=0.1))


def test_stages_that_learn(learned, small_scenes, shared_cache, tmp_path):
    """Every student has its own, which begin as the trunk's; what they learned is taken up after a stop."""
    learns = CONFIG.with_(tail_share=0.1)
    run = small_retrain(learned.run, small_scenes, tmp_path / "run", learns)
    found = load(run, device="cpu")
    begun = Students(found.network, learns, len(found.classes), "all").students
    for one, new in zip(found.students.students, begun, strict=True):
        after = dict(one.named_parameters())
        moved = {name.split(".")[0] for name, value in new.named_parameters() if not torch.equal(value, after[name])}
        assert moved == {"tail", "reduce", "neck", "verdict"}
    with pytest.raises(UsageError, match=r"its students have tail_share = 0\.1; keep that"):
        small_retrain(run, small_scenes, tmp_path / "other")
    assert weights_of(killed_and_taken_up(learned, small_scenes, tmp_path / "again", learns)) == weights_of(run)


def test_students_that_had_stages_which_stayed_are_of_an_earlier_version(learned, small_scenes, shared_cache, tmp_path):
    run = small_retrain(learned.run, small_scenes, tmp_path / "run", CONFIG.with_(tail_share=0.1, epochs=1))
    card = json.loads((run / "model.json").read_text())
    card["retrained"]["tail_share"] = 0.0
    (run / "model.json").write_text(json.dumps(card))
    with pytest.raises(MelmError, match=r"retrained by an earlier version of melm\. Run its `melm retrain` again"):
        load(run, device="cpu")


def test_maps_are_of_a_basis_where_it_is_in_them(learned, shared_cache):
    network, learns = load(learned.run, device="cpu").network, CONFIG.with_(tail_share=0.1)
    before = [MapStore(frozen_trunk(network, config), config).folder for config in (CONFIG, learns)]
    assert before[0] != before[1]
    network.trunk.of_map.mean += 1
    after = [MapStore(frozen_trunk(network, config), config).folder for config in (CONFIG, learns)]
    assert after[0] != before[0] and after[1] == before[1]


def test_a_step_sees_all_scales_where_the_stages_stay(taught, small_scenes, shared_cache):
    for share in (0.0, 0.1):
        config = CONFIG.with_(scales=(200, 400, 800, 1600), tail_share=share)  # no map is read here
        lessons, _ = lessons_of(taught, small_scenes, config)
        seen = []
        for index in lessons.useful:
            found = lessons.ready.proposals.get(lessons.ready.keys[index])
            view = lessons.of_maps("", found, lessons.objects[index], np.random.default_rng(index))
            seen.append(bool(view.there.all()))
        assert all(seen) == (share == 0)


def test_all_students_read_the_same_of_stages_that_stay(taught, small_scenes, shared_cache):
    """What is read once for all is what each would read by itself."""
    lessons, detector = lessons_of(taught, small_scenes)
    students, key = detector.students, lessons.ready.keys[0]
    found, seen = lessons.ready.proposals.get(key), lessons.maps.get(key)
    log_prob, shift, cells = Look(students, seen, found).first()
    there, rows = students.divided(torch.from_numpy(found.boxes), found.width, found.height)
    with torch.no_grad():
        said = [one(seen, there) for one in students.students]
    torch.testing.assert_close(log_prob[rows].exp(), torch.stack([one.log_prob.exp() for one in said]).mean(dim=0))
    torch.testing.assert_close(shift[rows], torch.stack([one.shift for one in said]).mean(dim=0))
    boxes = torch.from_numpy(found.boxes) * (128 / max(found.width, found.height))  # at the largest scale
    with torch.no_grad():
        shares = torch.stack([one.shares(seen[1], boxes) for one in students.students]).mean(dim=0)
    whole = covers(torch.from_numpy(found.boxes), found.width, found.height)
    assert int(whole.sum()) == 1  # the last of the proposals
    torch.testing.assert_close(cells, named_as(shares, whole), rtol=1e-3, atol=1e-3)


def test_what_cells_are_taught(taught, small_scenes, shared_cache):
    """Those in an object are of its class, those outside are background; both count as much, by how sure the objects are."""
    lessons, detector = lessons_of(taught, small_scenes, CONFIG.with_(cells=7))
    kinds = set()
    for index in lessons.order(0):
        cells, given = lessons.load(index, 0).cells, lessons.objects[index]
        assert cells.seen.shape[1] == 112 + detector.network.trunk.of_map.kept
        is_object = cells.target < len(detector.classes)
        assert int(is_object.sum()) <= 7 and int((~is_object).sum()) <= 7
        assert {int(k) for k in cells.target[is_object]} <= {int(k) for k in given.classes}
        if bool((~is_object).any()):
            expected = given.sure.mean() / lessons.mean_sure
            assert float(cells.weight[~is_object].sum()) == pytest.approx(expected, rel=1e-5)
        kinds |= set(is_object.tolist())
    assert kinds == {True, False}
    lessons, _ = lessons_of(taught, small_scenes, CONFIG.with_(cells=0))
    assert lessons.load(0, 0).cells is None


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (333, 500), (64, 48), (130, 20)])
def test_cells_are_taught_where_they_are_read(size):
    """A box around the middle of one cell, at the scale of the map, reads mostly that cell."""
    width, height = size
    small = [max(1, round(side * 128 / max(size))) for side in size]
    columns, rows = (-(-side // 16) for side in small)
    middles = middles_of_cells(rows, columns, 16 * max(size) / 128, width, height)
    assert middles.shape == (rows * columns, 2)
    assert (middles > 0).all() and (middles < size).all()
    map = torch.arange(rows * columns).float().view(rows, columns, 1)
    there = torch.from_numpy(middles).float() * torch.tensor([s / side for s, side in zip(small, size, strict=True)])
    boxes = torch.cat([there - 0.5, there + 0.5], dim=1)
    (read,) = means(map, boxes[None], torch.zeros_like(boxes)[None], 16)
    torch.testing.assert_close(read, map.flatten(0, 1), atol=0.05, rtol=0)


def test_in_which_object_a_cell_lies():
    boxes = np.array([[0, 0, 10, 10], [5, 5, 20, 20], [8, 0, 12, 4], [30, 30, 40, 40]], np.float32)
    every = Objects(boxes, np.array([1, 0, 1, 2]), np.ones(4), np.array([True, True, True, False]))
    middles = np.array([[2.0, 2], [7, 7], [9, 2], [15, 15], [25, 25], [35, 35]])
    of, left_out = cells_in(middles, every)
    assert of.tolist() == [0, 0, 0, 1, -1, -1]
    # in objects of two classes; and in one that is neither object nor background
    assert left_out.tolist() == [False, True, False, False, False, True]


@given(data=st.data(), count=st.integers(1, 5))
def test_cells_outside_all_objects_are_background(data, count):
    corner = st.floats(0, 90)
    boxes = np.array(
        [
            [x, y, x + 5, y + 8]
            for x, y in data.draw(st.lists(st.tuples(corner, corner), min_size=count, max_size=count))
        ]
    )
    every = Objects(boxes.astype(np.float32), np.zeros(count, int), np.ones(count), np.ones(count, bool))
    middles = np.random.default_rng(count).uniform(0, 100, (30, 2))
    of, left_out = cells_in(middles, every)
    assert not left_out.any()
    for middle, object in zip(middles, of, strict=True):
        holds = [bool((box[:2] <= middle).all() and (middle <= box[2:]).all()) for box in every.boxes]
        assert holds[object] if object >= 0 else not any(holds)


def test_students_without_names_of_cells(learned, small_scenes, shared_cache, tmp_path):
    """As before there were any; a run of then still detects, and goes on as what it is."""
    none = CONFIG.with_(cells=0, epochs=1)
    run = small_retrain(learned.run, small_scenes, tmp_path / "run", none)
    path = next((small_scenes / "test").glob("*.jpg"))
    expected = load(run, device="cpu")(path)
    card = json.loads((run / "model.json").read_text())
    del card["retrained"]["cells"], card["retrained"]["cell_weight"]
    (run / "model.json").write_text(json.dumps(card))
    found = load(run, device="cpu")
    assert not any(".cells." in name for name, _ in found.students.named_parameters())
    np.testing.assert_array_equal(found(path).scores, expected.scores)
    with pytest.raises(UsageError, match="its students have cells = 0; keep that"):
        small_retrain(run, small_scenes, tmp_path / "again")
    assert small_retrain(run, small_scenes, tmp_path / "on", none) == tmp_path / "on"


def test_a_run_of_before_a_setting_had_a_name_is_gone_on_with(learned, small_scenes, shared_cache, tmp_path):
    config = CONFIG.with_(cells=0, epochs=1)
    run = small_retrain(learned.run, small_scenes, tmp_path / "run", config)
    for file in (run / "run.json", run / "model.json"):
        card = json.loads(file.read_text())
        for name in ("judges", "cells", "cell_weight"):
            del card["retrained"][name]
        file.write_text(json.dumps(card))
    said = []
    small_retrain(learned.run, small_scenes, run, config, say=said.append)
    assert f"{run} is learned already" in said
    for changes, difference in (
        ({"cells": 8}, "retrained.cells: 0 in the run, 8 now"),
        ({"folds": 3}, "retrained.folds"),
    ):
        with pytest.raises(UsageError, match=difference):
            small_retrain(learned.run, small_scenes, run, config.with_(**changes))


def test_a_first_run_of_before_a_setting_had_a_name_is_gone_on_with(small_scenes, shared_cache, tmp_path):
    run = small_train(small_scenes / "train-tags.csv", tmp_path / "run", epochs=1)
    for file in (run / "run.json", run / "model.json"):
        card = json.loads(file.read_text())
        del card["config"]["settings"]["size_weight"]
        file.write_text(json.dumps(card))
    said = []
    small_train(small_scenes / "train-tags.csv", run, epochs=1, say=said.append)
    assert f"{run} is learned already" in said


def test_several_judges_of_an_image(learned, small_scenes, shared_cache, tmp_path):
    config = CONFIG.with_(folds=4, judges=2, epochs=1)
    run = small_retrain(learned.run, small_scenes, tmp_path / "four", config)
    students = load(run, device="cpu").students
    assert [len(students.of(key)) for key in (next(iter(students.keys)), None)] == [2, 4]
    with pytest.raises(UsageError, match="its students have judges = 2; keep that"):
        small_retrain(run, small_scenes, tmp_path / "again", CONFIG.with_(folds=4))
    again = small_retrain(run, small_scenes, tmp_path / "on", config)
    assert weights_of(again) != weights_of(run)
    for folds, judges in ((2, 2), (4, 4), (4, 0)):
        with pytest.raises(UsageError, match="judges"):
            CONFIG.with_(folds=folds, judges=judges)


def test_every_student_learns_from_something():
    """Fold 0 alone leaves nothing for the first of two students; folds 0 and 1 leave nothing for one of four with two judges."""
    config, source = CONFIG.with_(folds=2), Source(Path("photos"))
    keys = [f"{fold:08x}" for fold in range(4)]
    _all_learn(config, keys[:2], source)
    with pytest.raises(MelmError, match=r"photos: 1 images with objects are too few for 2 students.*--folds 1"):
        _all_learn(config, keys[:1], source)
    _all_learn(config.with_(folds=1), keys[:1], source)
    with pytest.raises(MelmError, match="too few for 4 students"):
        _all_learn(config.with_(folds=4, judges=2), keys[:2], source)
    _all_learn(config.with_(folds=4, judges=2), keys[::2], source)


def test_an_image_without_a_tag_is_not_learned_from(learned, small_scenes, shared_cache, tmp_path):
    lines = (small_scenes / "train-tags.csv").read_text().splitlines()
    other = small_scenes / "one-untagged.csv"
    other.write_text("\n".join([lines[0], lines[1].partition(",")[0] + ",", *lines[2:]]) + "\n")
    run = retrain(learned.run, other, tmp_path / "run", CONFIG.with_(epochs=1), device="cpu", workers=1)
    students = load(run, device="cpu").students
    untagged = content_key(read_bytes(small_scenes / lines[1].partition(",")[0]))
    assert len(students.keys) == 10 and len(students.of(untagged)) == 2


@pytest.mark.parametrize(
    ("images", "expected"), [(7, (63, 1)), (15, (30, 1)), (16, (28, 2)), (219, (3, 2)), (9999, (2, 2))]
)
def test_few_images_are_seen_more_often_by_one_student(images, expected):
    """At least 220 steps of two images; and eight images for each of two students."""
    config = CONFIG.for_images([SimpleNamespace(tags=("a",))] * images + [SimpleNamespace(tags=())] * 5)
    assert (config.epochs, config.folds) == expected
    assert WHOLE.for_images([]) == WHOLE  # Fast R-CNN's own way


def test_one_student_for_all(learned, small_scenes, shared_cache, tmp_path):
    run = small_retrain(learned.run, small_scenes, tmp_path / "one", CONFIG.with_(folds=1, epochs=1))
    students = load(run, device="cpu").students
    assert len(students.students) == 1 and len(students.of(next(iter(students.keys)))) == 1


def test_another_branch_can_teach(learned, taught, small_scenes, shared_cache, tmp_path):
    config = CONFIG.with_(epochs=1, teacher="discovery")
    run = small_retrain(learned.run, small_scenes, tmp_path / "run", config)
    assert (
        load(run, device="cpu").students.teacher == "discovery" and load(taught, device="cpu").students.teacher == "all"
    )
    kept = [np.load(path / "objects.npz")["boxes"].tolist() for path in (run, taught)]
    assert kept[0] != kept[1]
    with pytest.raises(UsageError, match="unknown teacher 'best'"):
        small_retrain(learned.run, small_scenes, tmp_path / "other", CONFIG.with_(teacher="best"))


def test_what_cannot_be_retrained_is_said(learned, small_scenes, shared_cache, tmp_path):
    with pytest.raises(UsageError, match="its classes are even, odd"):
        retrain(learned.run, small_scenes / "few.csv", tmp_path / "a", CONFIG, device="cpu", workers=1)
    with pytest.raises(UsageError, match="Did you mean 'folds'"):
        CONFIG.with_(fold=2)
    with pytest.raises(UsageError, match="at least 1"):
        CONFIG.with_(folds=0)
    with pytest.raises(UsageError, match=r"cell_weight is -1\.0; 0 or more"):
        CONFIG.with_(cell_weight=-1.0)
    with pytest.raises(UsageError, match="epochs is 'three'"):
        CONFIG.with_(epochs="three")
    with pytest.raises(UsageError, match="Name another --out"):
        small_retrain(learned.run, small_scenes, learned.run, overwrite=True)
    with pytest.raises(UsageError, match="Name another --out"):
        small_retrain(learned.run, small_scenes, tmp_path / "a", others=[tmp_path / "a"], overwrite=True)
    np.savez(tmp_path / "boxes.npz", a=np.zeros((1, 4)))
    with pytest.raises(UsageError, match=r"found its boxes itself .*boxes\.npz has no use"):
        small_retrain(learned.run, small_scenes, tmp_path / "b", proposals_file=ReadyMade(tmp_path / "boxes.npz"))
    resnet = small_train(small_scenes / "train-tags.csv", tmp_path / "resnet", epochs=1, backbone="resnet18")
    with pytest.raises(UsageError, match="resnet18: its trunk is not made in two parts"):
        small_retrain(resnet, small_scenes, tmp_path / "b")


def test_a_damaged_map_is_made_again(learned, taught, small_scenes, copied_cache, tmp_path):
    folder = MapStore(frozen_trunk(load(learned.run, device="cpu").network, CONFIG), CONFIG, copied_cache).folder
    whole = {path: path.read_bytes() for path in folder.rglob("*.npz")}
    path = sorted(whole)[0]
    path.write_bytes(whole[path][:100])
    small_retrain(learned.run, small_scenes, tmp_path / "run", CONFIG.with_(epochs=1))
    assert path.read_bytes() == whole[path]
    path.write_bytes(bytes(200) + whole[path][200:])  # its list of contents, at the end, is whole
    again = CONFIG.with_(epochs=1, seed=3)
    with pytest.raises(MelmError, match=r"gone or damaged\. Run the same command again"):
        small_retrain(learned.run, small_scenes, tmp_path / "again", again)
    small_retrain(learned.run, small_scenes, tmp_path / "again", again)
    assert path.read_bytes() == whole[path]


def test_the_command(learned, small_scenes, shared_cache, tmp_path, command):
    settings = [f"--set={name}={json.dumps(getattr(CONFIG, name))}" for name in ("scales", "hidden", "positives")]
    result = command(
        "retrain", learned.run, small_scenes / "train-tags.csv", "--out", tmp_path / "run", "--epochs", "1", *settings
    )
    assert result.returncode == 0, result.stderr
    assert "objects found in 13 images" in result.stdout and "few images" not in result.stdout
    shutil.rmtree(tmp_path / "run")
    result = command(
        "retrain", learned.run, small_scenes / "train-tags.csv", "--out", tmp_path / "run", "--set", "fold=3"
    )
    assert result.returncode == 2 and "Did you mean 'folds'" in result.stderr


# A network that learns as a whole.

WHOLE = RetrainConfig().with_(
    backbone="resnet18", weights="none", scales=(64, 80), positives=4, negatives=6, epochs=2, accumulate=2
)


@pytest.fixture(scope="module")
def whole(learned, small_scenes, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MELM_CACHE", str(learned.cache))
        return small_retrain(learned.run, small_scenes, tmp_path_factory.mktemp("whole") / "run", WHOLE)


def test_another_backbone_brings_its_own_settings():
    assert WHOLE.whole and (WHOLE.optimizer, WHOLE.folds, WHOLE.teacher_weight) == ("sgd", 1, 0.0)
    assert (WHOLE.epochs, WHOLE.drop_after) == (2, 1) and WHOLE.with_(epochs=8).drop_after == 4
    assert RetrainConfig().with_(backbone="vgg16").drop_after == 6
    assert RetrainConfig().with_(backbone="vgg16", folds=3, learning_rate=0.5).folds == 3
    assert not RetrainConfig().with_(backbone="lite0").whole and RetrainConfig().with_(backbone="lite0").folds == 2
    for wrong in (
        {"learning_rate": -1.0},
        {"weight_decay": -1.0},
        {"precision": "half"},
        {"tail_share": -1.0},
        {"backbone": "resnet5"},
        {"ignore": 0.0},
        {"box_weight": -1.0},
        {"bins": -1},
        {"scales": (3,)},
    ):
        with pytest.raises(UsageError):
            RetrainConfig().with_(**wrong)


def test_a_network_that_learned_as_a_whole_detects(whole, small_scenes, shared_cache):
    path = next((small_scenes / "test").glob("*.jpg"))
    detector = melm.load(whole, device="cpu")
    found = detector(path)
    assert len(found) and (found.boxes >= 0).all() and (found.scores <= 1).all()
    pixels = read_image(path)
    proposals = compute_proposals(pixels, detector.proposal_settings)
    (output,) = detector.outputs(pixels, proposals)
    torch.testing.assert_close(output.fused, output.student[:, :-1])  # it speaks alone
    _, placed = detector.judged([output], proposals)
    assert not np.array_equal(placed.boxes, proposals.boxes)  # boxes are not bound to the proposals
    assert len(melm.load(whole, DetectSettings(views="flip"), "cpu")(path))
    result = melm.evaluate(whole, small_scenes / "test.json")
    assert 0 <= result.corloc.mean <= 1


def test_a_whole_network_that_was_killed_goes_on(learned, whole, small_scenes, shared_cache, tmp_path):
    def stop(epochs, network, strength):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_retrain(learned.run, small_scenes, tmp_path / "run", WHOLE, after_epoch=stop)
    small_retrain(learned.run, small_scenes, tmp_path / "run", WHOLE)
    assert weights_of(tmp_path / "run") == weights_of(whole)


def test_one_kind_after_another(whole, taught, small_scenes, shared_cache, tmp_path):
    """A run whose students are of one kind can teach one of another, or go on."""
    again = small_retrain(whole, small_scenes, tmp_path / "again", WHOLE.with_(epochs=1))
    assert weights_of(again) != weights_of(whole)
    other = small_retrain(taught, small_scenes, tmp_path / "other", WHOLE.with_(epochs=1))
    assert load(other, device="cpu").students.config.backbone == "resnet18"
    with pytest.raises(UsageError, match=r"its students have scales = \(64, 80\)"):
        small_retrain(whole, small_scenes, tmp_path / "c", WHOLE.with_(scales=(64, 96)))


def test_other_weights_under_a_run_that_goes_on_are_refused(learned, small_scenes, shared_cache, tmp_path):
    file, config = tmp_path / "resnet18.pth", WHOLE.with_(weights=str(tmp_path / "resnet18.pth"))

    def stop(epochs, network, strength):
        raise KeyboardInterrupt

    torch.save(build_backbone("resnet18").state_dict(), file)
    with pytest.raises(KeyboardInterrupt):
        small_retrain(learned.run, small_scenes, tmp_path / "run", config, after_epoch=stop)
    torch.save(build_backbone("resnet18").state_dict(), file)
    with pytest.raises(UsageError, match="student weights"):
        small_retrain(learned.run, small_scenes, tmp_path / "run", config)


@pytest.mark.parametrize(
    "config", [CONFIG, CONFIG.with_(tail_share=0.1), WHOLE], ids=["fixed", "last stages learn", "whole"]
)
def test_retraining_in_bfloat16(learned, small_scenes, shared_cache, tmp_path, config, bf16):
    """Stopped and gone on with, the same as in one go, and not what single precision learns; images can be looked at, on another
    processor too."""
    bf16(True)
    config = config.with_(precision="bf16", epochs=2, second_look=5)

    def stop(epochs, network, strength):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_retrain(learned.run, small_scenes, tmp_path / "two", config, after_epoch=stop)
    run, again = (small_retrain(learned.run, small_scenes, tmp_path / name, config) for name in ("one", "two"))
    exact = small_retrain(learned.run, small_scenes, tmp_path / "exact", replace(config, precision="fp32"))
    one, two, other = map(weights_of, (run, again, exact))
    assert one == two != other and one.keys() == other.keys()
    image = min((small_scenes / "train").glob("*.jpg"))
    detector = load(run, device="cpu")
    fast, exactly = detector(image), detector.exact()(image)
    assert np.array_equal(detector(image).scores, fast.scores) and detector.exact().exact() is not detector
    bf16(False)
    plain = load(run, device="cpu")(image)
    assert np.array_equal(exactly.scores, plain.scores)
    assert fast.scores[0] == pytest.approx(plain.scores[0], rel=0.1)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_what_the_cpu_cannot_do_is_said_first(learned, small_scenes, tmp_path, precision, bf16):
    bf16(False)
    with pytest.raises(UsageError, match=f"{precision}: too slow on this CPU"):
        small_retrain(learned.run, small_scenes, tmp_path / "run", CONFIG.with_(precision=precision))
    assert not (tmp_path / "run").exists()


def test_images_learned_from_before_are_remembered(taught, small_scenes, shared_cache, tmp_path):
    """Those of a first round stay known when the second learns from others."""
    before = load(taught, device="cpu").students.keys
    source = Source(small_scenes / "train-tags.csv", limit=12)
    again = retrain(taught, source, tmp_path / "run", CONFIG.with_(epochs=1), device="cpu", workers=1)
    assert load(again, device="cpu").students.keys == before


@pytest.mark.parametrize(
    ("part", "name", "said"),
    [("retrained", "bins", "retrained by an earlier"), ("config", "named_components", "learned by an earlier")],
)
def test_a_run_of_an_earlier_version_says_so(taught, tmp_path, part, name, said):
    run = shutil.copytree(taught, tmp_path / "run")
    card = json.loads((run / "model.json").read_text())
    del card[part][name]
    (run / "model.json").write_text(json.dumps(card))
    with pytest.raises(MelmError, match=said):
        load(run, device="cpu")


def test_a_run_from_before_sharper_students_still_detects(learned, small_scenes, shared_cache, tmp_path):
    config = CONFIG.with_(epochs=1, sharp=False, tail_share=0.1)
    run = small_retrain(learned.run, small_scenes, tmp_path / "run", config)
    path = next((small_scenes / "test").glob("*.jpg"))
    expected = load(run, device="cpu")(path)
    card = json.loads((run / "model.json").read_text())
    del card["retrained"]["sharp"]
    (run / "model.json").write_text(json.dumps(card))
    found = load(run, device="cpu")
    assert found.students.config == config
    np.testing.assert_array_equal(found(path).boxes, expected.boxes)
    with pytest.raises(UsageError, match="its students have sharp = False"):
        small_retrain(run, small_scenes, tmp_path / "again")


def test_a_trunk_that_learned_along_teaches_a_whole_network(small_scenes, tmp_path):
    run = small_train(small_scenes / "train-tags.csv", tmp_path / "tuned", **TUNED, epochs=1)
    new = small_retrain(run, small_scenes, tmp_path / "new", WHOLE.with_(epochs=1))
    assert len(melm.load(new, device="cpu")(next((small_scenes / "test").glob("*.jpg"))))
    with pytest.raises(UsageError, match=r"learned along.*--backbone resnet50"):
        small_retrain(run, small_scenes, tmp_path / "own")


def test_weights_of_a_file(learned, small_scenes, shared_cache, tmp_path):
    """Those of torchvision's layout; a file that is none, or of another network, is said."""
    backbone = build_backbone("resnet18")
    file = tmp_path / "resnet18.pth"
    torch.save({**backbone.state_dict(), "fc.weight": torch.zeros(10, 512), "fc.bias": torch.zeros(10)}, file)
    said = []
    config = WHOLE.with_(weights=str(file), epochs=1, learning_rate=1e-9)
    run = small_retrain(learned.run, small_scenes, tmp_path / "run", config, say=said.append)
    student = load(run, device="cpu").students.students[0]
    torch.testing.assert_close(student.backbone.layer3[0].conv1.weight, backbone.layer3[0].conv1.weight)
    assert any("resnet18" in text and str(file) in text for text in said)
    for wrong, words in (("none.pth", "none.pth"), ("package", "resnet18")):
        with pytest.raises(MelmError, match=words):
            small_retrain(learned.run, small_scenes, tmp_path / "wrong", WHOLE.with_(weights=wrong))
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(MelmError, match=r"text\.pth"):
        small_retrain(learned.run, small_scenes, tmp_path / "wrong", WHOLE.with_(weights=str(tmp_path / "text.pth")))
    with pytest.raises(UsageError, match="weights are for a network that learns as a whole"):
        small_retrain(learned.run, small_scenes, tmp_path / "wrong", CONFIG.with_(weights=str(file)))
    with pytest.raises(UsageError, match="--backbone lite2: the trunk of this run is lite0"):
        small_retrain(learned.run, small_scenes, tmp_path / "wrong", CONFIG.with_(backbone="lite2"))


# What a student is taught.


def test_what_is_left_out_is_neither_object_nor_background(taught, small_scenes, shared_cache):
    config = CONFIG.with_(ignore=0.2, negatives=60)
    lessons, detector = lessons_of(taught, small_scenes, config)
    looking, left_out = Looking(detector), 0
    objects = []
    for image, key in zip(lessons.images, lessons.ready.keys, strict=True):
        found = looking.found(key, image.path)
        scores = looking.outputs(key, image.path)[0][0].prob("all").numpy()
        numbers = [detector.classes.index(tag) for tag in image.tags]
        objects.append(Objects.joined([objects_of_tag(found.boxes, scores[:, k], k, config) for k in numbers]))
    lessons = Lessons(lessons.ready, objects, config, lessons.maps, 160.0)
    for index in lessons.order(0):
        every = objects[index]
        assert every.taught.sum() == len(lessons.images[index].tags)  # the best of each tag
        left_out += int((~every.taught).sum())
        lesson = lessons.load(index, 0)
        found = lessons.ready.proposals.get(lessons.ready.keys[index])
        there, rows = by_scale(torch.from_numpy(found.boxes), config.scales, found.width, found.height, 160.0)
        known = {tuple(box.tolist()): int(row) for box, row in zip(torch.cat(there), rows, strict=True)}
        own = found.boxes[[known[tuple(box.tolist())] for box in torch.cat(lesson.boxes)]]
        background = (lesson.target == len(detector.classes)).numpy() & (lesson.weight > 0).numpy()
        if not every.taught.all():
            assert (iou(own[background], every.boxes[~every.taught]) < config.object_iou).all()
    assert left_out > 0


def test_boxes_on_an_object_are_taught_to_move_there(taught, small_scenes, shared_cache):
    lessons, detector = lessons_of(taught, small_scenes)
    for index in lessons.order(0):
        lesson = lessons.load(index, 0)
        found = lessons.ready.proposals.get(lessons.ready.keys[index])
        there, rows = by_scale(torch.from_numpy(found.boxes), CONFIG.scales, found.width, found.height, 160.0)
        known = {tuple(box.tolist()): int(row) for box, row in zip(torch.cat(there), rows, strict=True)}
        own = torch.from_numpy(found.boxes[[known[tuple(box.tolist())] for box in torch.cat(lesson.boxes)]])
        objects, taught_boxes = lesson.target < len(detector.classes), lessons.objects[index].boxes
        assert (lesson.moving[objects] > 0).all()
        arrived = moved(own, lesson.shift, found.width, found.height)[lesson.moving > 0]
        for box in arrived:
            assert np.abs(taught_boxes - box.numpy()).max(axis=1).min() < 0.1
        assert not lesson.shift[lesson.moving == 0].any()


def test_the_loss_of_a_whole_network_is_the_mean_over_boxes(whole, small_scenes, shared_cache):
    detector = load(whole, device="cpu")
    images = read_tags(Source(small_scenes / "train-tags.csv"))
    keys = tuple(content_key(read_bytes(image.path)) for image in images)
    ready, config = Ready(images, keys, Looking(detector).proposals), WHOLE.with_(weigh=False)
    lessons = Lessons(ready, kept_objects(whole / "objects.npz"), config, None, 0.0)
    for index in lessons.useful:
        lesson = lessons.load(index, 0)
        torch.testing.assert_close(lesson.weight, torch.full((len(lesson.target),), 1 / len(lesson.target)))


def test_a_whole_network_says_the_same_of_boxes_in_any_number(monkeypatch):
    student = FastRCNN(build_backbone("resnet18"), 3).eval()
    corner = torch.rand(11, 2) * 60
    boxes, image = torch.cat([corner, corner + 20 + torch.rand(11, 2) * 40], dim=1), torch.randint(0, 255, (128, 96, 3))
    with torch.no_grad():
        together = student([None, image.byte()], [boxes[:0], boxes])
        monkeypatch.setattr("melm.model.student.AT_ONCE", 4)
        apart = student([None, image.byte()], [boxes[:0], boxes])
    torch.testing.assert_close(apart.log_prob, together.log_prob)
    torch.testing.assert_close(apart.shift, together.shift)


@pytest.mark.parametrize("flip", [False, True])
def test_a_view_of_pixels(whole, small_scenes, shared_cache, flip):
    """What is shown of an image are its boxes where they lie in it, at a scale, mirrored or not."""
    detector = load(whole, device="cpu")
    images = read_tags(Source(small_scenes / "train-tags.csv"))
    keys = tuple(content_key(read_bytes(image.path)) for image in images)
    ready = Ready(images, keys, Looking(detector).proposals)
    lessons = Lessons(ready, kept_objects(whole / "objects.npz"), WHOLE, None, 0.0)
    seeds = [
        s
        for s in range(40)
        if lessons.of_pixels(0, ready.proposals.get(keys[0]), np.random.default_rng(s)).flip == flip
    ]
    found = ready.proposals.get(keys[0])
    view = lessons.of_pixels(0, found, np.random.default_rng(seeds[0]))
    assert view.there.all()
    seen, boxes, order = view.show(np.arange(len(found)))
    (scale,) = [s for s, image in enumerate(seen) if image is not None]
    assert max(seen[scale].shape[:2]) == WHOLE.scales[scale] and order.tolist() == list(range(len(found)))
    back = boxes[scale] * max(found.width, found.height) / WHOLE.scales[scale]
    expected = torch.from_numpy(found.boxes)
    torch.testing.assert_close(back, mirrored_boxes(expected, found.width) if flip else expected, rtol=0.02, atol=1.0)
