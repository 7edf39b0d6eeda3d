"""Tagged images in: one record type, one module per format, a check that speaks plainly."""

from __future__ import annotations

from melm.data.formats import read
from melm.data.formats.listing import Source
from melm.data.images import read_image
from melm.data.records import DataError, Problem, TaggedImage, TaggedImages

__all__ = ["DataError", "Problem", "Source", "TaggedImage", "TaggedImages", "read_image", "read_tags"]


def read_tags(source: Source) -> TaggedImages:
    """A data set as learning sees it: images and tags. Boxes that its files may hold are not parsed."""
    listing = read(source, boxes=False)
    if not listing.entries and not listing.problems:
        raise DataError(f"{source.path}: no images in it")
    images = tuple(TaggedImage(e.id, e.path, e.tags, e.unknown) for e in listing.entries)
    return TaggedImages(listing.root, listing.classes, images, tuple(listing.problems))
