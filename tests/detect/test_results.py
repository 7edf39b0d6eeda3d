"""Results on disk: nothing is lost by a kill, nothing is mixed, and every bit comes back."""

import json
import multiprocessing
import os
import resource
import signal
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from melm.detect.detections import Detections, no_detections
from melm.detect.lines import exact, line_of, parsed
from melm.detect.results import ResultsFile, read_results
from melm.errors import MelmError, UsageError
from melm.files import lock
from melm.learn.processes import ALONE, Processes

NAMES = ("cat", "dog", "猫 / ящик")
SETTINGS = {"run": "ab12", "branch": "mean", "views": [480, 576], "nms": 0.3}


def found(seed, count=3):
    random = np.random.default_rng(seed)
    boxes = np.sort(random.uniform(0, 300, (count, 2, 2)), axis=1).reshape(count, 4).astype(np.float32)
    scores = -np.sort(-random.uniform(0, 1, count)).astype(np.float32)
    return Detections(boxes, scores, random.integers(0, len(NAMES), count), NAMES, 400, 300)


def write(folder, ids, settings=SETTINGS, **options):
    with ResultsFile(folder, NAMES, settings, **options) as file:
        for id in ids:
            if id not in file.done:
                file.append(id, f"{id}.jpg", found(len(id)))
        return file.path


def ids_in(path):
    return [id for id, _, _ in read_results(path)]


def same(a, b):
    assert a.boxes.tobytes() == b.boxes.tobytes() and a.scores.tobytes() == b.scores.tobytes()
    assert a.boxes.dtype == a.scores.dtype == np.float32 and a.boxes.shape == b.boxes.shape
    assert a.classes.tolist() == b.classes.tolist()
    assert (a.names, a.width, a.height) == (b.names, b.width, b.height)


def test_what_was_written_is_read(tmp_path):
    with ResultsFile(tmp_path / "new" / "folder", NAMES, SETTINGS) as file:
        file.append("a", "x/a.jpg", found(0))
        file.append("b", "x/b\udcff\n.jpg", no_detections(NAMES, 7, 5))  # a name that is not UTF-8, with a line end
    (a, file_a, found_a), (b, file_b, found_b) = read_results(file.path)
    assert (a, file_a, b, file_b) == ("a", "x/a.jpg", "b", "x/b\udcff\n.jpg")
    same(found_a, found(0))
    same(found_b, no_detections(NAMES, 7, 5))


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.integers(0, 4).flatmap(lambda n: st.tuples(hnp.arrays(np.float32, (n, 5), elements=floats), st.text())))
def test_every_bit_comes_back(drawn):
    values, id = drawn
    detections = Detections(values[:, :4], values[:, 4], np.arange(len(values)) % 3, NAMES, 10, 20)
    line = line_of(id, id, detections)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    id_back, file_back, back = parsed(None, 1, line, NAMES)
    assert id_back == file_back == id
    same(back, detections)


@given(hnp.arrays(np.uint32, 50))
def test_all_float32_are_exact(bits):
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    assert np.array(json.loads(json.dumps(exact(values))), np.float32).tobytes() == values.tobytes()


def test_numbers_are_short_and_the_one_that_rounds_twice_is_exact():
    assert exact(np.array([[0.1, 33.3]], np.float32)) == [[0.1, 33.3]]
    awkward = np.array([0x15AE43FD], np.uint32).view(np.float32)
    assert str(awkward[0]) == "7.038531e-26" and np.float32(7.038531e-26) != awkward[0]
    assert np.float32(exact(awkward)[0]) == awkward[0]


def test_goes_on_where_it_stopped(tmp_path):
    path = write(tmp_path, ["a", "bb"])
    before = path.read_bytes()
    with ResultsFile(tmp_path, NAMES, {**SETTINGS, "views": (480, 576)}) as file:  # a tuple is written as a list
        assert file.done == {"a", "bb"}
        file.append("ccc", "ccc.jpg", found(3))
        with pytest.raises(ValueError, match="already"):
            file.append("a", "a.jpg", found(1))
    assert path.read_bytes().startswith(before)
    assert ids_in(path) == ["a", "bb", "ccc"]


def test_cut_anywhere_and_resumed_is_as_if_never_cut(tmp_path):
    whole = write(tmp_path / "whole", ["a", "bb", "ccc"]).read_bytes()
    path = write(tmp_path / "cut", [])
    ends = [i + shift for i, byte in enumerate(whole) if byte == ord("\n") for shift in (-1, 0, 1)]
    for cut in [*range(0, len(whole), 23), *ends]:
        path.write_bytes(whole[:cut])
        with ResultsFile(tmp_path / "cut", NAMES, SETTINGS) as file:
            assert len(file.done) == whole[:cut].count(b"\n")
        write(tmp_path / "cut", ["a", "bb", "ccc"])
        assert path.read_bytes() == whole


def endless(folder):
    with ResultsFile(folder, NAMES, SETTINGS) as file:
        for i in range(len(file.done), 10**6):
            file.append(str(i), f"{i}.jpg", found(i))


