"""The proposals command as a whole: what it keeps, what it does again, and what it says."""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import draw_scene, melm, save_scenes
from melm.data import Source, read_tags
from melm.data.images import content_key
from melm.learn.presets import learn_config
from melm.proposals import ProposalSettings, ProposalStore, ReadyMade, make_proposals, settings_for_file


def stored(cache):
    """Every stored file, by its place in the store."""
    cache = Path(cache)
    return {str(path.relative_to(cache)): path.read_bytes() for path in sorted(cache.rglob("*.npz"))}


def make(folder, cache, method="edge-boxes", workers=1):
    store = ProposalStore(ProposalSettings(method, min_side=10), cache)
    return make_proposals(read_tags(Source(folder)), store, workers), store


def test_what_is_put_is_got(tmp_path):
    store = ProposalStore(ProposalSettings(), tmp_path)
    store.prepare()
    from melm.proposals import compute_proposals

    proposals = compute_proposals(draw_scene(0)[0], store.settings)
    store.put("ab" * 16, proposals, 0.5)
    got = store.get("ab" * 16)
    np.testing.assert_array_equal(got.boxes, proposals.boxes)
    np.testing.assert_array_equal(got.prior, proposals.prior)
    assert (got.width, got.height) == (160, 120)
    assert store.get("cd" * 16) is None and store.mean_seconds() == 0.5


def test_a_moved_image_is_not_done_again_and_a_changed_one_is(tmp_path):
    photos = save_scenes(tmp_path / "photos", 4)
    done, _ = make(photos, tmp_path / "c")
    assert [d.seconds is None for d in done] == [False] * 4
    (photos / "round" / "001.png").rename(photos / "square" / "moved.png")
    Image.fromarray(draw_scene(77)[0]).save(photos / "square" / "000.png")
    done, _ = make(photos, tmp_path / "c")
    assert [d.id for d in done if d.seconds is not None] == ["square/000"]


def test_other_settings_have_their_own_place(tmp_path):
    photos = save_scenes(tmp_path / "photos", 2)
    make(photos, tmp_path / "c")
    done, _ = make(photos, tmp_path / "c", "selective-search")
    assert all(d.seconds is not None for d in done)
    assert len(stored(tmp_path / "c")) == 4


def test_two_workers_store_what_one_stores(tmp_path):
    photos = save_scenes(tmp_path / "photos", 6)
    make(photos, tmp_path / "one", workers=1)
    make(photos, tmp_path / "two", workers=2)
    assert stored(tmp_path / "one") == stored(tmp_path / "two") and len(stored(tmp_path / "one")) == 6


def test_a_damaged_file_is_made_again(tmp_path):
    photos = save_scenes(tmp_path / "photos", 2)
    done, store = make(photos, tmp_path / "c")
    whole = stored(tmp_path / "c")
    path = store.path(done[0].key)
    content = path.read_bytes()
    damaged = [b"", b"PK\x03\x04 cut", content[:-40]]
    damaged += [content[:i] + bytes([content[i] ^ 0xFF]) + content[i + 1 :] for i in range(5, len(content), 97)]
    for bad in damaged:
        path.write_bytes(bad)
        there = store.get(done[0].key)  # a flipped byte may fall where nothing is read
        assert there is None or there.boxes.shape[1] == 4
    path.write_bytes(damaged[1])
    done, _ = make(photos, tmp_path / "c")
    assert done[0].seconds is not None and done[1].seconds is None
    assert stored(tmp_path / "c") == whole


def test_a_bad_image_is_named_and_the_others_are_done(tmp_path):
    photos = save_scenes(tmp_path / "photos", 3)
    (photos / "round" / "broken.png").write_bytes(b"no image")
    result = melm("proposals", photos, "--method", "edge-boxes")
    assert result.returncode == 1
    assert "broken.png: not an image (8 bytes)" in result.stdout
    assert "4 images: 3 computed, 0 already there, 1 failed" in result.stdout
    assert "Traceback" not in result.stderr + result.stdout


def test_a_preset_says_which_boxes_learning_will_ask_for(tmp_path, monkeypatch):
    monkeypatch.setenv("MELM_CACHE", str(tmp_path / "c"))
    photos = save_scenes(tmp_path / "photos", 3)
    result = melm("proposals", photos, "--preset", "fast")
    assert result.returncode == 0, result.stderr
    store = ProposalStore(learn_config("fast").proposals)
    assert all(store.has(content_key(path.read_bytes())) for path in photos.rglob("*.png"))
    few = json.loads(melm("proposals", photos, "--preset", "fast", "--max-boxes", "50", "--json").stdout)
    assert few["settings"] == {**learn_config("fast").proposals.as_dict(), "max_boxes": 50}


