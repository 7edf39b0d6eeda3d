"""Text in XML, which has no way to write some characters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from melm.errors import MelmError

ESCAPED = {"\r": "&#13;"}  # a bare one would be read as a line feed
CANNOT_HOLD = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def element(name: str, text: str | float) -> str:
    """An element with text in it alone."""
    return f"<{name}>{escape(str(text), ESCAPED)}</{name}>"


def attribute(text: str | float) -> str:
    """The value of an attribute, with its quotes."""
    return quoteattr(str(text))


def require_xml(what: str, texts: Iterable[str]) -> None:
    """Refuses a text with a character that XML cannot hold, such as a control character."""
    for text in texts:
        if found := CANNOT_HOLD.search(text):
            raise MelmError(
                f"the {what} {text!r} has the character {found[0]!r}, which XML cannot hold. "
                "Rename it, or write csv, coco or yolo instead"
            )
