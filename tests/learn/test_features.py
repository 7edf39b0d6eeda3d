"""What a frozen trunk gives: whitened components, the mirror, and a store that computes nothing twice."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from learners import BOXES, small_config, small_train
from melm.data import Source, read_image, read_tags
from melm.errors import MelmError, UsageError
from melm.learn.data import starting_backbone
from melm.learn.features import fit_basis, make_maps, make_regions
from melm.learn.map_store import MapStore
from melm.learn.model_file import basis_of, load_model
from melm.learn.network import build_network
from melm.learn.presets import learn_config
from melm.learn.region_store import VERSION, RegionStore
from melm.learn.students import RetrainConfig
from melm.learn.train import features
from melm.model.branches import Regions
from melm.model.trunks import Components, FrozenTrunk, TunedTrunk, mirrored, mirrored_boxes
from melm.proposals import ProposalStore, make_proposals

CHANGES = {"backbone": "resnet18", "components": 12}


def trunk_of(**changes):
    config = small_config(**{**CHANGES, **changes})
    return build_network(config, 2, starting_backbone(config)[0]).trunk


@pytest.fixture
def few(small_scenes):
    """Images, their keys and their proposals."""
    images = read_tags(Source(small_scenes / "few.csv"))
    proposals = ProposalStore(BOXES)
    return list(images), [done.key for done in make_proposals(images, proposals, 1)], proposals


def samples_of(trunk, few):
    images, keys, proposals = few
    looks = [
        trunk.look_wide(read_image(image.path), torch.from_numpy(proposals.get(key).boxes))
        for image, key in zip(images, keys, strict=True)
    ]
    return torch.cat(looks)


def test_many_threads_store_the_bytes_of_one(few, tmp_path):
    images, keys, proposals = few
    trunk = trunk_of(backbone="lite0", weights="none", components=8, named_components=4)
    trunk.fit(samples_of(trunk, few))
    stores = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            stores.append(RegionStore(trunk, BOXES, tmp_path / str(threads)))
            make_regions(trunk, images, keys, proposals, stores[-1])
            assert torch.get_num_threads() == threads  # as it was
    finally:
        torch.set_num_threads(before)
    for key in keys:
        assert len({store.path(key).read_bytes() for store in stores}) == 1


@pytest.mark.parametrize(
    "scales",
    [
        (192, 288, 416, 608),  # all of them among the trunk's
        (224, 608),  # one that the trunk does not read for itself
    ],
)
@pytest.mark.parametrize("tail_share", [0.0, 0.1])  # with the last stages, and without
def test_what_students_read_is_stored_in_the_same_look(few, tmp_path, scales, tail_share):
    images, keys, proposals = few
    trunk = trunk_of(backbone="lite0", weights="none", components=8, named_components=4)
    trunk.fit(samples_of(trunk, few))
    config = RetrainConfig(scales=scales, tail_share=tail_share)
    once, twice = tmp_path / "once", tmp_path / "twice"
    both, apart = (RegionStore(trunk, BOXES, folder) for folder in (once, twice))
    maps, maps_apart = (MapStore(trunk, config, folder) for folder in (once, twice))
    make_regions(trunk, images, keys, proposals, both, maps=maps)
    make_regions(trunk, images, keys, proposals, apart)
    make_maps(maps_apart, images, keys)
    for key in keys:
        assert both.path(key).read_bytes() == apart.path(key).read_bytes()
        for one, other in zip(maps.get(key), maps_apart.get(key), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    made = both.made, maps.made
    maps.path(keys[0]).unlink()  # one store lacks it: only that is made again
    make_regions(trunk, images, keys, proposals, both, maps=maps)
    assert (both.made, maps.made) == (made[0], made[1] + 1)


def test_a_basis_is_fitted_once(few, tmp_path, monkeypatch):
    monkeypatch.setenv("MELM_CACHE", str(tmp_path))
    trunk = trunk_of(backbone="lite0", weights="none", components=8, named_components=4)
    fitted = []
    for _ in range(2):  # as every process of a run does
        fit_basis(trunk, *few, lambda: fitted.append(1))
    assert len(fitted) == len(few[0])
    other = trunk_of(backbone="lite0", weights="none", components=6, named_components=4)
    fit_basis(other, *few, lambda: fitted.append(1))  # of another size
    assert len(fitted) == 2 * len(few[0]) and len(list((tmp_path / "features").glob("basis-*"))) == 2


def test_components_are_whitened(shared_cache, few):
    trunk = trunk_of()
    samples = samples_of(trunk, few)
    trunk.fit(samples)
    reduced = ((samples - trunk.of_map.mean) @ trunk.of_map.basis).double()
    assert reduced.mean(dim=0).abs().max() < 1e-3
    torch.testing.assert_close(torch.cov(reduced.T), torch.eye(12, dtype=torch.float64), atol=1e-3, rtol=0)


def test_what_the_network_calls_a_region_is_whitened_and_kept_too(shared_cache, few):
    images, keys, proposals = few
    trunk = trunk_of(backbone="lite0", weights="none", named_components=5)
    assert trunk.width == 12 + 5
    samples = samples_of(trunk, few)
    trunk.fit(samples)
    logits = samples @ trunk.backbone._fc.weight.T + trunk.backbone._fc.bias
    names = trunk.names(samples)
    torch.testing.assert_close(names, logits - logits.logsumexp(dim=1, keepdim=True))
    reduced = trunk.of_names(names).double()
    spread = torch.linalg.eigvalsh(torch.cov(names.double().T)).flip(0)[:5]
    torch.testing.assert_close(torch.cov(reduced.T), torch.diag(spread / (spread + 0.01**2)), atol=1e-3, rtol=1e-3)
    pixels, boxes = read_image(images[0].path), torch.from_numpy(proposals.get(keys[0]).boxes)
    kept = trunk.look(pixels, boxes)
    torch.testing.assert_close(kept.box[:, 12:].double(), reduced[: len(boxes)], atol=1e-3, rtol=1e-3)
    assert all(part.shape == (len(boxes), 17) for part in kept.parts())
    assert set(trunk.fitted()) == {"of_map.mean", "of_map.basis", "of_names.mean", "of_names.basis"}


def test_a_name_that_is_out_of_the_question_is_as_unlikely_as_another():
    trunk = trunk_of(backbone="lite0", weights="none", named_components=5)
    with torch.no_grad():
        trunk.backbone._fc.bias[:10] -= torch.arange(20, 120, 10)
        names = trunk.names(torch.zeros(3, 1280))
    assert (names[:, :10] == -12).all() and (names[:, 10:] > -12).all()


def test_a_backbone_without_a_classifier_has_no_names():
    with pytest.raises(UsageError, match="resnet18 has no classifier on its map"):
        small_config(backbone="resnet18", named_components=4)
    config = learn_config("fast", None, {"backbone": "resnet18"})  # of the preset, which nobody asked for
    assert config.named_components == 0 and learn_config().named_components > 0


def test_a_look_is_the_whitened_look(shared_cache, few):
    """Reducing every place of the map and then pooling is pooling and then reducing: both are linear."""
    images, keys, proposals = few
    trunk = trunk_of()
    trunk.fit(samples_of(trunk, few))
    pixels, boxes = read_image(images[0].path), torch.from_numpy(proposals.get(keys[0]).boxes)
    wide = (trunk.look_wide(pixels, boxes) - trunk.of_map.mean) @ trunk.of_map.basis
    torch.testing.assert_close(trunk.look(pixels, boxes).box, wide, atol=1e-3, rtol=1e-3)


def test_components_without_variance_are_none():
    trunk = trunk_of()
    torch.manual_seed(0)
    trunk.fit(torch.randn(50, 3) @ torch.randn(3, 256))
    lengths = trunk.of_map.basis.norm(dim=0)
    assert (lengths[:3] > 0).all() and (lengths[3:] == 0).all()
    trunk.fit(torch.ones(5, 256))
    assert trunk.of_map.basis.isfinite().all()


def test_the_basis_depends_on_the_content_of_the_images_alone(few, shared_cache, tmp_path, monkeypatch):
    images, keys, proposals = few
    found = []
    for turn, places in enumerate(([0, 1, 2, 3], [2, 0, 3, 1])):
        renamed = [replace(images[i], id=f"{turn}-{i}") for i in places]
        monkeypatch.setenv("MELM_CACHE", str(tmp_path / f"cache {turn}"))
        trunk = trunk_of()
        fit_basis(trunk, renamed, [keys[i] for i in places], proposals)
        found.append((trunk.of_map.mean.clone(), trunk.of_map.basis.clone()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    fit_basis(trunk, images[:3], keys[:3], proposals)
    assert not torch.equal(trunk.of_map.basis, found[0][1])


def test_a_kept_basis_is_read_and_not_fitted_again(few, shared_cache, tmp_path, monkeypatch):
    images, keys, proposals = few
    monkeypatch.setenv("MELM_CACHE", str(tmp_path))
    looks = []
    trunks = [trunk_of(), trunk_of()]
    for trunk in trunks:
        fit_basis(trunk, images, keys, proposals, lambda: looks.append(1))
    assert len(looks) == 4 and torch.equal(trunks[0].of_map.basis, trunks[1].of_map.basis)


@pytest.mark.parametrize("kind", ["frozen", "tuned"])
def test_the_mirrored_look_is_a_look_at_the_mirrored_image(few, shared_cache, kind):
    images, keys, proposals = few
    trunk = trunk_of(trunk=kind)
    if isinstance(trunk, FrozenTrunk):
        trunk.fit(samples_of(trunk, few))
    pixels, boxes = read_image(images[1].path), torch.from_numpy(proposals.get(keys[1]).boxes)
    with torch.no_grad():
        looks = [
            trunk.look(pixels, boxes, 96, flip=True),
            trunk.look(mirrored(pixels), mirrored_boxes(boxes, 160), 96),
            trunk.look(pixels, boxes, 96),
        ]
    assert isinstance(trunk, FrozenTrunk if kind == "frozen" else TunedTrunk)
    for part, other in zip(looks[0].parts(), looks[1].parts(), strict=True):
        assert torch.equal(part, other)
    assert not torch.allclose(looks[0].box, looks[2].box, atol=1e-4)
    torch.testing.assert_close(mirrored_boxes(mirrored_boxes(boxes, 160), 160), boxes)


@pytest.fixture
def store(few, shared_cache, tmp_path, monkeypatch):
    """A trunk and the store of what it gives, filled for the few images."""
    images, keys, proposals = few
    monkeypatch.setenv("MELM_CACHE", str(tmp_path))
    trunk = trunk_of()
    fit_basis(trunk, images, keys, proposals)
    store = RegionStore(trunk, BOXES)
    make_regions(trunk, images, keys, proposals, store)
    assert store.made == 4
    return trunk, store


def test_what_is_stored_is_what_was_seen(few, store):
    images, keys, proposals = few
    trunk, kept = store
    boxes = torch.from_numpy(proposals.get(keys[2]).boxes)
    seen = trunk.look(read_image(images[2].path), boxes)
    for part, other in zip(kept.regions(keys[2]).parts(), seen.parts(), strict=True):
        assert part.dtype == torch.float32 and part.shape == (len(boxes), 12)
        torch.testing.assert_close(part, other, rtol=1e-3, atol=1e-3)  # half precision


def test_only_what_is_missing_or_damaged_is_computed(few, store):
    images, keys, proposals = few
    trunk, kept = store
    whole = {key: kept.path(key).read_bytes() for key in keys}
    calls = []
    make_regions(trunk, images, keys, proposals, kept, lambda: calls.append(1))
    assert kept.made == 4 and len(calls) == 4
    kept.path(keys[0]).unlink()
    kept.path(keys[1]).write_bytes(whole[keys[1]][:200])
    kept.path(keys[2]).write_bytes(b"")
    with pytest.raises(MelmError, match="gone or damaged"):
        kept.regions(keys[1])
    make_regions(trunk, images, keys, proposals, kept)
    assert kept.made == 4 + 3
    assert {key: kept.path(key).read_bytes() for key in keys} == whole
    kept.put(keys[3], Regions(*torch.zeros(3, 5, 12)))  # of fewer boxes than the image has
    make_regions(trunk, images, keys, proposals, kept)
    assert kept.made == 4 + 3 + 2  # one of them was the wrong one
    assert kept.path(keys[3]).read_bytes() == whole[keys[3]]


def test_another_trunk_has_its_own_place(store):
    trunk, kept = store
    places = {kept.folder, RegionStore(trunk, replace(BOXES, max_boxes=50)).folder}
    trunk.scales = (96, 160)
    places.add(RegionStore(trunk, BOXES).folder)
    trunk.scales = (96, 144)
    assert RegionStore(trunk, BOXES).folder == kept.folder
    with torch.no_grad():
        trunk.of_map.mean[0] += 1
    places.add(RegionStore(trunk, BOXES).folder)
    assert len(places) == 4


def test_numbers_beyond_half_precision_are_kept_finite(few, store):
    _, keys, _ = few
    _, kept = store
    kept.put(keys[0], Regions(*torch.full((3, 2, 12), 1e9)))
    assert np.isfinite(kept.get(keys[0])).all()


def test_a_runs_basis_serves_again_when_images_are_added(small_scenes, shared_cache, tmp_path, monkeypatch):
    """Of 13 images, 4 were read for the first run: 9 are read for the second, and the 4 files stay as they are."""
    monkeypatch.setenv("MELM_CACHE", str(tmp_path / "cache"))
    first = small_train(small_scenes / "few.csv", tmp_path / "first", epochs=1, **CHANGES)
    (folder,) = (tmp_path / "cache" / "features").glob("resnet18-*")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.npy")}
    assert len(before) == 4
    config = small_config(epochs=1, **CHANGES)
    there = features(Source(small_scenes / "train-tags.csv"), config, basis=first, device="cpu", workers=1).folder
    after = {path: path.stat().st_mtime_ns for path in there.rglob("*.npy")}
    assert there == folder and len(after) == 13 and {path: after[path] for path in before} == before
    second = small_train(small_scenes / "train-tags.csv", tmp_path / "second", basis=first, epochs=1, **CHANGES)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.npy")} == after
    trunks = [load_model(run).network.trunk for run in (first, second)]
    assert all(torch.equal(value, trunks[1].fitted()[name]) for name, value in trunks[0].fitted().items())
    with pytest.raises(UsageError, match=r'basis: "[0-9a-f]+" in the run, null now'):
        small_train(small_scenes / "train-tags.csv", tmp_path / "second", epochs=1, **CHANGES)


def test_a_basis_of_another_backbone_is_refused(small_scenes, learned, shared_cache, tmp_path):
    with pytest.raises(MelmError, match="another backbone"):
        small_train(small_scenes / "few.csv", tmp_path / "run", basis=learned.run, **CHANGES)
    with pytest.raises(UsageError, match="of another backbone, lite0; one of lite2 was expected"):  # of the same shape
        basis_of(learned.run, "lite2")
    with pytest.raises(MelmError, match="there is no such run"):
        small_train(small_scenes / "few.csv", tmp_path / "other", basis=tmp_path / "nowhere", **CHANGES)


def test_the_features_command(small_scenes, copied_cache, tmp_path, command):
    options = ["--weights", "none", "--backbone", "resnet18", "--proposals", "edge-boxes", "--max-boxes", 60]
    options += ["--set", "scales=[96]", "--set", "components=8", "--workers", 1, "--device", "cpu"]
    before = set((copied_cache / "features").glob("resnet18-*"))
    result = command("features", small_scenes / "few.csv", *options)
    assert result.returncode == 0, result.stderr
    (folder,) = set((copied_cache / "features").glob("resnet18-*")) - before
    assert f"kept in {folder}" in result.stdout
    shapes = {np.load(path).shape[::2] for path in folder.rglob("*.npy")}
    assert shapes == {(3, 8)} and json.loads((folder / "about.json").read_text())["version"] == VERSION
    result = command("features", small_scenes / "few.csv", "--preset", "paper-vggf")
    assert result.returncode == 2 and "nothing of it can be stored" in result.stderr


def test_a_basis_where_eigenvalues_do_not_converge(monkeypatch):
    """As happens where there are fewer regions than numbers of each."""
    samples = torch.randn(20, 40, generator=torch.Generator().manual_seed(0))
    usual, other = Components(40, 12), Components(40, 12)
    usual.fit(samples)

    def fails(matrix):
        raise torch.linalg.LinAlgError("failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    other.fit(samples)
    torch.testing.assert_close(other.basis, usual.basis, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other(samples).var(dim=0), torch.ones(12), rtol=1e-4, atol=1e-4)
