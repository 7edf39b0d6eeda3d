"""Object detectors learned from image tags alone: the Min-Entropy Latent Model (MELM)."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("melm")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
