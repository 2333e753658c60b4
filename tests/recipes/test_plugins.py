"""A recipe and a codec from outside the package do what those of the package do, in interpreters that were told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path("examples/own_codec.py"), Path("examples/own_recipe.py")
SCRIPT = """
import json, torch
from partita import api
from partita.lowering.lower import lower
from partita.recipes.catalogue import call
from partita.runtime.check import checked
from partita.runtime.assembly import train_in_process
from partita.simulator.simulate import simulate
from tests.priced import priced
from tests.small import cluster_of, perceptron

machines, task, text = cluster_of(4), perceptron(), "coded_later(exact=2,codec=scaled_sign,bucket_bytes=300)"
graph = api.graph_of(task)
plan = call(text, graph, machines)
program = lower(graph, plan, machines)[-1].program
costs = priced(graph, machines, sorted({s.batch for s in program.segments}))
plain = lower(graph, call("ddp(bucket_bytes=300)", graph, machines), machines)[-1].program
found = checked(task, lambda graph: call(text, graph, machines), machines, steps=5)
_, losses = train_in_process(task, graph, plan, machines, 30)
print(json.dumps({
    "phases": [phase.steps for phase in plan.before], "semantics": found["semantics"],
    "difference": found["max_difference"], "loss": [losses[0], losses[29]],
    "wire": [max(simulate(each, costs).wire_sent) for each in (program, plain)],
}))
"""


def told(words: list[str], plugins: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PARTITA_PLUGINS": plugins}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, timeout=240)


def both() -> str:
    return ",".join(map(str, EXAMPLES))


def test_they_are_listed_beside_the_others() -> None:
    found = told(["-m", "partita", "recipes", "--json"], both())
    assert found.returncode == 0, found.stderr
    listed = {recipe["name"]: recipe for recipe in json.loads(found.stdout)["recipes"]}
    assert listed["coded_later"]["group"] == "plugins"
    assert listed["coded_later"]["fields"]["exact"] == 100
    assert "ddp" in listed


@pytest.mark.parametrize(("text", "says"), [
    ("RECIPES = {'ddp': print}", "adds 'ddp' to RECIPES, which is there already; rename it"),
    ("CODECS = {'two words': 1}", "adds 'two words' to CODECS; a name of letters and digits is allowed"),
    ("1 / 0", r"cannot be loaded (ZeroDivisionError: division by zero); PARTITA_PLUGINS takes files and modules"),
])  # fmt: skip
def test_what_is_none_is_refused_in_a_sentence(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    found = told(["-m", "partita", "recipes", "ddp", "--json"], str(tmp_path / "mine.py"))
    assert found.returncode == 2
    assert says in json.loads(found.stdout)["error"]
    assert "Traceback" not in found.stderr


def test_a_plugin_is_small() -> None:
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES)


@pytest.mark.slow
def test_it_is_planned_simulated_verified_and_trained() -> None:
    """In one process: a codec of a plugin in a recipe of another one."""
    found = told(["-c", SCRIPT], both())
    assert found.returncode == 0, found.stderr
    body = json.loads(found.stdout.splitlines()[-1])
    assert body["phases"] == [2]
    assert body["semantics"] == "lossy"
    assert body["difference"] <= 1e-9
    assert body["loss"][1] < body["loss"][0]
    assert body["wire"][0] < body["wire"][1]


@pytest.mark.slow
def test_workers_know_them_too(tmp_path: Path) -> None:
    words = ["-m", "partita", "train", "tests/small.py:perceptron", "--cluster", "local:2", "--steps", "6"]
    plan = ["--plan", "coded_later(exact=2,codec=scaled_sign)", "--out", str(tmp_path), "--json"]
    found = told([*words, *plan], both())
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["steps"] == 6
