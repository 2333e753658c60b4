"""What a notebook gives by mistake: one sentence that says what was given and what to give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import partita as pt
from partita.api.checking import (
    check_bandwidths,
    check_costs,
    check_counts,
    check_flags,
    check_graph,
    check_number,
    check_plans,
    check_steps_to_loss,
    check_task,
    check_timeout,
    cluster_given,
    plans_given,
)
from partita.api.loading import load
from partita.api.planning import plan_of
from partita.api.predicting import sweep
from partita.cost.datasheet import datasheet_costs
from partita.errors import InputError, OptionError, PlanError, TaskError
from partita.searches.steps_to_loss import MeasuredMinibatch, StepsToLoss
from partita.task import load_task, spec_of
from tests.api.factory import trained
from tests.small import Numbers, perceptron, two_layers

TASK, LOCAL = trained(), "local:2"
LAB = pt.Cluster.load(LOCAL)
COSTS = datasheet_costs(two_layers(), LAB, (6, 12))
STEPS = StepsToLoss(0.5, tuple(MeasuredMinibatch(batch, 900.0 / batch) for batch in (6, 12, 24)))
KINDS = [
    (lambda: cluster_given(None), "the cluster is None; give pt.Cluster.load"),
    (lambda: cluster_given(2), "the cluster is of type int 2; give pt.Cluster.load"),
    (lambda: check_graph(TASK), r"the graph is of type Task; give a Graph, which pt.capture\(task\) returns"),
    (lambda: check_task(two_layers()), "the task is of type Graph; give a pt.Task, such as a function of yours"),
    (lambda: check_plans(None), "the plan is None; give a pt.Plan"),
    (lambda: check_plans(pt.recipes.ddp), "the plan is of type function; give a pt.Plan, such as pt.search"),
    (lambda: check_plans("dpd"), "there is no recipe 'dpd'; did you mean 'ddp'"),
    (lambda: plans_given("ddp"), r"the plans are of type str 'ddp'; give a list of one or more, such as \['ddp'"),
    (lambda: plans_given([]), "the plans are of type list without members; give a list of one or more"),
    (lambda: plans_given({"ddp"}), "the plans are of type set; give a list"),
    (lambda: check_counts(1, repeat=0), "repeat is 0; give a whole number, 1 or more"),
    (lambda: check_counts(0, steps=2.5), "steps is 2.5; give a whole number, 0 or more"),
    (lambda: check_counts(0, steps=True), "steps is True; give a whole number"),
    (lambda: check_timeout("60"), "timeout is '60'; give seconds above 0"),
    (lambda: pt.train(TASK, "ddp", LOCAL, steps=1, timeout=float("nan")), "timeout is nan; give seconds above 0"),
    (lambda: pt.train(TASK, "ddp", LOCAL), "steps is 0 and epochs is 0; give one of them, 1 or more"),
    (lambda: pt.train(TASK, "ddp", LOCAL, steps=1, epochs=1), "steps is 1 and epochs is 1; give one of them"),
    (lambda: pt.train(TASK, "ddp", LOCAL, steps=-1), "steps is -1; give a whole number, 0 or more"),
    (lambda: pt.train(TASK, "ddp", LOCAL, steps=1, seed=-1), "seed is -1; give a whole number"),
    (lambda: pt.train(TASK, "ddp", LOCAL, steps=1, seed=2**63), r"seed is 9\d+; give a whole number below 9"),
    (lambda: pt.train(TASK, "ddp", LOCAL, steps=1, keep=0), "keep is 0; give a whole number, 1 or more"),
    (lambda: pt.train(TASK, "ddp", LOCAL, steps=1, keep=2), "--keep says how many checkpoints stay, and this"),
    (lambda: pt.train(TASK, "ddp", "local:0", steps=1), "'local:0' asks for '0' devices; give 1 to"),
    (lambda: pt.train(TASK, "ddp", "local:cuda", steps=1), "give 1 to 1024, such as local:cuda:2"),
    (lambda: pt.compare(TASK, "ddp", LOCAL), "the plans are of type str 'ddp'"),
    (lambda: pt.compare(TASK, ["ddp"], LOCAL, repeat=0), "repeat is 0"),
    (lambda: pt.verify(TASK, "ddp", LOCAL, steps=0), "steps is 0; give a whole number, 1 or more"),
    (lambda: pt.search(two_layers(), LOCAL, top=-1), "top is -1; give a whole number, 0 or more"),
    (lambda: pt.search(two_layers(), LOCAL, allow="lots"), "--allow is 'lots'; allowed are exact, lossy"),
    (lambda: pt.search(two_layers(), LOCAL, objective="size"), "--objective is 'size'; allowed are time, memory"),
    (lambda: pt.search(two_layers(), LOCAL, steps_to_loss=STEPS), "--steps-to-loss is given and --objective is time;"),
    (lambda: check_steps_to_loss("s.toml", "time"), "the steps to a loss are of type str 's.toml'"),
    (lambda: pt.search(two_layers(), LOCAL, costs=COSTS, source="datasheet"), "and costs are given; give one of them"),
    (lambda: pt.search(two_layers(), "local:4", costs=COSTS), "those of local:2, and the cluster is another, local:4"),
    (lambda: pt.simulate(two_layers(), "ddp", "local:4", costs=COSTS), "the costs are those of local:2, and the clus"),
    (lambda: plan_of("gpipe", two_layers(), "local:4", costs=COSTS), "the costs are those of local:2, and the cluster"),
    (lambda: plan_of("ddp", two_layers(), LOCAL, allow="lossy"), "--allow lossy says what --plan auto may choose, and"),
    (lambda: plan_of("ddp", two_layers(), LOCAL, source="sheet"), "--costs is 'sheet'; allowed are measured and data"),
    (lambda: check_costs(7, two_layers(), LAB), "the costs are of type int 7; give Costs, such as"),
    (lambda: check_bandwidths([float("nan")]), "a bandwidth is nan; give a finite number"),
    (lambda: sweep(pt.recipes.ddp(two_layers(), LAB), COSTS, [0]), "a bandwidth is 0; give bytes a second above 0"),
    (lambda: check_bandwidths("10M..1G"), "the bandwidths are of type str '10M..1G'"),
    (lambda: check_number("target_loss", "low"), "target_loss is 'low'; give a finite number"),
    (lambda: pt.compare(TASK, ["ddp"], LOCAL, target_loss=float("nan")), "target_loss is nan; give a finite number"),
    (lambda: check_flags(evaluate="no"), "evaluate is 'no'; give True or False"),
    (lambda: check_flags(resume=True, deterministic=0), "deterministic is 0; give True or False"),
    (lambda: plans_given(["ddp", "single", "ddp"]), "the plan 'ddp' is given twice; give it once, and repeat=2"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "sentence"), KINDS, ids=[sentence[:30] for _, sentence in KINDS])
def test_a_value_of_another_kind_is_one_sentence(asked: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        asked()


def test_plans_that_share_a_name_are_not_mixed_up() -> None:
    graph, cluster = two_layers(), pt.Cluster.load(LOCAL)
    ddp = pt.recipes.ddp(graph, cluster)
    other = replace(pt.recipes.zero1(graph, cluster), name="ddp")
    for twice in ([ddp, other], ["ddp", ddp]):
        with pytest.raises(PlanError, match="two plans are named 'ddp', and rows go by name; rename one"):
            plans_given(twice)
    mine = replace(other, name="mine")
    assert plans_given([ddp, mine, "single"]) == [ddp, mine, "single"]
    with pytest.raises(PlanError, match="the plan 'mine' is given twice"):
        plans_given([mine, "single", mine])


def test_a_cluster_may_be_given_by_its_text(tmp_path: Path) -> None:
    graph = two_layers()
    assert pt.simulate(graph, "ddp", "lab-4x1g") == pt.simulate(graph, "ddp", pt.Cluster.load("lab-4x1g"))
    assert pt.search(graph, "local:1").best == pt.search(graph, pt.Cluster.load("local:1")).best
    with pytest.raises(InputError, match=r"mine\.toml cannot be read"):
        cluster_given(tmp_path / "mine.toml")


class Stream(torch.utils.data.IterableDataset[int]):
    """Has a length and no positions."""

    def __len__(self) -> int:
        return 48

    def __iter__(self) -> Iterator[int]:
        return iter(range(48))


FIELDS: list[tuple[str, Any, str]] = [
    ("name", " ", "Task.name is ' '; give a name"),
    ("name", "a\x1b[31m", r"Task.name is 'a\\x1b\[31m'; give a name, a printable text"),
    ("data", [], "Task.data of 'cell' holds no samples; give 12 or more"),
    (
        "model",
        nn.Linear(6, 3),
        r"Task.model is of type Linear, and made already; give a function that makes the module",
    ),
    (
        "data",
        Stream(),
        "Task.data of 'cell' is of type Stream; give a map-style dataset, with __len__ and a __getitem__",
    ),
    ("data", torch.utils.data.DataLoader(Numbers()), "is a DataLoader; give its dataset, and batch_size to the Task"),
    ("batch_size", True, "Task.batch_size is True"),
]


@pytest.mark.parametrize(("field", "value", "sentence"), FIELDS, ids=[sentence[:30] for _, _, sentence in FIELDS])
def test_a_field_of_a_task_that_cannot_be_right_is_one_sentence(field: str, value: Any, sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence):
        replace(perceptron(), **{"name": "cell", field: value})


UNGUARDED = """
from partita.task import spec_of
from tests.small import perceptron
def task():
    return perceptron()
{guard}spec_of("digits-cnn")
"""


def test_a_file_that_starts_a_run_as_it_is_loaded_is_refused(tmp_path: Path) -> None:
    """Each of its workers would start the same again."""
    script, guarded = tmp_path / "script.py", tmp_path / "guarded.py"
    script.write_text(UNGUARDED.format(guard=""))
    guarded.write_text(UNGUARDED.format(guard='if __name__ == "__main__": '))
    with pytest.raises(TaskError, match=r'script\.py starts a run as it is loaded.* if __name__ == "__main__":'):
        load_task(f"{script}:task")
    assert load_task(f"{guarded}:task").name == "perceptron"


def test_a_helper_may_make_a_task_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes call the function without arguments that calls it; what a module holds they cannot call."""
    (tmp_path / "partly.py").write_text(
        "from dataclasses import replace\nfrom tests.small import perceptron\n"
        "def make(size):\n    return replace(perceptron(), batch_size=size)\n"
    )
    (tmp_path / "whole.py").write_text("from partly import make\ndef task():\n    return make(4)\nheld = make(6)\n")
    monkeypatch.syspath_prepend(tmp_path)
    whole = import_module("whole")
    assert spec_of(whole.task()) == f"{tmp_path}/whole.py:task"
    assert load_task(spec_of(whole.task())).batch_size == 4
    assert whole.held.origin == ""


