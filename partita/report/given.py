"""Checks of what a command was given, before anything slow is loaded. It imports other rooms only when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from partita.errors import OptionError


def check_words(words: Sequence[str]) -> None:
    """Raises OptionError for an empty word, as of a shell's variable that is not set: taken for an option that is not
    given, it would let a run go unsaved. And for an option that is given twice, of which one would be ignored. What
    follows `--` is another program's."""
    told = set[str]()
    for before, word in pairwise(["partita", *words]):
        if word == "--":
            return
        name = word.partition("=")[0] if word.startswith("--") else word
        if (name.startswith("--") or name == "-o") and name in told:
            raise OptionError(f"{name} is given twice; give it once")
        told.add(name)
        option = word[:-1] if word.startswith("--") and word.endswith("=") else ""
        if option or not word:
            raise OptionError(f"an empty text is given behind {option or before}; give a value there, or leave it out")


def check_allow(allow: str | None, plan: str) -> None:
    """Raises OptionError for classes of which nothing is chosen, since `plan` is a given one."""
    if allow is not None and plan != "auto":
        raise OptionError(
            f"--allow {allow} says what --plan auto may choose, and --plan is {plan}; leave --allow out, or give auto"
        )


def check_source(costs: str | None, task: str, cluster: Any) -> None:
    """Raises OptionError where costs are to be measured and cannot be, before the task is captured."""
    from partita.cost.measurable import check_measurable, unmeasurable

    if costs == "measured":
        check_measurable(unmeasurable(task, cluster))


def given(
    cluster: str, *plans: str, read: tuple[str, ...] = (), files: tuple[Path | None, ...] = (),
    folder: Path | None = None,
) -> Any:  # fmt: skip
    """The Cluster, once the plans' texts are read and `files` and `folder` can be written, which are none that hold the
    cluster or a plan or are `read` besides, as a task's is: bad input is refused before anything slow is loaded."""
    from partita.cluster.text import load_cluster
    from partita.recipes.reading import read_text
    from partita.report.files import check_apart, check_folder, check_unread, check_writable

    check_writable(*files)
    check_apart(*files, folder)
    check_unread((*read, *(each.partition(":")[0] for each in read), *plans, cluster), *files)
    check_folder(folder)
    for plan in plans:
        read_text(plan)
    return load_cluster(cluster)
