"""Checks of what a command was given, before anything slow is loaded. It imports other rooms only when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from partita.errors import OptionError


def check_words(words: Sequence[str]) -> None:
    """Raises OptionError for an empty word, as of a shell's variable that is not set: taken for an option that is not
    given, it would let a run go unsaved. What follows `--` is another program's."""
    for before, word in pairwise(["partita", *words]):
        if word == "--":
            return
        option = word[:-1] if word.startswith("--") and word.endswith("=") else ""
        if option or not word:
            raise OptionError(f"an empty text is given behind {option or before}; give a value there, or leave it out")


def given(cluster: str, *plans: str, files: tuple[Path | None, ...] = (), folder: Path | None = None) -> Any:
    """The Cluster, once the plans' texts are read and `files` and `folder` can be written: bad input is refused before
    anything slow is loaded."""
    from partita.cluster.text import load_cluster
    from partita.recipes.reading import read_text
    from partita.report.files import check_apart, check_folder, check_writable

    check_writable(*files)
    check_apart(*files, folder)
    check_folder(folder)
    for plan in plans:
        read_text(plan)
    return load_cluster(cluster)
