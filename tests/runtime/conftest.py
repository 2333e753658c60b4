"""Shared by tests that check many plans of the same models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partita.graph.graph import Graph
from partita.runtime import check
from partita.task import Task


@pytest.fixture(scope="module")
def captured_once() -> Iterator[None]:
    """A model is captured once for all its plans."""
    found: dict[tuple[str, str], Graph] = {}
    capture = check.capture

    def once(task: Task, *, precision: str = "") -> Graph:
        if (task.name, precision) not in found:
            found[task.name, precision] = capture(task, precision=precision)
        return found[task.name, precision]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "capture", once)
        yield
