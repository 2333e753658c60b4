"""Recipes and codecs from outside the package: files and modules that PARTITA_PLUGINS names, and entry points.

A plugin is a module with one or more of

    RECIPES = {"name": function}      a recipe as those of the package: (graph, cluster, costs, *, knobs) -> Plan
    CODECS = {"name": Spec(...)}      sizes and settings, without torch
    KERNELS = {"name": (encode, decode)}      a codec's two functions, which import torch when they are called:
                                              encode(values, settings, key) -> a message of bytes
                                              decode(message, like, settings) -> the numbers that it says

Workers are told by the same variable, so it must name what they can find: a path, or a module on their path.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from partita.errors import OptionError
from partita.task import module_of

VARIABLE: Final = "PARTITA_PLUGINS"
GROUP: Final = "partita.plugins"


def plugged(kind: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """What plugins add to the `known` ones of a kind (RECIPES, CODECS, KERNELS).

    Raises OptionError for a plugin that cannot be loaded, and for a name that is taken or is none.
    """
    found: dict[str, Any] = {}
    for name, module in _modules().items():
        for own, value in getattr(module, kind, {}).items():
            if own in known or own in found:
                raise OptionError(f"the plugin {name} adds {own!r} to {kind}, which is there already; rename it")
            if not str(own).isidentifier():
                raise OptionError(f"the plugin {name} adds {own!r} to {kind}; a name of letters and digits is allowed")
            found[own] = value
    return found


def _modules() -> dict[str, ModuleType]:
    """Every plugin by what names it, loaded once."""
    named = {text: text for text in os.environ.get(VARIABLE, "").split(",") if text.strip()}
    named |= {point.name: point.value for point in entry_points(group=GROUP)}
    return {name: _loaded(name, value.strip()) for name, value in named.items()}


def _loaded(name: str, value: str) -> ModuleType:
    try:
        return module_of(Path(value).resolve()) if value.endswith(".py") else importlib.import_module(value)
    except OptionError:
        raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise OptionError(
            f"the plugin {name} cannot be loaded ({why}); {VARIABLE} takes files and modules between commas"
        ) from None