@pytest.mark.parametrize("method", [("--method", "edge-boxes"), ("--file", "p.npz")])
def test_a_preset_and_another_method_contradict_each_other(tmp_path, method):
    result = melm("proposals", save_scenes(tmp_path / "photos", 1), "--preset", "fast", *method)
    assert result.returncode == 2 and "--preset says how boxes are found" in result.stderr


def test_leftovers_of_killed_writers_go_when_they_are_old(tmp_path):
    store = ProposalStore(ProposalSettings(), tmp_path)
    store.prepare()
    folder = store.folder / "ab"
    folder.mkdir()
    old, new = folder / ".x.1.a.tmp", folder / ".x.2.b.tmp"
    old.touch()
    new.touch()
    os.utime(old, (time.time() - 2 * 24 * 3600,) * 2)
    store.prepare()
    assert not old.exists() and new.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_and_started_again(tmp_path, workers):
    """SIGKILL in the middle, twice: nothing is lost, nothing done twice, and the end is that of a run left alone."""
    photos = save_scenes(tmp_path / "photos", 16, size=(320, 240))
    command = [sys.executable, "-m", "melm", "proposals", photos, "--workers", workers, "--json"]
    command = [str(part) for part in command]
    killed = os.environ | {"MELM_CACHE": str(tmp_path / "killed")}
    for enough in (2, 6):
        process = subprocess.Popen(command, env=killed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.time() + 120
        while len(stored(tmp_path / "killed")) < enough and process.poll() is None and time.time() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed"
        time.sleep(0.5)  # workers see that their parent is gone
    before = stored(tmp_path / "killed")
    assert 6 <= len(before) < 16
    last = json.loads(subprocess.run(command, env=killed, capture_output=True, check=True).stdout)
    assert last["already_there"] == len(before) and last["computed"] == 16 - len(before)
    make_alone = os.environ | {"MELM_CACHE": str(tmp_path / "alone")}
    subprocess.run(command, env=make_alone, capture_output=True, check=True)
    assert stored(tmp_path / "killed") == stored(tmp_path / "alone")
    assert {name: before[name] for name in before} == {name: stored(tmp_path / "killed")[name] for name in before}


def test_two_commands_at_once(tmp_path):
    photos = save_scenes(tmp_path / "photos", 8)
    command = [sys.executable, "-m", "melm", "proposals", str(photos), "--method", "edge-boxes", "--workers", "1"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    for process in both:
        process.stdout.close()
    together = stored(os.environ["MELM_CACHE"])
    alone = os.environ | {"MELM_CACHE": str(tmp_path / "alone")}
    subprocess.run(command, env=alone, check=True, capture_output=True)
    assert together == stored(tmp_path / "alone") and len(together) == 8
    assert not list(Path(os.environ["MELM_CACHE"]).rglob("*.tmp"))


def test_ctrl_c(tmp_path):
    photos = save_scenes(tmp_path / "photos", 30, size=(320, 240))
    process = subprocess.Popen(
        [sys.executable, "-m", "melm", "proposals", str(photos), "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a background shell has its children ignore it
    )
    deadline = time.time() + 120
    while not stored(os.environ["MELM_CACHE"]) and time.time() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "stopped. What was finished is kept" in err and "Traceback" not in err


def test_a_full_disk(tmp_path):
    """Files may not grow beyond 1 KB: the words name the file, the exit code says so, and no half file is left."""
    photos = save_scenes(tmp_path / "photos", 3)

    def full_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    result = melm("proposals", photos, "--method", "edge-boxes", "--workers", "1", preexec_fn=full_disk)
    assert result.returncode == 1
    assert ".npz: cannot be written (File too large)" in result.stderr and "make room and run again" in result.stderr
    assert not stored(os.environ["MELM_CACHE"]) and not list(Path(os.environ["MELM_CACHE"]).rglob("*.tmp"))


def test_a_place_that_cannot_be_written(tmp_path, monkeypatch):
    photos = save_scenes(tmp_path / "photos", 1)
    (tmp_path / "file").touch()
    monkeypatch.setenv("MELM_CACHE", str(tmp_path / "file" / "below"))
    result = melm("proposals", photos)
    assert result.returncode == 1 and "Name another place with MELM_CACHE" in result.stderr


def test_import_of_a_ready_made_file(tmp_path):
    photos = save_scenes(tmp_path / "photos", 2)
    boxes = {"square/000": np.array([[0, 0, 50, 50]]), "round/001": np.array([[10, 10, 90, 90], [0, 0, 30, 30]])}
    np.savez(tmp_path / "p.npz", **boxes)
    result = json.loads(melm("proposals", photos, "--file", tmp_path / "p.npz", "--json").stdout)
    assert result["computed"] == 2 and result["boxes_per_image"] == 2.5  # each with the whole image
    again = json.loads(melm("proposals", photos, "--file", tmp_path / "p.npz", "--json").stdout)
    assert again["already_there"] == 2


def test_import_of_another_list_for_the_same_images(tmp_path):
    """A list without ids goes by the order of the data: another order means other boxes, whatever is in the store."""
    photos = save_scenes(tmp_path / "photos", 2)
    (tmp_path / "p.pkl").write_bytes(pickle.dumps([np.array([[0, 0, 50, 50]]), np.array([[10, 10, 90, 90]])]))
    files = ["round/001.png", "square/000.png"]
    for name, order in (("a", files), ("b", files[::-1])):
        (photos / f"{name}.csv").write_text("\n".join(["file,tags", *[f"{file},x" for file in order]]))
    for name in ("a", "b"):
        result = json.loads(melm("proposals", photos / f"{name}.csv", "--file", tmp_path / "p.pkl", "--json").stdout)
        assert result["computed"] == 2


def test_import_for_images_of_another_size(tmp_path):
    photos = save_scenes(tmp_path / "photos", 2)
    np.savez(tmp_path / "p.npz", **{"square/000": np.array([[0, 0, 50, 500]]), "round/001": np.array([[0, 0, 30, 30]])})
    result = melm("proposals", photos, "--file", tmp_path / "p.npz")
    assert result.returncode == 1
    assert "image square/000" in result.stdout and "do not fit its 160 x 120 pixels" in result.stdout
    assert "1 computed" in result.stdout


def test_import_without_an_image(tmp_path):
    photos = save_scenes(tmp_path / "photos", 2)
    np.savez(tmp_path / "p.npz", **{"square/000": np.array([[0, 0, 50, 50]])})
    result = melm("proposals", photos, "--file", tmp_path / "p.npz")
    assert result.returncode == 1 and "no boxes for image round/001" in result.stderr


def test_turned_photos_have_proposals_on_the_upright_picture(tmp_path):
    image = Image.fromarray(draw_scene(0)[0])
    exif = image.getexif()
    exif[0x0112] = 6
    (tmp_path / "photos" / "a").mkdir(parents=True)
    path = tmp_path / "photos" / "a" / "x.jpg"
    image.save(path, exif=exif)
    _, store = make(tmp_path / "photos", tmp_path / "c")
    proposals = store.get(content_key(path.read_bytes()))
    assert (proposals.width, proposals.height) == (120, 160)


def test_a_part_of_the_data_gets_the_boxes_that_all_of_it_would(tmp_path):
    """A list without ids goes by the order of all images, whichever of them are asked for."""
    images = read_tags(Source(save_scenes(tmp_path / "photos", 4)))
    (tmp_path / "p.pkl").write_bytes(pickle.dumps([np.array([[i, 0, i + 50, 50]]) for i in range(4)]))
    ready_made = ReadyMade(tmp_path / "p.pkl")
    stores = [ProposalStore(settings_for_file(ProposalSettings("file"), ready_made), tmp_path / n) for n in "ab"]
    make_proposals(images, stores[0], 1, ready_made)
    for part in (images[1::2], images[::2]):
        make_proposals(part, stores[1], 1, ready_made, among=images)
    assert stored(tmp_path / "a") == stored(tmp_path / "b") and len(stored(tmp_path / "a")) == 4


@pytest.mark.slow
def test_two_processes_of_torchrun_keep_what_one_keeps(small_scenes, tmp_path):
    """Each its share; the first says of all what one process says, and measures all of it."""
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "melm"]
    ways = {"boxes": ["--method", "edge-boxes", "--recall", "--plot", tmp_path / "plot.png"]}
    (tmp_path / "p.pkl").write_bytes(pickle.dumps([np.array([[i, 0, i + 50, 50]]) for i in range(13)]))
    ways["file"] = ["--file", tmp_path / "p.pkl"]
    for way, options in ways.items():
        said = []
        for name, start in (("one", ["-m", "melm"]), ("two", two)):
            words = [*start, "proposals", small_scenes / "train.json", *options, "--workers", "1", "--json"]
            here = {**os.environ, "MELM_CACHE": str(tmp_path / name / way), "OMP_NUM_THREADS": "1"}
            result = subprocess.run([sys.executable, *map(str, words)], env=here, capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
            said.append(json.loads(result.stdout))  # and nothing else
        for figures in (*said, *(one["recall"] for one in said if "recall" in one)):
            figures.pop("seconds_per_image_and_core")
            figures.pop("store", None)
        assert said[0] == said[1] and said[0]["computed"] == 13
        one, both = (stored(tmp_path / name / way) for name in ("one", "two"))
        assert one == both and len(one) == 13
