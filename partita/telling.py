"""Who hears in sentences how something long goes: a `tell`; and what of a text by another hand may be shown."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TypeAlias

Tell: TypeAlias = Callable[[str], None]


class Note(str):
    """A sentence that the user must see: it is told whatever was told just before."""


def quiet(sentence: str) -> None:
    """A `tell` that tells nobody."""


def printable(text: str, kept: str = "") -> str:
    """A text with everything that a terminal or a browser could obey (escapes, newlines, changes of direction)
    replaced, but for letters that are `kept`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else "\N{REPLACEMENT CHARACTER}" for c in text)


def escaped(text: str) -> str:
    """The same as text within HTML or SVG."""
    return escape(printable(text))
