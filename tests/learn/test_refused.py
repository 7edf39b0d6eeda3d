"""What a run refuses to learn from or to go on with, in words that name it."""

import csv
import json

import pytest
from PIL import Image

from learners import small_arguments, small_config, small_train, weights_of
from melm.data import DataError
from melm.errors import MelmError, UsageError
from melm.learn.run_folder import RunFolder
from melm.learn.train import features
from melm.proposals import ProposalSettings


def everything(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def digest_of(run):
    return json.loads((run / "run.json").read_text())["data_digest"]


def test_another_configuration_is_refused_and_named(small_scenes, learned, shared_cache):
    before = everything(learned.run)
    with pytest.raises(UsageError) as refused:
        small_train(small_scenes / "train-tags.csv", learned.run, learning_rate=0.01, top=100, scales=(96, 160))
    for words in (
        str(learned.run),
        "config.learning_rate: 0.001 in the run, 0.01 now",
        "config.settings.top: 200 in the run, 100 now",
        "config.scales: [96, 144] in the run, [96, 160] now",
        "--overwrite",
    ):
        assert words in str(refused.value)
    assert "hidden" not in str(refused.value)  # only what differs
    assert everything(learned.run) == before


def one_more_tag(data):
    path = data / "train-tags.csv"
    rows = list(csv.reader(path.open()))
    names = sorted({name for _, tags in rows[1:] for name in tags.split("|") if name})
    rows[-1][1] = "|".join(names)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def one_more_byte(data):
    path = data / "train" / "00004.jpg"
    path.write_bytes(path.read_bytes() + b"\0")  # the same pixels, another file


@pytest.mark.parametrize("change", [one_more_tag, one_more_byte])
def test_other_data_is_refused_and_named(own_scenes, learned, copied_cache, tmp_path, change):
    change(own_scenes)
    before = everything(learned.run)
    with pytest.raises(UsageError, match="data digest") as refused:
        small_train(own_scenes / "train-tags.csv", learned.run)
    assert everything(learned.run) == before
    now = small_train(own_scenes / "train-tags.csv", tmp_path / "now", epochs=1)
    assert f'data digest: "{digest_of(learned.run)}" in the run, "{digest_of(now)}" now' in str(refused.value)


def test_data_that_only_moved_is_the_same(own_scenes, learned, shared_cache):
    before = weights_of(learned.run)
    small_train(own_scenes / "train-tags.csv", learned.run)
    assert weights_of(learned.run) == before


def test_another_number_of_processes_is_refused(learned):
    about = json.loads((learned.run / "run.json").read_text())
    run = RunFolder(learned.run)
    with pytest.raises(UsageError, match="processes: 1 in the run, 2 now"):
        run.open({**about, "processes": 2}, overwrite=False)
    run.open({**about, "versions": {"torch": "9"}}, overwrite=False)  # newer versions may go on
    assert run.about() == about


def test_overwrite_starts_anew_and_removes_nothing_foreign(small_scenes, learned, shared_cache, tmp_path):
    run, data = tmp_path / "run", small_scenes / "train-tags.csv"
    small_train(data, run, epochs=1, drop_after=0, learning_rate=0.01)
    (run / "notes.txt").write_text("mine")
    small_train(data, run, overwrite=True)
    assert weights_of(run) == weights_of(learned.run)
    assert (run / "notes.txt").read_text() == "mine"
    assert len(list(run.glob("checkpoint-*.safetensors"))) == 1


def test_a_foreign_folder_is_refused_and_untouched(small_scenes, shared_cache, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"precious")
    with pytest.raises(UsageError, match=r"photos is not empty and holds no run \(cat.jpg"):
        small_train(small_scenes / "train-tags.csv", tmp_path / "photos")
    assert everything(tmp_path / "photos") == {"cat.jpg": b"precious"}


def test_an_image_that_cannot_be_read_is_named_or_left_out(own_scenes, copied_cache, tmp_path, command):
    bad = own_scenes / "train" / "00003.jpg"
    bad.write_bytes(b"not a picture")
    arguments = small_arguments(own_scenes / "few.csv", tmp_path / "run", epochs=1)
    result = command(*arguments)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    for words in ("1 of 4 images cannot be used", f"{bad}: not an image", "--skip-bad"):
        assert words in result.stderr
    assert not (tmp_path / "run").exists()
    result = command(*arguments, "--skip-bad")
    assert result.returncode == 0, result.stderr
    assert f"left out: {bad}: not an image" in result.stdout and "3 images" in result.stdout
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["data"]["images"] == 3 and [str(bad) in text for text in about["left_out"]] == [True]


def test_an_image_without_proposals_is_named_or_left_out(own_scenes, copied_cache, tmp_path):
    tiny = own_scenes / "train" / "00003.jpg"
    Image.open(tiny).resize((18, 14)).save(tiny)
    settings = {"epochs": 1, "proposals": ProposalSettings("edge-boxes", 60, whole_image=False)}
    with pytest.raises(MelmError, match="1 of 4 images cannot be used") as refused:
        small_train(own_scenes / "few.csv", tmp_path / "run", **settings)
    assert f"{tiny}: no proposals (no side of at least 20 pixels)" in str(refused.value)
    said = []
    small_train(own_scenes / "few.csv", tmp_path / "run", skip_bad=True, say=said.append, **settings)
    assert any(text.startswith(f"left out: {tiny}") for text in said)


def test_if_nothing_is_left_the_images_are_still_named(own_scenes, tmp_path):
    for i in range(4):
        (own_scenes / "train" / f"0000{i}.jpg").write_bytes(b"")
    with pytest.raises(MelmError, match="no image can be used") as refused:
        small_train(own_scenes / "few.csv", tmp_path / "run", skip_bad=True)
    assert str(refused.value).count(".jpg: ") == 4


def test_a_class_whose_only_image_is_left_out_is_refused(own_scenes, tmp_path):
    bad = own_scenes / "train" / "00000.jpg"
    bad.write_bytes(b"")
    (own_scenes / "few.csv").write_text("file,tags\n" + "".join(f"train/0000{i}.jpg,class{i}\n" for i in range(4)))
    with pytest.raises(DataError, match="no image has the tag 'class0'"):
        small_train(own_scenes / "few.csv", tmp_path / "run", skip_bad=True)


def test_a_class_without_an_image_is_refused(own_scenes, tmp_path, command):
    path = own_scenes / "train.json"
    coco = json.loads(path.read_text())
    coco["categories"].append({"id": 99, "name": "unicorn"})
    path.write_text(json.dumps(coco))
    result = command(*small_arguments(path, tmp_path / "run"))
    assert result.returncode == 1 and "no image has the tag" in result.stderr
    assert "'unicorn'" in result.stderr and "--classes" in result.stderr
    assert not (tmp_path / "run").exists()


def test_one_class_in_every_image_is_refused(own_scenes, tmp_path):
    (own_scenes / "few.csv").write_text("file,tags\n" + "".join(f"train/0000{i}.jpg,thing\n" for i in range(4)))
    with pytest.raises(DataError, match=r"every image has the tag 'thing'.*images without it"):
        small_train(own_scenes / "few.csv", tmp_path / "run")


def test_one_class_in_some_images_can_be_learned(own_scenes, copied_cache, tmp_path):
    (own_scenes / "few.csv").write_text(
        "file,tags\n" + "".join(f"train/0000{i}.jpg,{'a' * (i < 2)}\n" for i in range(4))
    )
    run = small_train(own_scenes / "few.csv", tmp_path / "run", epochs=1)
    assert json.loads((run / "model.json").read_text())["classes"] == ["a"]


@pytest.mark.parametrize("kind", ["folder", "table", "untagged"])
def test_nothing_to_learn_from_is_refused(own_scenes, tmp_path, command, kind):
    data = {"folder": tmp_path / "empty", "table": own_scenes / "none.csv", "untagged": own_scenes / "none.csv"}[kind]
    if kind == "folder":
        data.mkdir()
    else:
        data.write_text("file,tags\n" + ("train/00000.jpg,\n" if kind == "untagged" else ""))
    result = command(*small_arguments(data, tmp_path / "run"))
    assert result.returncode == 1 and str(data.parent) in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


def test_settings_that_do_not_go_together_are_refused(small_scenes, shared_cache, tmp_path, command, bf16):
    data = small_scenes / "train-tags.csv"
    bf16(False)
    for work in (
        small_train,
        lambda data, out, precision: features(data, small_config(precision=precision), device="cpu"),
    ):
        with pytest.raises(UsageError, match="precision bf16: too slow on this CPU"):
            work(data, tmp_path / "run", precision="bf16")
    result = command(*small_arguments(data, tmp_path / "run"), "--set", "learning_rat=1")
    assert result.returncode == 2 and "Did you mean 'learning_rate'?" in result.stderr
    result = command(*small_arguments(data, tmp_path / "run"), "--set", "epochs")
    assert result.returncode == 2 and "NAME=VALUE was expected" in result.stderr
    assert not (tmp_path / "run").exists()
