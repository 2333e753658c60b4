"""Tasks as a module of somebody's own makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from partita.task import Task
from tests.small import perceptron


def trained() -> Task:
    """A task with a name of its own, made by a helper."""
    return _named("own")


def _named(name: str) -> Task:
    return replace(perceptron(), name=name)


def with_size(size: int) -> Task:
    """Takes an argument, which other processes would not know."""
    return replace(perceptron(), batch_size=size)


def in_the_midst(ask: Any = None) -> Any:
    """Asks about a task while it still runs."""
    return ask(_named("midst")) if ask else None
