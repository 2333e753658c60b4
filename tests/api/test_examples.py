"""Examples run again, as whoever tries them does."""

from __future__ import annotations

from typing import Any

import pytest

import partita as pt
from partita.task import module_of
from tests.architecture.rooms import PACKAGE


def test_a_training_runs_again_and_under_another_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that holds a finished run is refused to any other: each plan has its own, and goes on in it."""
    asked = list[dict[str, Any]]()

    def train(task: str, plan: str, cluster: Any, **given: Any) -> None:
        asked.append(given)

    monkeypatch.setattr(pt, "train", train, raising=False)
    example = module_of(PACKAGE.parent / "examples" / "train.py")
    for plan in ("ddp", "ddp", "pipe_sgd"):
        example.main(plan)
    assert all(given["resume"] for given in asked)
    assert asked[0]["out"] == asked[1]["out"] != asked[2]["out"]
