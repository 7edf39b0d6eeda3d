"""A detector as ONNX: the same scores as in PyTorch, or no file."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import melm
from learners import TUNED, small_config, small_train
from melm.commands.exporting import export
from melm.detect.detector import Detector, DetectSettings
from melm.errors import MelmError, UsageError
from melm.export import onnx_model, onnx_operators, onnx_parity
from melm.export.onnx_graph import Scorer
from melm.export.onnx_parity import DRAWN, drawn, inputs_of
from melm.learn.model_file import Learned
from melm.learn.network import build_network
from melm.learn.retrain import retrain
from melm.learn.students import RetrainConfig
from melm.model import evidence, trunks
from melm.model.backbones import build_backbone
from melm.model.branches import Regions

EXAMPLES = [drawn(*sizes, seed) for seed, sizes in enumerate(DRAWN)]


@pytest.fixture(scope="module")
def runtime():
    """onnxruntime, where it is."""
    pytest.importorskip("onnx", reason="onnx is not installed")
    return pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


@pytest.fixture
def exporting(command, monkeypatch):
    """Runs `melm export` in this process."""
    from melm.cli import cli

    monkeypatch.setitem(cli.commands, "export", export)
    return lambda *arguments: command("export", *arguments)


@pytest.fixture(scope="module")
def taught(learned, small_scenes, tmp_path_factory):
    """A run that was retrained: two students."""
    config = RetrainConfig(scales=(96, 128), hidden=16, positives=4, negatives=6, epochs=1, drop_after=1, accumulate=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MELM_CACHE", str(learned.cache))
        out = tmp_path_factory.mktemp("taught") / "run"
        return retrain(learned.run, small_scenes / "train-tags.csv", out, config, device="cpu", workers=1)


def detector_of(method="MELM", classes=("a", "b", "c"), branch=None, **changes):
    """A detector that learned nothing, with layers that tell boxes apart."""
    config = small_config(method, **{"scales": (64, 96), **changes})
    torch.manual_seed(0)
    network = build_network(config, len(classes)).eval()
    if config.trunk == "frozen":  # as if it had been fitted
        pixels, proposals = EXAMPLES[1]
        seen = network.trunk.look_wide(pixels, torch.from_numpy(proposals.boxes))
        network.trunk.of_map.mean.copy_(seen.mean(dim=0))
        network.trunk.of_map.basis.normal_().div_(seen.std(dim=0).norm())
        if network.trunk.of_names is not None:
            network.trunk.of_names.fit(network.trunk.names(seen))
    for parameter in [*network.melm.discovery.parameters(), *network.melm.localization.parameters()]:
        parameter.data.normal_(std=0.3)
    learned = Learned(Path("run"), {}, config, classes, network, strength=0.3)
    return Detector(learned, DetectSettings(branch), device="cpu")


# What was written anew gives what its original gives.


@settings(max_examples=40)
@given(
    width=st.integers(1, 300),
    height=st.integers(1, 300),
    side=st.sampled_from([32, 96, 150, 192, 288]),
    seed=st.integers(0, 99),
)
def test_resized_as_opencv_does_to_the_bit(width, height, side, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    ours = onnx_operators.resized(torch.from_numpy(pixels), side).numpy()
    np.testing.assert_array_equal(ours, trunks.resized(pixels, side))


@given(
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    count=st.integers(0, 9),
    bins=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_means_by_shares_are_means_by_sums(height, width, count, bins, seed):
    random = np.random.default_rng(seed)
    map = torch.from_numpy(random.normal(size=(height, width, 3)).astype(np.float32))
    limit = np.array([width, height] * 2) * 16
    corners = random.uniform(-0.2, 1.2, (count, 4)) * limit  # some reach over the edge of the map
    boxes = np.concatenate([np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])], 1)
    boxes = torch.from_numpy(boxes.round(random.integers(0, 3)).astype(np.float32))
    parts = trunks.region_parts(boxes, 3, bins)
    ours = onnx_operators.means(map, onnx_operators.region_weights(*parts, map, 16))
    torch.testing.assert_close(ours, torch.cat(trunks.means(map, *parts, 16), dim=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "size"), [("lite0", (64, 95)), ("lite0", (65, 98)), ("lite0", (7, 1)), ("lite2", (33, 50))]
)
def test_layers_that_read_the_size_when_they_run(name, size):
    backbone = build_backbone(name).eval()
    image = torch.randn(1, 3, *size)
    with torch.no_grad():
        other = onnx_operators.sized_when_run(backbone)
        assert torch.equal(other.trunk(image), backbone.trunk(image))
    assert type(backbone._conv_stem) is not type(other._conv_stem)  # the detector's own is as it was


@pytest.mark.parametrize("values", [[1.0, 2.0, 5.0], [3.0], [2.0, 2.0], [0.0, 1e-7]])
def test_deviations_without_a_choice(values):
    values = torch.tensor(values)
    assert torch.equal(onnx_operators.in_deviations(values), evidence.in_deviations(values))


def test_the_logarithm_of_a_sigmoid():
    logits = torch.linspace(-120, 120, 481)
    torch.testing.assert_close(onnx_operators.log_sigmoid(logits), torch.nn.functional.logsigmoid(logits))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"branch": "discovery"},
        {"branch": "localization 2"},
        {"branch": "mean"},
        {"scoring": "joint"},
        {"feedback": "previous", "boxes_a_step": 0},
        {"feedback": "none"},
        {"method": "WSDDN"},
        {"method": "OICR", "contrast_weight": 0.0},
        {"classes": ("a",)},
        {"prior_weight": 0.0, "score_weight": 0.0},
        TUNED,
        {**TUNED, "prior_weight": 0.0},
        {"backbone": "resnet18"},
    ],
    ids=lambda changes: ", ".join(f"{k} {v}" for k, v in changes.items())[:40] or "MELM",
)
def test_what_is_traced_says_what_the_detector_says(changes):
    detector = detector_of(**changes)
    scorer = Scorer(detector).eval()
    given = detector.config.settings
    assert scorer.reads == [
        "image", "boxes", *(["prior"] if given.prior_weight else []), *(["score"] if given.score_weight else [])
    ]  # fmt: skip
    for example in EXAMPLES[1:]:
        with torch.no_grad():
            ours, places = (
                x.numpy() for x in scorer(*map(torch.from_numpy, inputs_of(example, scorer.reads).values()))
            )
        expected = detector.scores(*example)
        np.testing.assert_array_equal(places, example[1].boxes)
        assert len(expected) == 1 or (expected.std(axis=0) > 1e-2 * expected.mean(axis=0)).all()  # not all alike
        np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=1e-5 * expected.max())


# What is exported.


@pytest.fixture(scope="module")
def written(runtime, learned, small_scenes, tmp_path_factory):
    """The run `learned` as ONNX, compared on one of its test images, too."""
    detector, path = melm.load(learned.run, device="cpu"), tmp_path_factory.mktemp("written") / "new" / "it.onnx"
    return onnx_model.export_onnx(detector, path, [small_scenes / "test" / "00001.jpg"])


def assert_same_scores(runtime, path, detector, reads):
    """Of the file alone, on images that it was not compared on."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert [wanted.name for wanted in session.get_inputs()] == reads
    for example in (drawn(160, 120, 30, seed=8), drawn(151, 230, 17, seed=9)):
        expected = detector.scores(*example)
        found = session.run(None, inputs_of(example, reads))[0]
        assert found.shape == expected.shape and found.dtype == np.float32
        assert np.abs(found - expected).max() <= 1e-4 * expected.max()
    return session


