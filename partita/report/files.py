"""Files that a command was asked to write."""

from __future__ import annotations

import os
from collections.abc import Iterable
from os.path import exists, isdir, isfile, islink, realpath  # all but the last: false, too, for what may not be asked
from pathlib import Path
from tempfile import TemporaryFile

from partita.errors import OptionError
from partita.files import write_whole


def check_writable(*paths: Path | None) -> None:
    """Raises OptionError for a file that could not be written later, after long work."""
    for path in paths:
        if path is None:
            continue
        if isdir(path) or not isdir(path.parent):
            why = "it is a folder" if isdir(path) else f"there is no folder {path.parent}"
        else:
            why = "" if _takes(path) else "nothing may be written there"
        if why:
            raise OptionError(f"{path} cannot be written ({why}); give a file in a folder that is there")


def check_ending(path: Path | None, what: str, ending: str) -> None:
    """Raises OptionError for a file under whose name no `what` is read. A terminal or a pipe has any name."""
    if path is not None and path.suffix != ending and (isfile(path) or not exists(path)):
        raise OptionError(
            f"the {what} is to be written to {path}; {what}s are read from files that end in {ending}, so name it thus"
        )


def check_apart(*paths: Path | None) -> None:
    """Raises OptionError where one path is to hold two things, of which the second would take the first one's place.
    A terminal or a pipe takes both."""
    wanted = [path for path in paths if path is not None and (isfile(path) or isdir(path) or not exists(path))]
    for at, path in enumerate(wanted):
        if realpath(path) in map(realpath, wanted[:at]):
            raise OptionError(f"{path} is given for two things that are written; give each a path of its own")


def check_unread(read: Iterable[str], *paths: Path | None) -> None:
    """Raises OptionError for a file that is to be written and is one of those that the command reads."""
    there = {realpath(each) for each in read if isfile(each)}
    for path in paths:
        if path is not None and realpath(path) in there:
            raise OptionError(f"{path} is read by this command and would be written over; give another file to write")


def check_folder(path: Path | None) -> None:
    """Raises OptionError for a folder that could not be made or written to later. Makes nothing."""
    there = path
    while there is not None and not exists(there) and there != there.parent:
        there = there.parent
    if there is not None and not (isdir(there) and _takes(there / "new")):
        why = "nothing may be written there" if isdir(there) else f"{there} is a file"
        raise OptionError(f"{path} cannot be written ({why}); give a folder that can be")


def check_no_link(path: Path) -> None:
    """Raises OptionError for a link under a name that nobody gave: in a folder by another hand it may lead anywhere,
    and what it leads to would be written over."""
    if islink(path):
        raise OptionError(
            f"{path} is a link, and what it leads to would be written over; remove it, or give another file"
        )


def check_free(path: Path | None) -> None:
    """Raises OptionError for a folder that holds a training run, whose report a comparison's would replace, or a link
    under that report's name."""
    if path is not None and any(isfile(path / name) for name in ("result.json", "model.safetensors", "manifest.json")):
        raise OptionError(f"{path} holds a training run; give another --out")
    if path is not None:
        check_no_link(path / "report.json")


def check_new(path: Path | None, text: str) -> None:
    """Raises OptionError for a file that is there and says something else than `text`."""
    if path is not None and isfile(path) and path.read_text(encoding="utf-8", errors="replace") != text:
        raise OptionError(f"{path} is there and says something else; give another -o, or remove it")


def _takes(path: Path) -> bool:
    """Whether a file could be written. A folder is asked with a file without a name: what permissions say does not hold
    for root, nor on a disk that is mounted read-only."""
    if exists(path):
        return os.access(path, os.W_OK)
    try:
        with TemporaryFile(dir=path.parent):
            return True
    except OSError:
        return False


def write_file(path: Path, text: str) -> None:
    """Write a text file, whole or not at all. Raises OptionError where that cannot be."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise OptionError(f"{path} cannot be written ({error.strerror}); give a path in a folder that can be") from None