def test_killed_and_resumed(tmp_path):
    path, before = tmp_path / "detections.jsonl", 0
    for _ in range(2):
        process = multiprocessing.get_context("fork").Process(target=endless, args=(tmp_path,))
        process.start()
        deadline = time.monotonic() + 60
        while (path.stat().st_size if path.exists() else 0) < before + 20_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with ResultsFile(tmp_path, NAMES, SETTINGS) as file:
            count = len(file.done)
        before = path.stat().st_size
    for i, (id, _, detections) in enumerate(read_results(path)):
        assert id == str(i)
        same(detections, found(i))
    assert i + 1 == count


def split(folder, names, ids):
    """As if several processes had been stopped: the lines of `ids`, dealt out to the files `names`."""
    path = write(folder, ids)
    lines = path.read_bytes().splitlines(keepends=True)
    for i, name in enumerate(names):
        path.with_name(name).write_bytes(b"".join(lines[i :: len(names)]))
    return path


def test_parts_of_a_stopped_run_are_taken_up(tmp_path):
    """Of two runs, with three processes and with two; the last line of one part was cut."""
    ids = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]
    whole = write(tmp_path / "whole", ids).read_bytes()
    parts = ["detections.2-of-3.jsonl", "detections.3-of-3.jsonl", "detections.2-of-2.jsonl"]
    path = split(tmp_path / "cut", ["detections.jsonl", *parts], ids[:6])
    last = path.with_name(parts[1])
    last.write_bytes(last.read_bytes()[:-9])
    other = path.with_name("detections.settings-of-mine.jsonl")
    other.write_text("not a part")
    with ResultsFile(tmp_path / "cut", NAMES, SETTINGS) as file:
        assert file.done == {"a", "bb", "dddd", "eeeee", "ffffff"}
        for id in ("ccc", "ggggggg"):
            file.append(id, f"{id}.jpg", found(len(id)))
        file.join(ids)
    assert path.read_bytes() == whole and other.exists()
    assert not any(path.with_name(name).exists() for name in parts)


def test_a_part_that_was_taken_up_and_not_removed_counts_once(tmp_path):
    path = split(tmp_path, ["detections.jsonl", "detections.2-of-2.jsonl"], ["a", "bb", "ccc", "dddd"])
    part = path.with_name("detections.2-of-2.jsonl").read_bytes()
    write(tmp_path, [])
    path.with_name("detections.2-of-2.jsonl").write_bytes(part)
    assert len(ids_in(write(tmp_path, []))) == 4 and not path.with_name("detections.2-of-2.jsonl").exists()


def test_lines_are_joined_in_the_order_of_the_images_and_others_stay(tmp_path):
    path = write(tmp_path, ["ccc", "other", "a", "others"])
    with ResultsFile(tmp_path, NAMES, SETTINGS) as file:
        file.append("bb", "bb.jpg", found(2))
        file.join(["a", "bb", "missing", "ccc"])
    assert ids_in(path) == ["a", "other", "bb", "others", "ccc"]
    before = path.stat().st_ino
    with ResultsFile(tmp_path, NAMES, SETTINGS) as file:
        file.join(["a", "bb", "ccc"])
    assert path.stat().st_ino == before, "what is in order is not written again"


def test_overwrite_removes_the_parts(tmp_path):
    split(tmp_path, ["detections.jsonl", "detections.2-of-2.jsonl"], ["a", "bb"])
    assert ids_in(write(tmp_path, ["ccc"], overwrite=True)) == ["ccc"]
    assert ids_in(write(tmp_path, [])) == ["ccc"]


def test_a_part_that_is_being_written_is_not_taken_up(tmp_path):
    path = split(tmp_path, ["detections.jsonl", "detections.2-of-2.jsonl"], ["a", "bb"])
    part = path.with_name("detections.2-of-2.jsonl")
    with part.open("ab") as file:
        lock(file, part)
        for options in ({}, {"overwrite": True}):
            with pytest.raises(UsageError, match=r"2-of-2\.jsonl: another process is writing it"):
                write(tmp_path, [], **options)
    assert ids_in(write(tmp_path, [])) == ["a", "bb"]


def test_a_damaged_part_is_named(tmp_path):
    path = split(tmp_path, ["detections.jsonl", "detections.2-of-2.jsonl"], ["a", "bb"])
    part = path.with_name("detections.2-of-2.jsonl")
    part.write_bytes(b"[]\n")
    with pytest.raises(MelmError, match=r"2-of-2\.jsonl, line 1: damaged"):
        write(tmp_path, [])
    assert part.exists()


def test_processes_without_a_folder_that_they_share_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(Processes, "first_does", lambda self, work: set())  # done elsewhere
    with pytest.raises(MelmError, match="All processes need the same folder"):
        ResultsFile(tmp_path, NAMES, SETTINGS, processes=Processes(1, 2, ALONE.device))


