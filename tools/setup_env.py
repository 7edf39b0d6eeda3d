"""Builds the project's virtual environment, and says before it downloads how much that will be.

Every package is pinned in constraints.txt. With `--torch system` the environment also sees the packages of the Python that runs
this script, itself perhaps in a virtual environment, and the PyTorch among them is used as it is, if it is new enough.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOWEST_TORCH = (2, 5)
OTHERS = "0.25 GB"  # everything but PyTorch, measured
SITE_PACKAGES = "import sysconfig; print(sysconfig.get_path('purelib'))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--torch", choices=("pip", "system"), default="pip")
    parser.add_argument("--extras", default="[dev]")
    options = parser.parse_args()
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        version = sys.version.split()[0]
        sys.exit(f"melm needs Python 3.10 to 3.13, this is {version}. Choose one: make PYTHON=python3.12")
    there = packages_with_torch() if options.torch == "system" else None
    venv.create(options.venv, with_pip=True)
    python = options.venv / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    with tempfile.TemporaryDirectory() as scratch:
        if there:
            print(f"setup: uses the PyTorch in {there}; downloads about {OTHERS}", flush=True)
            own = subprocess.run(
                [python, "-c", SITE_PACKAGES], check=True, capture_output=True, text=True
            ).stdout.strip()
            Path(own, "torch_of_the_system.pth").write_text(f"{there}\n")
            pins = constraints.read_text().splitlines()
            constraints = Path(scratch, "constraints.txt")
            constraints.write_text("\n".join(pin for pin in pins if not pin.startswith("torch==")))
        else:
            announce(python, constraints)
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        environment = os.environ | {"PIP_CONSTRAINT": str(constraints)}  # pins build tools too
        subprocess.run([*pip, "-e", f"{ROOT}{options.extras}"], check=True, env=environment)
    version = subprocess.run([options.venv / "bin" / "melm", "--version"], check=True, capture_output=True, text=True)
    print(f"setup: {version.stdout.strip()} is ready in {options.venv}")


def packages_with_torch() -> Path:
    """The folder with this Python's PyTorch; stops, in words, when there is none or only one that is too old."""
    try:
        import torch
    except ImportError:
        sys.exit(f"TORCH=system, but {sys.executable} has no PyTorch. Install one, or leave TORCH=system out.")
    found = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if found < LOWEST_TORCH:
        lowest = ".".join(map(str, LOWEST_TORCH))
        sys.exit(f"TORCH=system, but PyTorch {torch.__version__} is too old: {lowest} or newer is needed.")
    return Path(torch.__file__).parent.parent


def announce(python: Path, constraints: Path) -> None:
    """Asks pip which PyTorch it would take, without taking it, and says what that means."""
    installed = subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0
    if installed:
        return
    dry_run = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--report", "-"]
    dry_run += ["--disable-pip-version-check", "--ignore-installed", "-c", str(constraints), "torch"]
    asked = subprocess.run(dry_run, capture_output=True, text=True)
    try:
        torch = json.loads(asked.stdout)["install"][0]["metadata"]
    except (ValueError, LookupError):
        print(f"setup: downloads PyTorch (0.2 GB for a CPU build, about 3 GB with CUDA) and {OTHERS} more", flush=True)
        return
    cuda = any(need.startswith(("nvidia-", "cuda-")) for need in torch.get("requires_dist", []))
    size = "about 3 GB with its CUDA libraries" if cuda else "about 0.2 GB, a CPU build"
    print(f"setup: downloads PyTorch {torch['version']} ({size}) and {OTHERS} more", flush=True)
    if cuda:
        print("setup: to have the small CPU build instead, stop here and see `Installing` in README.md", flush=True)


if __name__ == "__main__":
    main()
