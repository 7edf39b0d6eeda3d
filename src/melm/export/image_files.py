"""The images of an export: put beside the labels as links or copies, or left where they are; and what files call them."""

from __future__ import annotations

import errno
import filecmp
import hashlib
import os
import re
import shutil
from os.path import abspath
from pathlib import Path

from melm.data.images import ENDINGS
from melm.detect.labels import LabelledImage
from melm.errors import MelmError, UsageError
from melm.export.export_settings import ExportSettings
from melm.export.text_files import beside

LONGEST = 150  # bytes of a file's name, of the 255 that disks allow: an ending and a writer's marks come on top
NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
NO_RIGHT_TO_LINK = 1314  # Windows, for users without that privilege


def flat_name(id: str) -> str:
    """A file's name, less its ending, for an image: another for each id, without blanks, and never a path.

    What is no letter, digit, point, dash or underscore becomes an underscore, and then a + and a number that stands for the
    whole id follow. The same where the name would be too long, hidden, or end like that of an image.
    """
    safe = re.sub(r"[^\w.-]|^\.", "_", id).encode()[:LONGEST].decode(errors="ignore")
    if id and safe == id and not safe.lower().endswith(ENDINGS):
        return safe
    return f"{safe}+{hashlib.blake2b(id.encode(errors='surrogatepass'), digest_size=6).hexdigest()}"


def image_name(image: LabelledImage, folder: Path, settings: ExportSettings) -> str:
    """What files call an image, which is put into `folder` first if images are to be placed: its name there; else its path
    under the root that was given; else its path under the data's own folder, which its id tells."""
    if settings.images in ("link", "copy"):
        return placed_image(image, folder, settings).name
    if settings.image_root is not None:
        return path_under(image.path, settings.image_root)
    return image.id + image.path.suffix


def path_under(path: Path, root: Path) -> str:
    """A path as seen from a folder that must hold it, with forward slashes."""
    file, base = Path(abspath(path)), Path(abspath(root))  # by name alone: links stay links
    if not file.is_relative_to(base):  # unless a link leads to the one or to the other
        file, base = file.parent.resolve() / file.name, base.resolve()
    if not file.is_relative_to(base) or file == base:
        raise UsageError(
            f"{path}: lies outside {root}, the folder from which images are named. Name one that holds all of them (--image-root)"
        )
    return file.relative_to(base).as_posix()


def placed_image(image: LabelledImage, folder: Path, settings: ExportSettings) -> Path:
    """Puts an image into a folder that is there. A file that is there already stays if it is the same, and is refused if not.

    Links are absolute. They stand when the export is moved, and where the way to it leads over another link; they break when
    the images move, which are the larger part and move less. For another machine, or a container, there are copies.
    """
    source, place = Path(abspath(image.path)), folder / (flat_name(image.id) + image.path.suffix)
    if not source.is_file():
        raise MelmError(f"{source}: there is no such file; the image {image.id!r} was there when it was labelled")
    try:
        if settings.images == "link":
            try:
                place.symlink_to(source)
            except FileExistsError:
                _require_same(source, place)
            except OSError as error:
                if error.errno not in NO_LINKS and getattr(error, "winerror", None) != NO_RIGHT_TO_LINK:
                    raise
                _copy(source, place)
        else:
            _copy(source, place)
    except OSError as error:
        raise MelmError(f"{source}: cannot be put into {folder} ({error.strerror})") from None
    return place


def _copy(source: Path, place: Path) -> None:
    if os.path.lexists(place):
        _require_same(source, place)
        if not (place.is_symlink() and os.readlink(place) == str(source)):
            return  # else it is a link of ours, and a copy was asked for
    whole = beside(place)
    try:
        shutil.copy2(source, whole)  # with its time, by which the next call sees that it is the same
        whole.replace(place)
    except BaseException:
        whole.unlink(missing_ok=True)
        raise


def _require_same(source: Path, place: Path) -> None:
    if not (place.is_file() and (place.samefile(source) or filecmp.cmp(source, place))):
        raise MelmError(
            f"{place}: is there already and is not the image {source}. Remove it, or name another folder for the labels"
        )
