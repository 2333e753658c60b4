"""What a training says of the place where it runs; workers are stood in for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import partita as pt
from partita.lab import network, train
from partita.lab.lab import NamespacesRefused
from partita.runs.result import RunResult
from tests.api.factory import trained
from tests.report.timelines import measured
from tests.small import cluster_of


class Workers:
    """A lab that lacks something, in which a run has been carried out at once."""

    notes = ("no bandwidth here",)

    def __init__(self, *given: Any, **order: Any) -> None:
        self.steps = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.steps = 0

    def train(self, *given: Any, **order: Any) -> RunResult:
        return RunResult(measured(), ((0, 1.0, 2.0),), 1.0, "")


def test_what_the_lab_does_not_emulate_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "Rehearsal", Workers)
    told = list[str]()
    done = pt.train(trained(), "ddp", "lab-2x2", steps=1, tell=lambda sentence: told.append(str(sentence)))
    assert done is not None
    assert done.notes == ("no bandwidth here",)
    assert "no bandwidth here" in told


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("answers", [("no ip", "no ip"), ("no ip", "not allowed")])
def test_a_reason_is_said_once(answers: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    left = list(answers)

    def refuse(*given: Any) -> None:
        raise NamespacesRefused(left.pop(0))

    monkeypatch.setattr(network, "find_tool", refuse)
    monkeypatch.setattr(network.os, "geteuid", lambda: 0)
    with network.open_lab(replace(cluster_of(2), emulated=True)) as lab:
        why = "; ".join(dict.fromkeys(answers))
        assert lab.notes == (
            f"network namespaces are refused here ({why}): plain processes on loopback, no bandwidth, no quota",
        )
