"""What a final loss is of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from partita import api
from partita.api import comparing
from partita.errors import InputError
from partita.lab import comparison_run
from partita.plan.plan import Plan
from partita.program.timeline import Timeline
from partita.report.comparison import Row
from partita.runs.result import RunResult
from partita.task import judged_by
from tests.api import factory

OWN = "tests.api.factory:trained"


def test_a_final_loss_says_what_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of samples held out, or else of those that were trained on, which no comparison leaves unsaid."""
    task = factory.trained()
    data, count, words = judged_by(replace(task, validation=None))
    assert (data, count) == (task.data, min(256, len(task.data)))
    assert words == f"the first {count} samples of the data, as Task.validation holds none out"
    assert judged_by(replace(task, validation=task.data))[1:] == (len(task.data), f"{len(task.data)} held-out samples")

    def run(task: Any, graph: Any, cluster: Any, drafts: Any, *order: Any) -> comparison_run.ComparisonRun:
        ran = RunResult(Timeline("ddp", "measured", 1.0, 4), ((0, 1.0, 2.0),), 0.5, "")
        return comparison_run.ComparisonRun({"ddp": comparison_run.PlanRun("exact", (), (ran,))}, ())

    monkeypatch.setattr(comparison_run, "run_comparison", run)
    for name in ("load_ahead", "check_here"):
        monkeypatch.setattr(comparing, name, lambda *_: None)
    monkeypatch.setattr(comparing, "_planned", lambda *_, **__: Plan("ddp"))
    monkeypatch.setattr(comparing, "row_of", lambda text, *_: Row(text, final_loss=0.5))
    notes = api.compare(OWN, ["ddp"], api.cluster_of("lab-4x1g")).notes
    assert notes == (() if task.validation is not None else (f"final losses are of {words}",))
    assert api.compare(OWN, ["ddp"], api.cluster_of("lab-4x1g"), evaluate=False).notes == ()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"patience": 2}, "--patience counts evaluations .* give --evaluate-every N too, or leave --patience out"),
        ({"evaluate_every": -1}, "evaluate_every is -1; give a whole number, 0 or more"),
        ({"evaluate_every": 2}, "Task.validation of 'perceptron' is None; give it a dataset, or leave --evaluate-ev"),
    ],
)
def test_evaluations_that_cannot_be_are_refused(given: dict[str, int], sentence: str) -> None:
    """Before a step is captured: without samples that are held out nothing is judged on its way."""
    with pytest.raises(InputError, match=sentence):
        api.train("tests/small.py:perceptron", "single", "local:1", steps=2, **given)