def test_the_file_gives_the_scores_of_the_run(learned, runtime, written):
    detector = melm.load(learned.run, device="cpu")
    session = assert_same_scores(runtime, written.path, detector, ["image", "boxes", "prior", "score"])
    card = json.loads(written.path.with_name("it.onnx.json").read_text())
    assert (
        card == json.loads(json.dumps(written.card))
        and card["classes"] == list(detector.classes)
        and card["branch"] == "all"
    )
    assert list(card["inputs"]) == ["image", "boxes", "prior", "score"]
    assert card["outputs"]["scores"]["shape"] == ["N", len(detector.classes)]
    assert card["scales"] == [96, 144] and card["after"] == {"agree": 0.0, "nms": 0.3, "vote": 0.6, "max_boxes": 300}
    assert card["proposals"]["method"] == "edge-boxes" and card["versions"]["melm"] == melm.__version__
    assert card["parity"]["difference"] <= card["tolerance"] == 1e-4
    assert card["parity"]["proposals"][:3] == [300, 40, 1] and len(card["parity"]["proposals"]) == 4
    assert card["sha256"] == hashlib.sha256(written.path.read_bytes()).hexdigest()
    inside = session.get_modelmeta().custom_metadata_map
    assert json.loads(inside["classes"]) == card["classes"]
    assert json.loads(inside["melm"]) == {k: v for k, v in card.items() if k not in ("sha256", "tolerance", "parity")}
    assert sorted(each.name for each in written.path.parent.iterdir()) == ["it.onnx", "it.onnx.json"]


