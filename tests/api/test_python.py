"""The verbs as a notebook calls them: Task, Plan and Cluster objects."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import partita as pt
from partita import api
from partita.__main__ import main
from partita.cluster.text import read_cluster
from partita.cost.costs import Costs
from partita.errors import OptionError, PlanError, TaskError
from partita.lab import comparison_run, costing, rehearsal
from partita.plan.memory import Memory, Recompute
from partita.plan.plan import Plan, ranks_of
from partita.plan.text import read_plan, write_plan
from partita.searches.finals import FINALISTS, TIMED_ANYWAY
from partita.searches.steps_to_loss import MeasuredMinibatch, StepsToLoss
from partita.task import load_task, spec_of
from partita.telling import Note
from tests.api import factory
from tests.api.factory import in_the_midst, trained, with_size
from tests.priced import priced
from tests.small import cluster_of, layers, perceptron, two_layers

OWN = "tests.api.factory:trained"
FACTORY = str(Path(__file__).with_name("factory.py"))


def test_a_task_knows_what_other_processes_load_it_by() -> None:
    assert spec_of(trained()) == f"{FACTORY}:trained"
    assert spec_of(load_task(spec_of(trained()))) == f"{FACTORY}:trained"
    assert spec_of(load_task("tests.api.factory:trained")) == "tests.api.factory:trained"
    assert spec_of(api.load("digits-cnn")) == "digits-cnn"
    assert spec_of("anything") == "anything"


def test_a_task_that_others_cannot_make_is_refused() -> None:
    made = eval("Task(**given)", {"Task": pt.Task, "given": {**fields(perceptron()), "name": "cell"}})
    sentence = "was made where other processes cannot make it again; put a function without arguments"
    for task in (made, with_size(4), replace(made, batch_size=6)):
        with pytest.raises(TaskError, match=sentence):
            spec_of(task)
    with pytest.raises(TaskError, match="'midst'"):
        in_the_midst(spec_of)
    with pytest.raises(TaskError, match="'cell'"):
        pt.train(made, "single", pt.Cluster.load("local:1"), steps=1)


class Unmounted:
    """A data set whose files are not there."""

    def __len__(self) -> int:
        raise OSError("the disk is away")


@pytest.mark.parametrize(
    ("field", "data", "sentence"),
    [
        ("data", iter(()), r"Task\.data of 'cell' has no length; give a map-style dataset"),
        ("data", Unmounted(), r"Task\.data of 'cell' has no length: it raised OSError: the disk is away"),
        ("validation", iter(()), r"Task\.validation of 'cell' has no length"),
        ("validation", (), r"Task\.validation of 'cell' holds no samples; give some, or None"),
    ],
)
def test_data_that_cannot_be_read_are_refused(field: str, data: Any, sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence):
        replace(perceptron(), name="cell", **{field: data})


def fields(task: pt.Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in ("model", "loss", "data", "optimizer", "batch_size")}


def test_a_plan_file_means_what_the_recipe_means(tmp_path: Path) -> None:
    """ME-07: `recompute = "auto"` in a file is settled for its budget, as in a call; what is settled stays."""
    graph, cluster = layers(8, batch=256), cluster_of(1)
    asked = Plan("single", memory=Memory(recompute=Recompute.AUTO, budget=0.7))
    path = tmp_path / "plan.toml"
    path.write_text(write_plan(asked))
    called = api.plan_of("single(recompute=auto,budget=0.7)", graph, cluster)
    assert called.memory.recomputed
    for written in (str(path), asked, called):
        assert api.plan_of(written, graph, cluster).memory.recomputed == called.memory.recomputed
    with pytest.raises(PlanError, match="raise budget"):
        api.plan_of(replace(asked, memory=replace(asked.memory, budget=0.01)), graph, cluster)


def test_objects_are_trained_and_the_manifest_says_how(tmp_path: Path) -> None:
    task, cluster = trained(), pt.Cluster.load("local:2")
    plan = pt.recipes.ddp(pt.capture(task), cluster, None, bucket_bytes=256)
    done = pt.train(task, plan, cluster, steps=3, seed=5, out=str(tmp_path))
    assert done is not None
    assert (done.steps, done.plan) == (3, plan)
    body = json.loads((tmp_path / "manifest.json").read_text())
    assert (body["schema"], body["task"], body["seed"], body["steps"]) == (1, f"{FACTORY}:trained", 5, 3)
    assert read_plan(body["plan"]) == plan
    assert read_cluster(body["cluster"], "x") == cluster
    assert set(body["versions"]) >= {"python", "torch", "partita"}


@pytest.mark.parametrize("plan", ["single", "auto"])
def test_a_task_is_made_once_by_who_launches(plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the workers of another lab measure costs before."""
    (tmp_path / "weights").write_text("none")
    made, lab = list[pt.Task](), Measured(monkeypatch)
    monkeypatch.setattr(factory, "trained", lambda: made.append(perceptron()) or made[-1])
    with pytest.raises(TaskError, match="holds no weights"):
        api.train("tests.api.factory:trained", plan, api.cluster_of("local:1"), steps=1, init=tmp_path / "weights")
    assert len(made) == 1
    assert [task for task, *_ in lab.asked] == ([made[0]] * 2 if plan == "auto" else [])


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (("plan", OWN), 2),
        (("simulate", OWN, "--plan", "ddp"), 1),
        (("simulate", OWN, "--plan", "auto"), 3),
        (("plan", OWN, "--costs", "datasheet"), 0),
        (("simulate", OWN, "--plan", "auto", "--costs", "datasheet"), 0),
    ],
    ids=str,
)
def test_a_task_is_made_once_by_who_plans(
    words: tuple[str, ...], times: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The graph and all workers that measure costs are of one Task."""
    made, lab = list[pt.Task](), Measured(monkeypatch)
    monkeypatch.setattr(factory, "trained", lambda: made.append(perceptron()) or made[-1])
    assert main([*words, "--cluster", "lab-4x1g"]) == 0, capfd.readouterr().err
    assert len(made) == 1
    assert [task for task, *_ in lab.asked] == made * times


def test_measurements_of_one_verb_share_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a search and of the plan that it finds, and those of several minibatches; where nothing is measured,
    the task is not made."""
    made, lab, graph = list[pt.Task](), Measured(monkeypatch), api.graph_of(trained())
    monkeypatch.setattr(factory, "trained", lambda: made.append(perceptron()) or made[-1])
    pt.simulate(graph, "auto", pt.Cluster.load("local:2"), task=OWN)
    points = tuple(MeasuredMinibatch(batch, 40 * (1 + 8 / batch)) for batch in (4, 6, 12))
    steps = StepsToLoss(0.5, points)
    api.search(graph, pt.Cluster.load("local:2"), task=OWN, objective="time-to-loss", steps_to_loss=steps)
    assert [task for task, *_ in lab.asked[:3]] == [made[0]] * 3
    assert {id(task) for task, *_ in lab.asked[3:]} == {id(made[1])}
    api.simulate(graph, "auto", pt.Cluster.load("titanx-10gbe"), task=OWN)
    assert len(made) == 2


def test_whoever_takes_auto_is_told_why() -> None:
    """A Note, which no later word takes the place of; a plan that was named needs none."""
    graph, cluster, told = two_layers(), pt.Cluster.load("lab-4x1g"), list[str]()
    costs = priced(graph, cluster, range(1, 9))
    found = pt.search(graph, cluster, costs=costs)
    made = api.plan_of("auto", graph, cluster, costs=costs, tell=told.append)
    assert [said for said in told if isinstance(said, Note)] == ["auto: " + found.explanation.replace("\n", "; ")]
    assert f"{made.name} is bound by" in told[-1]
    told.clear()
    api.plan_of("ddp", graph, cluster, costs=costs, tell=told.append)
    assert not told


def test_a_plan_that_leaves_devices_idle_says_so() -> None:
    """Of six devices four may be best; a reader would look for the other two."""
    graph = two_layers()
    for name, said in (("lab-4x100m", True), ("local:1", False)):
        found = pt.search(graph, name, source="datasheet")
        taken = ranks_of(found.best)
        words = f"{found.best.name} takes {taken} of 4 devices"
        assert (words in found.explanation.splitlines()) == said == (taken < pt.Cluster.load(name).size)
        assert said or "devices" not in found.explanation


def test_what_is_simulated_by_given_costs_is_chosen_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster, lab = two_layers(), pt.Cluster.load("lab-4x1g"), Measured(monkeypatch)
    costs = priced(graph, cluster, range(1, 9))
    assert (
        pt.simulate(graph, "auto", cluster, task=OWN, costs=costs).plan
        == pt.search(graph, cluster, costs=costs).best.name
    )
    assert not lab.asked


def failed_at_once(task: Any, graph: Any, cluster: Any, drafts: Any, *order: Any) -> comparison_run.ComparisonRun:
    """A comparison whose runs have all failed."""
    return comparison_run.ComparisonRun(dict.fromkeys(drafts, comparison_run.PlanRun("", error="failed")), ("ran",))


def test_a_comparison_says_why_auto_takes_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note begins with it, beside those of the runs; a plan that was named needs none."""
    Measured(monkeypatch)
    monkeypatch.setattr(comparison_run, "run_comparison", failed_at_once)
    found = api.compare(OWN, ["auto", "ddp"], api.cluster_of("lab-4x1g"))
    best = api.search(api.graph_of(OWN), api.cluster_of("lab-4x1g"), task=OWN)
    assert found.notes == ("auto: " + best.explanation.replace("\n", "; "), "ran")
    assert best.explanation.startswith(f"{best.best.name} is bound by ")


@pytest.mark.parametrize(("given", "steps"), [({}, 10), ({"target_loss": 0.1}, 4), ({"steps": 7}, 7)])
def test_a_comparison_takes_ten_steps_or_an_epoch(
    given: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And knows what MFU needs."""
    seen: list[comparison_run.Trials] = []

    def stub(*given: Any) -> comparison_run.ComparisonRun:
        seen.extend(each for each in given if isinstance(each, comparison_run.Trials))
        return failed_at_once(*given)

    monkeypatch.setattr(comparison_run, "run_comparison", stub)
    found = api.compare("tests.api.factory:trained", ["single"], api.cluster_of("local:1"), **given)
    assert [trials.steps for trials in seen] == [steps]
    assert (found.setting.samples, found.setting.flops > 0) == (48, True)


def test_a_run_that_cannot_begin_has_its_manifest(tmp_path: Path) -> None:
    """It is written before anything else; and a folder that cannot be written to is refused."""
    (tmp_path / "weights").write_text("none")
    with pytest.raises(TaskError, match="holds no weights"):
        pt.train(trained(), "single", pt.Cluster.load("local:1"), steps=1, out=str(tmp_path), init=tmp_path / "weights")
    assert (tmp_path / "manifest.json").exists()
    with pytest.raises(OptionError, match=r"/proc/nowhere cannot be written .* give another directory"):
        pt.train(trained(), "single", pt.Cluster.load("local:1"), steps=1, out="/proc/nowhere")


def test_a_prediction_is_a_timeline_that_notebooks_draw() -> None:
    graph, cluster = two_layers(), pt.Cluster.load("lab-4x1g")
    plan = pt.search(graph, cluster).best
    timeline = pt.simulate(graph, plan, cluster)
    assert isinstance(timeline, pt.Timeline)
    page = timeline._repr_html_()
    assert page.startswith("<div><svg")
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert str(timeline).startswith(f"{plan.name}, simulated: ")
    assert timeline == pt.simulate(graph, plan.name, cluster)


def test_a_plan_shows_the_text_that_it_is_read_from() -> None:
    plan = replace(pt.recipes.ddp(two_layers(), pt.Cluster.load("local:2")), name="<ddp>")
    assert plan._repr_html_().startswith("<pre>schema = 1")
    assert "&lt;ddp&gt;" in plan._repr_html_()


class Measured:
    """Takes the place of the lab: says a sentence, or costs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sentence: str = "") -> None:
        self.sentence, self.asked = sentence, []
        monkeypatch.setattr(costing.Costing, "measured", lambda each, plans, schedules: self.costs(each, plans))

    def costs(self, each: costing.Costing, plans: Sequence[pt.Plan]) -> Costs | str:
        insist = each.source == "measured"
        self.asked.append((each.task, [plan.name for plan in plans], insist))
        if self.sentence and not insist:
            return self.sentence
        return priced(each.graph, each.cluster, api.batches_of(each.graph, plans))


def test_costs_are_measured_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster, lab = two_layers(), pt.Cluster.load("lab-4x1g"), Measured(monkeypatch)
    plan = api.plan_of("ddp", graph, cluster)
    assert api.costs_of(graph, cluster, [plan], task="t").source == "measured"
    assert api.costs_of(graph, cluster, [plan], task="t", source="datasheet").source == "datasheet"
    assert lab.asked == [("t", ["ddp"], False)]
    found = pt.search(graph, cluster, task=OWN)
    assert found.costs == "measured"
    (_, few, _), (_, more, _) = lab.asked[1:]
    assert few == ["ddp"]
    assert FINALISTS <= len(more) == len(found.candidates) <= FINALISTS + TIMED_ANYWAY
    assert "ddp" in more


def test_workers_of_a_search_start_once_and_stay_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the lab is no stand-in: then they end at once."""
    graph, cluster, events = two_layers(), pt.Cluster.load("lab-4x1g"), list[str]()

    class Workers:
        distorted = ""

        def __init__(self, *given: Any, tell: Any) -> None:
            pass

        def probe(self, plans: Sequence[Plan], schedules: Sequence[str]) -> Costs:
            events.append("probe")
            return priced(graph, cluster, api.batches_of(graph, plans))

        def __enter__(self) -> None:
            events.append("start")

        def __exit__(self, *error: object) -> None:
            events.append("end")

    monkeypatch.setattr(rehearsal, "Rehearsal", Workers)
    assert pt.search(graph, cluster, task=OWN).costs == "measured"
    assert events == ["start", "probe", "probe", "end"]
    monkeypatch.setattr(Workers, "distorted", "no quotas")
    events.clear()
    found = pt.search(graph, cluster, task=OWN, tell=events.append)
    assert (found.costs, found.because) == ("datasheet", "no quotas")
    assert events[:2] == ["start", "end"]
    assert events.count("start") == 1


@pytest.mark.parametrize(
    ("place", "task", "because"),
    [
        ("lab-4x1g", "", "a graph alone"),
        ("lab-4x1g", "graph.json", "a graph alone"),
        ("h100-dgx", "t", "stands elsewhere"),
        ("lab-4x1g", OWN, "no namespaces"),
    ],
)
def test_where_costs_cannot_be_measured_the_answer_says_why(
    place: str, task: str, because: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, cluster = two_layers(), pt.Cluster.load(place)
    Measured(monkeypatch, "no namespaces here")
    costs = api.costs_of(graph, cluster, [api.plan_of("single", graph, cluster)], task=task)
    assert costs.source == "datasheet"
    assert because in costs.because
    found = pt.search(graph, cluster, task=task)
    assert because in found.because
    assert "costs are data sheets', not measured: " + found.because in found.explanation
    if task != OWN:
        with pytest.raises(OptionError, match="costs cannot be measured"):
            api.costs_of(graph, cluster, [], task=task, source="measured")


def test_a_ghost_is_not_timed() -> None:
    cluster = pt.Cluster.load("lab-4x1g")
    ghost = replace(cluster.devices[0], ghost=True)
    haunted = replace(cluster, root=replace(cluster.root, members=(ghost,) * 4))
    plan = api.plan_of("ddp", two_layers(), haunted)
    assert "cannot be timed" in api.costs_of(two_layers(), haunted, [plan], task="t").because
    with pytest.raises(OptionError, match="allowed are measured and datasheet"):
        api.costs_of(two_layers(), haunted, [plan], source="guessed")


def test_help_of_apply_says_what_a_loop_means() -> None:
    """Which plans allow it, and what backward() and step() then do: the contract's words."""
    said = inspect.getdoc(pt.apply) or ""
    for word in ("single", "ddp", "local_sgd", "backward()", "step()", "Raises OptionError", "PlanError"):
        assert word in said
