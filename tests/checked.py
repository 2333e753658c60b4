"""Fixtures of tests that check many plans of the same models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partita.graph.graph import Graph
from partita.oracles import check
from partita.task import Task
from tests.captures import capture
from tests.small import perceptron


@pytest.fixture(scope="module")
def task() -> Task:
    """A model of two layers, for which many plans are checked."""
    return perceptron()


@pytest.fixture(scope="module")
def graph(task: Task) -> Graph:
    return capture(task, precision="fp64")


@pytest.fixture(scope="module", autouse=True)
def captured_once() -> Iterator[None]:
    """A model is captured once for all its plans."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "capture", capture)
        yield