def test_other_settings_are_refused_by_name(tmp_path):
    path = write(tmp_path, ["a"], {**SETTINGS, "model": {"trunk": "vgg", "size": 1}})
    other = {**SETTINGS, "nms": 0.4, "top": 100, "model": {"trunk": "lite", "size": 1}}
    del other["branch"]
    with pytest.raises(UsageError) as error:
        write(tmp_path, ["b"], other)
    words = str(error.value)
    for difference in ("nms: 0.3 there, 0.4 now", "top: not set there, 100 now", 'branch: "mean" there, not set now'):
        assert difference in words
    assert 'model.trunk: "vgg" there, "lite" now' in words and "--overwrite" in words and str(path) in words
    assert "size" not in words and "run:" not in words
    assert ids_in(path) == ["a"]
    write(tmp_path, ["b"], other, overwrite=True)
    assert ids_in(path) == ["b"]
    write(tmp_path, ["c"], other)
    assert ids_in(path) == ["b", "c"]


def test_other_classes_are_refused(tmp_path):
    write(tmp_path, ["a"])
    with pytest.raises(UsageError, match=r"classes: .*dog.* there, .*cow.* now"):
        ResultsFile(tmp_path, ("cat", "cow"), SETTINGS)


def test_results_without_their_settings(tmp_path):
    path = write(tmp_path, ["a"])
    (tmp_path / "detections.settings.json").unlink()
    with pytest.raises(UsageError, match="--overwrite"):
        write(tmp_path, ["b"])
    with pytest.raises(MelmError, match=r"detections\.settings\.json"):
        ids_in(path)
    assert [id for id, _, _ in read_results(path, NAMES)] == ["a"]
    (tmp_path / "detections.settings.json").write_text("{")
    with pytest.raises(MelmError, match="cannot be read"):
        write(tmp_path, ["b"])


def test_two_writers_are_refused(tmp_path):
    with ResultsFile(tmp_path, NAMES, SETTINGS), pytest.raises(UsageError, match="another process"):
        ResultsFile(tmp_path, NAMES, SETTINGS, overwrite=True)
    write(tmp_path, ["a"])


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda line: line[:40] + b"\n", "line 2"),
        (lambda line: b"\0" * 20 + b"\n", "line 2"),
        (lambda line: b"[]\n", "line 2"),
        (lambda line: line.replace(b'"scores"', b'"scoers"'), "'scores' is missing"),
        (lambda line: line.replace(b'"width":400', b'"width":"400"'), "whole numbers"),
        (lambda line: line.replace(b'"classes":["', b'"classes":["cow","'), "'cow' is not among"),
        (lambda line: line.replace(b'"scores":[', b'"scores":[NaN,'), "finite"),
        (lambda line: line.replace(b'"scores":[', b'"scores":[1e300,'), "finite"),
        (lambda line: line.replace(b'"scores":[', b'"scores":["1",'), "numbers"),
        (lambda line: line.replace(b'"scores":[', b'"scores":[0.5,'), r"\(M,\)"),  # more scores than boxes
    ],
)
def test_a_damaged_line_is_named(tmp_path, change, words):
    path = write(tmp_path, ["a", "bb", "ccc"])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + change(lines[1]) + lines[2])
    results = read_results(path)
    assert next(results)[0] == "a"  # what comes before it is fine
    for attempt in (lambda: next(results), lambda: write(tmp_path, ["d"])):
        with pytest.raises(MelmError, match=words) as error:
            attempt()
        assert f"{path}, line 2" in str(error.value)


def test_a_cut_file_is_not_read_as_if_it_were_whole(tmp_path):
    path = write(tmp_path, ["a", "bb"])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(MelmError, match=r"line 2.*cut"):
        ids_in(path)
    with pytest.raises(MelmError, match="cannot be read"):
        list(read_results(tmp_path / "none.jsonl", NAMES))


def test_an_image_twice_is_named(tmp_path):
    path = write(tmp_path, ["a"])
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(MelmError, match=r"line 2.*'a' is there twice"):
        write(tmp_path, ["b"])


def test_out_of_disk_keeps_what_was_finished(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = ResultsFile(tmp_path, NAMES, SETTINGS)
    file.append("a", "a.jpg", found(1))
    whole = file.path.read_bytes()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 50, limits[1]))  # room for a part of the next line
        with pytest.raises(MelmError, match="What was finished is kept") as error:
            file.append("bb", "bb.jpg", found(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(file.path) in str(error.value)
    assert file.path.read_bytes() == whole and file.done == {"a"}
    file.append("bb", "bb.jpg", found(2))  # there is room again
    file.close()
    assert ids_in(file.path) == ["a", "bb"]


def test_numbers_that_are_none_are_refused(tmp_path):
    strange = found(0)
    strange.scores[1] = np.nan
    with ResultsFile(tmp_path, NAMES, SETTINGS) as file:
        with pytest.raises(MelmError, match=r"a\.jpg.*finite"):
            file.append("a", "a.jpg", strange)
        with pytest.raises(ValueError, match="classes"):
            file.append("a", "a.jpg", no_detections(("cow",), 5, 5))
    assert file.path.read_bytes() == b""


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MelmError, match="cannot be written"):
        ResultsFile(tmp_path / "file", NAMES, SETTINGS)
