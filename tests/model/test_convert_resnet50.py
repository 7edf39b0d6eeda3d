"""The recipe that converts Keras's ResNet-50: all of it arrives, and the first layers give what Keras's give."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from melm.model.backbones import build_backbone

SCRIPT = Path(__file__).parents[2] / "recipes" / "convert_keras_resnet50.py"
BLOCKS = {"2": 3, "3": 4, "4": 6, "5": 3}
WIDTHS = {"2": 64, "3": 128, "4": 256, "5": 512}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("convert_keras_resnet50", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def keras():
    """Random arrays with Keras's names and shapes."""
    random, arrays = np.random.default_rng(0), {}

    def layer(name, norm, *shape):
        arrays[f"{name}/kernel"] = random.normal(0, 0.05, shape)
        arrays[f"{name}/bias"] = random.normal(0, 0.5, shape[-1])
        for part, low in (("gamma", 0.5), ("beta", -1), ("moving_mean", -1), ("moving_variance", 0.5)):
            arrays[f"{norm}/{part}"] = random.uniform(low, 2, shape[-1])

    layer("conv1", "bn_conv1", 7, 7, 3, 64)
    before = 64
    for stage, count in BLOCKS.items():
        width = WIDTHS[stage]
        for block in "abcdef"[:count]:
            name = f"{stage}{block}_branch"
            layer(f"res{name}2a", f"bn{name}2a", 1, 1, before, width)
            layer(f"res{name}2b", f"bn{name}2b", 3, 3, width, width)
            layer(f"res{name}2c", f"bn{name}2c", 1, 1, width, 4 * width)
            if block == "a":
                layer(f"res{name}1", f"bn{name}1", 1, 1, before, 4 * width)
            before = 4 * width
    arrays["fc1000/kernel"], arrays["fc1000/bias"] = random.normal(size=(2048, 10)), random.normal(size=10)
    return {name: torch.from_numpy(value.astype(np.float32)) for name, value in arrays.items()}


def test_everything_arrives(script, keras):
    tensors, network = script.converted(keras), build_backbone("resnet50")
    wanted = {n: v for n, v in network.state_dict().items() if not n.endswith("num_batches_tracked")}
    assert set(tensors) == set(wanted) | {"fc.weight", "fc.bias"}
    for name, value in wanted.items():
        assert tensors[name].shape == value.shape, name


def test_the_first_layer_gives_what_keras_gives(script, keras):
    network = build_backbone("resnet50").eval()
    network.load_state_dict({n: v for n, v in script.converted(keras).items() if not n.startswith("fc.")}, strict=False)
    pixels = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (40, 50, 3), dtype=np.uint8))
    bgr = pixels.float().flip(2) - torch.tensor([103.939, 116.779, 123.68])
    kernel = keras["conv1/kernel"].permute(3, 2, 0, 1)
    seen = F.conv2d(bgr.permute(2, 0, 1)[None], kernel, keras["conv1/bias"], stride=2, padding=3)
    norm = [keras[f"bn_conv1/{part}"] for part in ("moving_mean", "moving_variance", "gamma", "beta")]
    theirs = F.batch_norm(seen, *norm, eps=1e-3)
    with torch.no_grad():
        ours = network.bn1(network.conv1(network.normalise(pixels)[None]))
    inner = (
        ...,
        slice(2, -2),
        slice(2, -2),
    )  # what is beyond the edge is 0 in either convention, which is another grey
    torch.testing.assert_close(ours[inner], theirs[inner], rtol=1e-3, atol=0.02)


def test_a_block_without_stride_gives_what_keras_gives(script, keras):
    network = build_backbone("resnet50").eval()
    network.load_state_dict({n: v for n, v in script.converted(keras).items() if not n.startswith("fc.")}, strict=False)
    x = torch.rand(1, 256, 6, 7)
    y = x
    for branch, padding in (("2a", 0), ("2b", 1), ("2c", 0)):
        name = f"2b_branch{branch}"
        y = F.conv2d(y, keras[f"res{name}/kernel"].permute(3, 2, 0, 1), keras[f"res{name}/bias"], padding=padding)
        norm = [keras[f"bn{name}/{part}"] for part in ("moving_mean", "moving_variance", "gamma", "beta")]
        y = F.batch_norm(y, *norm, eps=1e-3)
        y = F.relu(y) if branch != "2c" else y
    with torch.no_grad():
        torch.testing.assert_close(network.layer1[1](x), F.relu(x + y), rtol=1e-3, atol=1e-3)