def test_the_file_of_a_retrained_run(taught, runtime, tmp_path):
    written = onnx_model.export_onnx(melm.load(taught, device="cpu"), tmp_path / "it.onnx")
    assert written.card["branch"] == "fused" and list(written.card["inputs"]) == ["image", "boxes", "prior", "score"]
    assert (written.card["scales"], written.card["student_scales"]) == ([96, 144], [96, 128])
    assert written.parity.difference <= 1e-4 and written.parity.same_best == 1 and written.parity.pixels <= 0.01


def test_the_file_of_a_run_that_learned_in_bfloat16(learned, taught, runtime, tmp_path, bf16):
    """It is in single precision, and so is what it is compared with."""
    bf16(True)
    for run in (learned.run, taught):
        detector = melm.load(run, device="cpu")
        detector.network.precision = detector.network.trunk.precision = "bf16"
        if detector.students:
            detector.students.config = replace(detector.students.config, precision="bf16")
        written = onnx_model.export_onnx(detector, tmp_path / "it.onnx")
        assert written.parity.difference <= 1e-4 and written.parity.same_best == 1


@pytest.mark.parametrize("looked_at", [7, 10_000])
def test_the_file_of_students_that_look_twice(taught, runtime, tmp_path, looked_at):
    detector = melm.load(taught, device="cpu")
    detector.students.config = replace(detector.students.config, second_look=looked_at)
    written = onnx_model.export_onnx(detector, tmp_path / "it.onnx")
    assert written.parity.difference <= 1e-4 and written.parity.same_best == 1 and written.parity.pixels <= 0.01


def test_the_file_of_a_trunk_that_learned_along(runtime, tmp_path):
    detector = detector_of(**{**TUNED, "scales": (96, 64, 80)})
    written = onnx_model.export_onnx(detector, tmp_path / "it.onnx", opset=20)
    assert written.card["scales"] == [80] and written.card["after"]["vote"] == 0  # the scale at which it detects
    # the mean of localization branches makes no use of the prior, and this method has no score
    assert_same_scores(runtime, written.path, detector, ["image", "boxes"])


def test_the_file_of_a_network_that_learned_as_a_whole(learned, small_scenes, runtime, shared_cache, tmp_path):
    config = RetrainConfig().with_(
        backbone="resnet18", weights="none", scales=(64, 80), epochs=1, positives=4, negatives=6
    )
    run = retrain(learned.run, small_scenes / "train-tags.csv", tmp_path / "run", config, device="cpu", workers=1)
    written = onnx_model.export_onnx(melm.load(run, device="cpu"), tmp_path / "it.onnx")
    assert written.card["branch"] == "fused" and written.card["student_scales"] == [64, 80]
    assert written.parity.difference <= 1e-4 and written.parity.pixels <= 0.01


def test_the_file_of_a_run_with_evidence_of_size(small_scenes, runtime, shared_cache, tmp_path):
    run = small_train(small_scenes / "few.csv", tmp_path / "run", size_weight=0.35)
    written = onnx_model.export_onnx(melm.load(run, device="cpu"), tmp_path / "it.onnx")
    assert written.parity.difference <= 1e-4


