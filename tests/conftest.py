"""What several tests share: small pictures with known objects, and real data where it is at hand."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

hypothesis.settings.register_profile("melm", deadline=None)  # the first call of a numba kernel compiles it
hypothesis.settings.load_profile("melm")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test touches the user's cache."""
    monkeypatch.setenv("MELM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bf16(monkeypatch):
    """Says whether the processor is made for bfloat16; it multiplies all the same, if more slowly, where oneDNN can at all."""

    def says(there):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: there, raising=False)
        if there and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            pytest.skip("oneDNN cannot multiply bfloat16 on this processor")

    return says


@pytest.fixture(scope="session")
def voc2007():
    """The folder of PASCAL VOC 2007, named by MELM_VOC2007."""
    named = os.environ.get("MELM_VOC2007")
    if not named:
        pytest.skip("MELM_VOC2007 does not name a folder with PASCAL VOC 2007")
    return Path(named)


def draw_scene(seed, size=(160, 120)):
    """A noisy picture with one ellipse and one rectangle: (H, W, 3), and their boxes."""
    random = np.random.default_rng(seed)
    width, height = size
    pixels = random.integers(90, 130, (height, width, 3)).astype(np.uint8)
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    boxes = []
    for shape in (draw.ellipse, draw.rectangle):
        x, y = int(random.integers(0, width - 60)), int(random.integers(0, height - 50))
        w, h = int(random.integers(30, 60)), int(random.integers(25, 50))
        shape((x, y, x + w - 1, y + h - 1), fill=tuple(int(c) for c in random.integers(0, 255, 3)))
        boxes.append((x, y, x + w, y + h))
    return np.asarray(image), boxes


def save_scenes(folder, count, ending=".png", size=(160, 120)):
    """Scenes in two class folders."""
    for i in range(count):
        path = folder / ("round" if i % 2 else "square") / f"{i:03d}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw_scene(i, size)[0]).save(path)
    return folder


def melm(*arguments, **options):
    """Runs the command line in a process of its own."""
    command = [sys.executable, "-m", "melm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command line in this process: what it says, and its exit code."""

    def run(*arguments):
        from melm.cli import main

        monkeypatch.setattr(sys, "argv", ["melm", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return SimpleNamespace(returncode=end.value.code or 0, stdout=said.out, stderr=said.err)

    return run


@pytest.fixture(scope="session")
def small_scenes(tmp_path_factory):
    """A folder of generated scenes, and few.csv, which has few of them and tags that say nothing.

    Nobody changes it; `own_scenes` is a copy to change."""
    from learners import FEW, IMAGES
    from melm.data.scenes import write_scenes

    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, train=IMAGES, test=4, size=(160, 120))
    few = [f"train/{i:05d}.jpg,{'odd' if i % 2 else 'even'}\n" for i in range(FEW)]
    (folder / "few.csv").write_text("file,tags\n" + "".join(few))
    return folder


@pytest.fixture
def own_scenes(small_scenes, tmp_path):
    return Path(shutil.copytree(small_scenes, tmp_path / "scenes"))


@pytest.fixture(scope="session")
def learned(small_scenes, tmp_path_factory):
    """A finished run on the training scenes, and the cache it filled."""
    from learners import small_train

    folder = tmp_path_factory.mktemp("learned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MELM_CACHE", str(folder / "cache"))
        run = small_train(small_scenes / "train-tags.csv", folder / "run")
    return SimpleNamespace(run=run, cache=folder / "cache")


@pytest.fixture
def shared_cache(learned, monkeypatch):
    """The cache of `learned`, for tests that do not spoil it: proposals and features of the scenes are there."""
    monkeypatch.setenv("MELM_CACHE", str(learned.cache))
    return learned.cache


@pytest.fixture
def copied_cache(learned, tmp_path, monkeypatch):
    """A copy of the cache of `learned`, for tests that spoil it."""
    monkeypatch.setenv("MELM_CACHE", str(shutil.copytree(learned.cache, tmp_path / "copied")))
    return tmp_path / "copied"
