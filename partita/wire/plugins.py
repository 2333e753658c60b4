"""Recipes, codecs, collectives and graphs from outside the package: what PARTITA_PLUGINS names, and entry points.

A plugin is a module with one or more of

    RECIPES = {"name": function}      a recipe as those of the package: (graph, cluster, costs, *, knobs) -> Plan
    CODECS = {"name": Spec(...)}      sizes and settings, without torch
    KERNELS = {"name": (encode, decode)}      a codec's two functions, which import torch when they are called:
                                              encode(values, settings, key) -> a message of bytes
                                              decode(message, like, settings) -> the numbers that it says
    COLLECTIVES = {"name": function}  an all-reduce for `collective=`: (ranks) -> Schedule, without torch
    GRAPHS = {"name": function}       who takes how much of whose weights, for `neighbours=`: (ranks) -> a list of
                                      matrices, one for each exchange of a round, whose rows sum to 1

It may import all of the package: it is loaded when something is first looked up in a `Registry`, and no module of the
package looks anything up while it is imported.

Workers are told by the same variable, so it must name what they can find: a path, or a module on their path.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, Final, Generic, TypeVar

from partita.errors import Ended, OptionError, first_line
from partita.task import module_of

VARIABLE: Final = "PARTITA_PLUGINS"
GROUP: Final = "partita.plugins"
LOADED: Final[dict[str, ModuleType | str]] = {}  # every plugin by what names it, or why it cannot be loaded
LOADING: Final = RLock()
MOST_SHOWN: Final = 40  # characters of a value in a sentence
V = TypeVar("V")


class Registry(Mapping[str, V], Generic[V]):
    """The entries of a kind by name: the package's `own`, and what plugins have under `kind`, made entries by
    `entry(name, value)`, which raises OptionError with what to give instead.

    Raises OptionError where an entry is looked up, or all are, that a plugin may have which cannot be loaded; and for
    a name of a plugin's that is taken or is none, or a value that `entry` refuses.
    """

    def __init__(self, kind: str, own: Mapping[str, V], entry: Callable[[str, Any], V]) -> None:
        self.kind, self.own = kind, own
        self._entry = entry
        self._read: Mapping[str, ModuleType | str] = {}
        self._entries: dict[str, V] = dict(own)
        self._wrong: list[tuple[str, str]] = []  # the name in question, and what is wrong with it

    def __getitem__(self, name: str) -> V:
        self._look()
        for what, sentence in self._wrong:
            if what == name or (not what and name not in self._entries):
                raise OptionError(sentence)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._look()
        for _, sentence in self._wrong:
            raise OptionError(sentence)
        return iter(self._entries)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _look(self) -> None:
        """Read the plugins, if there are any that were not read: one that is being loaded may look things up."""
        if (plugins := loaded()) == self._read:
            return
        entries, wrong = dict(self.own), list[tuple[str, str]]()
        for name, module in plugins.items():
            if isinstance(module, str):
                wrong.append(("", module))
                continue
            if not isinstance(offered := getattr(module, self.kind, {}), Mapping):
                wrong.append(("", f"the plugin {name} has {self.kind} that is no dict of names"))
                continue
            for own, value in offered.items():
                adds = f"the plugin {name} adds {own!r} to {self.kind}"
                if own in entries:
                    wrong.append((own, f"{adds}, which is there already; rename it"))
                elif not str(own).isidentifier():
                    wrong.append(("", f"{adds}; a name of letters and digits is allowed"))
                else:
                    try:
                        entries[own] = self._entry(own, value)
                    except OptionError as error:
                        wrong.append((own, f"{adds}, which is {shown(value)}; {error}"))
        self._entries, self._wrong = entries, wrong
        self._read = plugins  # last: other threads look as well


def others() -> str:
    """What a sentence says behind all names that there are: that plugins add others, where none is loaded."""
    return "" if loaded() else f"; files and modules that {VARIABLE} names add others"


def shown(value: object) -> str:
    """A plugin's value as a sentence quotes it."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else type(value).__name__


def loaded() -> Mapping[str, ModuleType | str]:
    """Every plugin by what names it: its module, or the sentence that says why there is none. Loaded at the first
    call."""
    with LOADING:
        for name, value in _named():
            if name not in LOADED:
                LOADED[name] = f"the plugin {name} is looked for while it is being loaded; look it up in a function"
                LOADED[name] = _loaded(name, value)
        return dict(LOADED)


@cache
def _named() -> tuple[tuple[str, str], ...]:
    """What names a plugin, and the file or module; each once, however it is written."""
    named = {text: text for text in os.environ.get(VARIABLE, "").split(",") if text.strip()}
    named |= {point.name: point.value for point in entry_points(group=GROUP)}
    found = dict[str | Path, tuple[str, str]]()
    for name, value in named.items():
        value = value.strip()
        found.setdefault(Path(value).resolve() if value.endswith(".py") else value, (name, value))
    return tuple(found.values())


def _loaded(name: str, value: str) -> ModuleType | str:
    try:
        return module_of(Path(value).resolve()) if value.endswith(".py") else importlib.import_module(value)
    except Ended:
        raise
    except (Exception, SystemExit) as error:
        what = name if name.strip() == value else f"{name} ({value})"
        mend = f"{VARIABLE} takes files and modules between commas" if name.strip() == value else "mend or uninstall it"
        return f"the plugin {what} cannot be loaded ({first_line(error)}); {mend}"