def test_the_file_of_students_whose_stages_learned(learned, small_scenes, runtime, shared_cache, tmp_path):
    config = RetrainConfig(
        **{"tail_share": 0.1, "scales": (96, 128), "hidden": 16, "positives": 4, "negatives": 6},
        **{"epochs": 1, "drop_after": 1, "accumulate": 2},
    )
    run = retrain(learned.run, small_scenes / "train-tags.csv", tmp_path / "run", config, device="cpu", workers=1)
    detector = melm.load(run, device="cpu")
    with torch.no_grad():
        # On a random network they are sure of everything (log p at its floor), where PyTorch's own kernels, two ways to compute a
        # convolution, already differ by about the limit
        far = max(float(detector.outputs(*example)[0].student.abs().max()) for example in EXAMPLES[1:])
        for student in detector.students.students:
            student.verdict.of_class.weight.mul_(10 / far)
            student.verdict.of_class.bias.mul_(10 / far)
    written = onnx_model.export_onnx(detector, tmp_path / "it.onnx")
    assert written.parity.difference <= 1e-4 and written.parity.pixels <= 0.01


@pytest.mark.parametrize("branch", ["student", "fused", "all"])
def test_every_branch_of_a_retrained_run(taught, branch):
    detector = melm.load(taught, DetectSettings(branch), "cpu")
    with torch.no_grad():  # these students saw little, and would move boxes out of the picture, where they stay
        far = max(float(detector.outputs(*example)[0].shift.abs().max()) for example in EXAMPLES[1:])
        for student in detector.students.students:
            student.verdict.of_place.weight.div_(far)
            student.verdict.of_place.bias.div_(far)
    scorer = Scorer(detector).eval()
    for example in EXAMPLES[1:]:
        with torch.no_grad():
            ours, places = (
                x.numpy() for x in scorer(*map(torch.from_numpy, inputs_of(example, scorer.reads).values()))
            )
        scores, found = detector.judged(detector.outputs(*example), example[1])
        np.testing.assert_allclose(ours, scores, rtol=1e-4, atol=1e-8)  # some are 1e-24
        np.testing.assert_allclose(places, found.boxes, atol=1e-2)
        assert np.array_equal(found.boxes, example[1].boxes) == (branch == "all")


def spoiled(model):
    """A model with the weights of one branch 1% larger."""
    import onnx

    spoilt = onnx.load_from_string(model)
    (weight,) = [one for one in spoilt.graph.initializer if one.name.endswith("localization.1.of_class.weight")]
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(1.01), weight.name))
    return spoilt.SerializeToString()


def test_other_scores_are_an_error_and_no_file(learned, written, exporting, tmp_path, monkeypatch):
    path, card = tmp_path / "it.onnx", {**written.card}
    spoilt = spoiled(written.path.read_bytes())
    monkeypatch.setattr(onnx_model, "to_onnx", lambda detector, opset: (spoilt, card))
    path.write_bytes(b"one that passed")
    said = exporting(learned.run, "--onnx", path)
    assert said.returncode == 1 and not said.stdout
    assert said.stderr.startswith(f"melm: {path}: not written. Scores of ONNX Runtime and PyTorch differ by up to ")
    assert "at most 0.0001 of it was expected (--tolerance)" in said.stderr
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"one that passed"

    said = exporting(learned.run, "--onnx", path, "--tolerance", 1)  # a user may know better
    assert said.returncode == 0 and path.read_bytes() == spoilt
    assert f"{path}: " in said.stdout and "opset 17, branch all" in said.stdout
    assert "compared with PyTorch on 3 images with 300, 40, 1 proposals" in said.stdout
    assert "  in  boxes   float32  (N, 4)\n" in said.stdout and "(tolerance 1)" in said.stdout

    monkeypatch.setattr(onnx_model, "to_onnx", lambda detector, opset: (b"no model", card))
    said = exporting(learned.run, "--onnx", path)
    assert said.returncode == 1 and "melm: ONNX Runtime does not run the model: " in said.stderr


def test_a_difference_that_is_no_number_is_an_error(learned, runtime, tmp_path, monkeypatch):
    detector = melm.load(learned.run, device="cpu")
    parity = onnx_parity.Parity([1], float("nan"), float("nan"), 0.0, 1.0, 1.0, 0.1, 0.1)
    monkeypatch.setattr(onnx_model, "to_onnx", lambda detector, opset: (b"", {}))
    monkeypatch.setattr(onnx_model, "compared", lambda *given: parity)
    with pytest.raises(MelmError, match="differ by up to nan"):
        onnx_model.export_onnx(detector, tmp_path / "it.onnx")


