"""Files that a command was asked to write."""

from __future__ import annotations

from pathlib import Path

from partita.errors import OptionError


def write_file(path: Path, text: str) -> None:
    """Write a text file. Raises OptionError where that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{path} cannot be written ({error.strerror}); give a path in a folder that can be") from None
