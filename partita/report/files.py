"""Files that a command was asked to write."""

from __future__ import annotations

from pathlib import Path

from partita.errors import OptionError


def check_writable(*paths: Path | None) -> None:
    """Raises OptionError for a file that could not be written later, after long work."""
    for path in paths:
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise OptionError(f"{path} cannot be written ({why}); give a file in a folder that is there")


def write_file(path: Path, text: str) -> None:
    """Write a text file. Raises OptionError where that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{path} cannot be written ({error.strerror}); give a path in a folder that can be") from None