def test_ranks():
    ours = np.array([[0.1, 0.5], [0.2, 0.4], [0.3, 0.1], [0.4, 0.0]], np.float32)
    assert onnx_parity.rank_agreement(ours, ours) == [1.0, 1.0]
    assert onnx_parity.rank_agreement(ours[::-1], ours) == [-1.0, -1.0]
    assert onnx_parity.rank_agreement(ours[[1, 0, 2, 3]], ours) == pytest.approx([0.8, 0.8])


# What cannot be.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to write was named. Add --onnx, or --onnx FILE"),
        (["--onnx", "it.json"], "--onnx it.json: a name that ends in .onnx was expected"),
        (["--onnx", "it.onnx", "--opset", "9"], "--opset is 9; 17 to 20 was expected"),
        (["--onnx", "it.onnx", "--tolerance", "0"], "--tolerance is 0.0; a number above 0 was expected"),
        (["--onnx", "it.onnx", "--branch", "al"], "unknown branch 'al'. Did you mean 'all'?"),
    ],
)
def test_wrong_use(learned, runtime, exporting, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = exporting(learned.run, *arguments)
    assert said.returncode == 2 and words in said.stderr and said.stderr.count("\n") == 1
    assert list(tmp_path.glob("it.*")) == []


def test_without_a_name_it_is_in_the_run(learned, runtime, exporting, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(onnx_model, "export_onnx", lambda detector, path, *_, **__: seen.append(path) or FakeLines())
    assert exporting(learned.run, "--onnx").returncode == 0
    assert exporting(learned.run, "--onnx", "--opset", 18).returncode == 0
    assert seen == [learned.run / "model.onnx"] * 2


class FakeLines:
    def lines(self):
        return []


def test_a_package_that_is_missing(learned, exporting, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_model, "find_spec", lambda name: None if name == "onnxruntime" else object())
    said = exporting(learned.run, "--onnx", tmp_path / "it.onnx")
    assert said.returncode == 1
    assert said.stderr == (
        "melm: onnxruntime is not installed. Install what export needs with: pip install onnx onnxruntime\n"
    )


def test_holes_in_max_pooling_have_no_operator():
    with pytest.raises(UsageError, match=r"run: the frame and the ring .* Learn on a frozen trunk \(--preset fast\)"):
        Scorer(detector_of(**{**TUNED, "surround": True}))


def test_several_views_are_not_one(learned):
    with pytest.raises(UsageError, match="a detector of one view was expected, not of views = flip"):
        Scorer(melm.load(learned.run, DetectSettings(views="flip"), "cpu"))


def test_an_image_for_a_run_on_a_file_gets_drawn_boxes(learned, small_scenes):
    detector = melm.load(learned.run, device="cpu")
    boxes = replace(detector.config.proposals, method="file", file_digest="x", file_boxes="xyxy")
    config = replace(detector.config, proposals=boxes)
    other = Detector(replace(detector.learned, config=config), device="cpu")
    pixels, proposals = onnx_parity.given(other, small_scenes / "test" / "00001.jpg")
    assert len(proposals) == 300 and (proposals.width, proposals.height) == (pixels.shape[1], pixels.shape[0])


def test_the_command_says_what_the_module_does(runtime):
    defaults = {option.name: option.default for option in export.params}
    assert (defaults["opset"], defaults["tolerance"]) == (onnx_model.OPSET, onnx_model.TOLERANCE)
    with pytest.raises(MelmError, match="there is no such run"):
        export.main(["nowhere", "--onnx"], standalone_mode=False)


def test_contrast_reads_what_was_pooled():
    """As `evidence.contrast`, which decides by value."""
    torch.manual_seed(0)
    pooled = Regions(*torch.randn(3, 5, 4))
    alike = torch.nn.functional.cosine_similarity(pooled.box, pooled.ring, dim=1)
    torch.testing.assert_close(onnx_operators.in_deviations(-alike), evidence.contrast(pooled))