def test_a_task_is_named_by_its_function_or_by_itself(tmp_path: Path) -> None:
    script = tmp_path / "value.py"
    script.write_text("from tests.small import perceptron\nmine = perceptron()\n")
    task = load_task(f"{script}:mine")
    assert (task.name, task.origin) == ("perceptron", f"{script}:mine")
    with pytest.raises(TaskError, match="has no function 'yours'; name the function that returns a Task, or a Task"):
        load_task(f"{script}:yours")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("graph.json", r"graph\.json is a saved graph, for plan, simulate and fit; to run a task give the task itself"),
        ("mine.py", r"mine\.py names no function; add the one that returns a Task, such as .*mine\.py:task"),
        ("notes", "notes is a file that is no task; give file.py:function"),
    ],
)
def test_a_file_in_the_place_of_a_task_is_one_sentence(name: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(TaskError, match=sentence):
        load(str(tmp_path / name))


def test_a_folder_may_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"file cannot be written \(File exists\); give another directory"):
        pt.train(TASK, "single", "local:1", steps=1, out=tmp_path / "file")


@pytest.mark.parametrize("second", [{"accuracy": 1.0}, None, "text"])
def test_what_a_loss_returns_beside_itself_is_named(second: Any) -> None:
    task = replace(perceptron(), name="beside", loss=lambda model, batch: (model(batch[0]).mean(), second))
    with pytest.raises(
        TaskError, match=f"second part is of type {type(second).__name__}; return the scalar loss alone"
    ):
        pt.capture(task)
