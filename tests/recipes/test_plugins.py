"""A recipe and a codec from outside the package do what those of the package do, in interpreters that were told."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from partita.errors import OptionError, PlanError, RunError
from partita.kernels.codecs import unfused
from partita.plan.plan import Plan
from partita.plan.wire import Codec
from partita.recipes.catalogue import Recipe, guarded
from partita.wire.algorithms import offered
from partita.wire.codec import Spec, coded_size
from partita.wire.offered import wrong_field
from partita.wire.rings import ring
from partita.wire.schedule import Hop, Schedule, schedule
from tests.plugins import load_plugin

SIMULATE = (
    "-m", "partita", "simulate", "tests/small.py:perceptron", "--cluster", "lab-4x1g", "--costs", "datasheet", "--json",
    "--plan",
)  # fmt: skip
EXAMPLES = tuple(Path(f"examples/own_{what}.py") for what in ("codec", "recipe", "collective", "graph"))
SCRIPT = """
import json, torch
from partita import api
from partita.lowering.lower import last_program
from partita.recipes.catalogue import call
from partita.oracles.check import checked
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from tests.priced import batches_of, priced
from tests.small import cluster_of, perceptron

machines, task, text = cluster_of(4), perceptron(), "coded_later(exact=2,codec=scaled_sign,bucket_bytes=300)"
graph = api.graph_of(task)
plan = call(text, graph, machines)
program = last_program(graph, plan, machines)
costs = priced(graph, machines, batches_of(program))
plain = last_program(graph, call("ddp(bucket_bytes=300)", graph, machines), machines)
found = checked(task, lambda graph: call(text, graph, machines), machines, steps=5)
_, losses = train_in_process(Workload(task, graph), plan, machines, 30)
print(json.dumps({
    "phases": [phase.steps for phase in plan.before], "semantics": found["semantics"],
    "difference": found["max_difference"], "loss": [losses[0], losses[29]],
    "wire": [max(simulate(each, costs).wire_sent) for each in (program, plain)],
}))
"""


CODEC = """
import partita.api
import partita.cost.costs
from partita.wire.codec import Spec, read_codecs

(LIKE,) = read_codecs("topk(ratio=0.5)")  # may look things up as well
CODECS = {"halves": Spec("", lambda elements, item, settings: 2 * elements, sums="float16")}
"""
RECIPE = """
from partita import api, recipes
from partita.cost.costs import Costs
from partita.wire.codec import spec_of

def halved(graph, cluster, costs: Costs | None = None, *, codec: str = "halves"):
    return api.plan_of(f"ddp(codec={codec})", graph, cluster)

RECIPES = {"halved": halved}
"""
DOUBLED = """
import torch
from partita.wire.codec import Spec

def doubled(values, settings, key):
    return (2 * values).float().view(torch.uint8)

def half(message, like, settings):
    return message.clone().view(torch.float32).to(like.dtype) / 2

CODECS = {"doubled": Spec("", lambda elements, item, settings: 4 * elements, sums="float32")}
KERNELS = {"doubled": (doubled, half)}
"""
IMPORTED = """
import importlib, pkgutil, sys
import partita
from partita.wire.plugins import LOADED

for found in pkgutil.walk_packages(partita.__path__, "partita."):
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        assert error.name == "triton", error
assert LOADED == {}, LOADED
from partita import recipes
from partita.recipes.catalogue import RECIPES
from partita.wire.codec import SPECS
assert "halves" in SPECS and set(LOADED) == {"mine_codec", "mine_recipe"}
assert recipes.halved is RECIPES["halved"].make
"""

KINDS = """
from partita.errors import PlanError
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.sync import Payload, Sync
from partita.plan.wire import Wire
from partita.recipes.catalogue import guarded

def made(**fields):
    def mine(graph, cluster, costs=None):
        return Plan("mine", **fields)
    return guarded(mine)(None, None, None)

exact = Plan("mine", Mesh((("data", 4),)), sync=(Sync(payload=Payload.DELTA),))
assert made(mesh=Mesh([["data", 4]]), sync=[Sync(payload="delta")]) == exact
for fields, says in (
    ({"sync": (Sync(payload="gradients"),)}, "plan.sync[0].payload is 'gradients'; allowed are gradient, "),
    ({"sync": Sync()}, "plan.sync is {}; a list belongs there"),
    ({"sync": (Sync(wire=Wire(codecs=("q8",))),)}, "plan.sync[0].wire.codecs[0] is 'q8'; a table belongs there"),
    ({"sync": (Sync(wire=Wire(bucket_bytes="4MiB")),)}, "plan.sync[0].wire.bucket_bytes is '4MiB'; a value of"),
    ({"mesh": Mesh((("data", 4.0),))}, "plan.mesh.axes[0][1] is 4.0; a value of type int belongs there"),
):
    try:
        made(**fields)
    except PlanError as error:
        assert str(error).startswith(f"the recipe mine of a plugin returned no possible plan: {says}"), error
    else:
        raise AssertionError(fields)
"""

BROKEN = "the plugin mine cannot be loaded (ModuleNotFoundError: No module named 'no_such_library')"
LOOKED = """
import sys
from partita.errors import OptionError
from partita.kernels.codecs import kernel_of
from partita.plan.wire import Codec
from partita.recipes.catalogue import RECIPES, read_call
from partita.wire.codec import SPECS, read_codecs

assert read_call("ddp(codec=topk)").name == "ddp(codec=topk)" and kernel_of(*read_codecs("topk")).name == "topk"
mine = Codec("mine")
for look in (lambda: read_codecs("mine"), lambda: kernel_of(mine), lambda: list(RECIPES), lambda: len(SPECS)):
    try:
        look()
    except OptionError as error:
        assert str(error).startswith(sys.argv[1]), error
    else:
        raise AssertionError(look)
"""


def told(words: Sequence[str], plugins: str = "", path: str = "") -> subprocess.CompletedProcess[str]:
    """What an interpreter says that was told of plugins, with those that are installed at `path`."""
    among = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PARTITA_PLUGINS": plugins, "PYTHONPATH": among}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, timeout=240)


def installed(place: Path, **modules: str) -> str:
    """A folder with a distribution of so many modules, each an entry point of its name."""
    about = place / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(["[partita.plugins]", *(f"{m} = {m}" for m in modules)]))
    for module, text in modules.items():
        (place / f"{module}.py").write_text(text)
    return str(place)


def examples() -> str:
    return ",".join(map(str, EXAMPLES))


def test_they_are_listed_beside_the_others() -> None:
    found = told(["-m", "partita", "recipes", "--json"], examples())
    assert found.returncode == 0, found.stderr
    listed = {recipe["name"]: recipe for recipe in json.loads(found.stdout)["recipes"]}
    assert listed["coded_later"]["group"] == "plugins"
    assert listed["coded_later"]["fields"]["exact"] == 100
    assert "ddp" in listed


def test_what_is_installed_may_import_all_of_the_package(tmp_path: Path) -> None:
    """A recipe of one module with a codec of another, both of which import what stands above both registries."""
    path = installed(tmp_path, mine_codec=CODEC, mine_recipe=RECIPE)
    found = told([*SIMULATE, "halved"], path=path)
    assert found.returncode == 0, found.stderr
    sent = json.loads(found.stdout)["wire_bytes_sent"]
    assert sum(sent) == 2 * 3 * 2 * 275  # a ring of four passes what 275 numbers take on, twice to three of them


def test_plugins_are_loaded_when_something_is_looked_up(tmp_path: Path) -> None:
    found = told(["-c", IMPORTED], path=installed(tmp_path, mine_codec=CODEC, mine_recipe=RECIPE))
    assert found.returncode == 0, found.stderr


def test_one_that_cannot_be_loaded_is_named_where_it_may_be_asked_for(tmp_path: Path) -> None:
    path = installed(tmp_path, mine="import no_such_library")
    found = told(["-m", "partita", "recipes", "ddp", "--json"], path=path)
    assert found.returncode == 0, found.stderr
    found = told([*SIMULATE, "halved"], path=path)
    assert found.returncode == 2
    assert json.loads(found.stdout)["error"].startswith(BROKEN)
    assert "Traceback" not in found.stderr
    found = told(["-c", LOOKED, BROKEN], path=path)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(("text", "says"), [
    ("RECIPES = {'ddp': print}", "adds 'ddp' to RECIPES, which is there already; rename it"),
    ("RECIPES = {'two words': 1}", "adds 'two words' to RECIPES; a name of letters and digits is allowed"),
    ("RECIPES = {'five': 5}", "adds 'five' to RECIPES, which is 5; give a function that takes (graph, cluster, costs"),
    ("RECIPES = [print]", "has RECIPES that is no dict of names"),
    ("1 / 0", r"cannot be loaded (ZeroDivisionError: division by zero); PARTITA_PLUGINS takes files and modules"),
])  # fmt: skip
def test_what_is_none_is_refused_in_a_sentence(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    found = told(["-m", "partita", "recipes", "--json"], str(tmp_path / "mine.py"))
    assert found.returncode == 2
    assert says in json.loads(found.stdout)["error"]
    assert "Traceback" not in found.stderr


def test_one_wrong_value_leaves_the_others(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("RECIPES = {'five': 5}\nKERNELS = {'one': (print,), 'two': print}")
    found = told([*SIMULATE, "ddp"], str(tmp_path / "mine.py"))
    assert found.returncode == 0, found.stderr
    found = told([*SIMULATE, "five"], str(tmp_path / "mine.py"))
    assert found.returncode == 2
    assert json.loads(found.stdout)["error"].endswith(
        "which is 5; give a function that takes (graph, cluster, costs, *, knobs)"
    )
    code = "from partita.kernels.codecs import KERNELS; KERNELS['one']"
    assert "give its two functions (encode, decode)" in told(["-c", code], str(tmp_path / "mine.py")).stderr


@pytest.mark.parametrize("plan", ["slowmo", "ddp(codec=randk)", "ddp(collective=star)"])
def test_a_name_that_is_none_says_how_others_are_added(plan: str) -> None:
    found = told([*SIMULATE, plan])
    assert found.returncode == 2
    assert json.loads(found.stdout)["error"].endswith("; files and modules that PARTITA_PLUGINS names add others")


def test_a_file_that_is_named_twice_is_one_plugin(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE)
    twice = f"{tmp_path}/mine.py, {tmp_path}/./mine.py"
    found = told(["-m", "partita", "recipes", "--json"], twice)
    assert found.returncode == 0, found.stdout
    assert "halved" in {recipe["name"] for recipe in json.loads(found.stdout)["recipes"]}


def test_a_plugin_is_small() -> None:
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES)


def test_a_collective_is_simulated_and_verified() -> None:
    found = told([*SIMULATE, "ddp(collective=star,bucket_bytes=1048576)"], examples())
    assert found.returncode == 0, found.stderr
    sent = json.loads(found.stdout)["wire_bytes_sent"]
    assert sent == [3 * sent[1], *[sent[1]] * 3]
    words = ["-m", "partita", "verify", "tests/small.py:perceptron", "--cluster", "local:3", "--json"]
    found = told([*words, "--plan", "ddp(collective=star)"], examples())
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_graph_is_simulated() -> None:
    """One partner at a time: what 275 numbers take, once a step."""
    found = told([*SIMULATE, "d_psgd(neighbours=one_peer)"], examples())
    assert found.returncode == 0, found.stdout + found.stderr
    assert json.loads(found.stdout)["wire_bytes_sent"] == [4 * 275] * 4


@pytest.mark.slow
def test_it_is_planned_simulated_verified_and_trained() -> None:
    """In one process: a codec of a plugin in a recipe of another one."""
    found = told(["-c", SCRIPT], examples())
    assert found.returncode == 0, found.stderr
    body = json.loads(found.stdout.splitlines()[-1])
    assert body["phases"] == [2]
    assert body["semantics"] == "lossy"
    assert body["difference"] <= 1e-9
    assert body["loss"][1] < body["loss"][0]
    assert body["wire"][0] < body["wire"][1]


def test_messages_of_a_codec_of_a_plugin_may_be_summed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DOUBLED)
    words = ["-m", "partita", "verify", "tests/small.py:perceptron", "--cluster", "local:2", "--json", "--plan"]
    for plan in ("ddp(codec=doubled)", "ddp(codec=doubled,collective=ring)", "ddp(codec=doubled(where=hop))"):
        found = told([*words, plan], str(tmp_path / "mine.py"))
        assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["coded_later(exact=2,codec=scaled_sign)", "ddp(collective=star)"])
def test_workers_know_them_too(plan: str, tmp_path: Path) -> None:
    words = ["-m", "partita", "train", "tests/small.py:perceptron", "--cluster", "local:2", "--steps", "6"]
    found = told([*words, "--plan", plan, "--out", str(tmp_path), "--json"], examples())
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["steps"] == 6


def test_a_recipe_of_a_plugin_that_fails_is_a_sentence() -> None:
    def broken(graph: Any, cluster: Any, costs: Any = None) -> Plan:
        raise ValueError("no\nplan")

    def empty(graph: Any, cluster: Any, costs: Any = None) -> Plan:
        return None  # type: ignore[return-value]

    with pytest.raises(PlanError, match=r"^the recipe broken of a plugin failed \(ValueError: no\); it takes \(graph"):
        guarded(broken)(None, None, None)
    with pytest.raises(PlanError, match=r"^the recipe empty of a plugin returned NoneType; it takes \(graph, cluster"):
        guarded(empty)(None, None, None)


def test_a_plan_of_a_plugin_has_values_of_the_kinds_that_belong_there() -> None:
    """In an interpreter in which nothing else looks at types."""
    found = told(["-c", KINDS])
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("encode", "decode", "sentence"),
    [
        (lambda v, *_: v.half(), lambda *_: None, "returned float16 of shape [4] for 4 numbers; return flat uint8"),
        (lambda v, *_: v.view(torch.uint8), lambda *_: None, "flat uint8, the 8 bytes that the codec's size gives"),
        (lambda v, *_: v.half().view(torch.uint8)[:4], lambda *_: None, "or set varies=True in its Spec if they vary"),
        (lambda v, *_: 1 / 0, lambda *_: None, "of a codec failed (ZeroDivisionError: division by zero)"),
        (lambda v, *_: v.half().view(torch.uint8), lambda *_: None, "of a codec returned NoneType; return a tensor"),
        (
            lambda v, *_: v.half().view(torch.uint8),
            lambda m, v, *_: v[1:],
            "returned shape [3]; return that of `like`, [4]",
        ),
    ],
)
def test_kernels_of_a_plugin_that_return_what_they_should_not_are_a_sentence(
    encode: Any, decode: Any, sentence: str
) -> None:
    fill, _ = unfused(encode, decode, lambda: False)
    with pytest.raises(RunError, match=re.escape(sentence)):
        fill(torch.ones(4), torch.zeros(8, dtype=torch.uint8), {}, 0, True)


def test_a_codec_that_varies_may_write_less_than_there_is_room_for() -> None:
    fill, _ = unfused(lambda v, *_: v.half().view(torch.uint8)[:4], lambda m, v, *_: v, lambda: True)
    assert fill(torch.ones(4), torch.zeros(8, dtype=torch.uint8), {}, 0, False) == 4
    with pytest.raises(RunError, match="return flat uint8, 2 bytes at most"):
        fill(torch.ones(4), torch.zeros(2, dtype=torch.uint8), {}, 0, False)


def test_a_knob_needs_no_star_before_it() -> None:
    def plain(graph: Any, cluster: Any, costs: Any = None, k: int = 3) -> Any: ...

    def starred(graph: Any, cluster: Any, costs: Any = None, *, k: int = 3, **others: Any) -> Any: ...

    assert [Recipe(make, (), "plugins", "a plugin").own for make in (plain, starred)] == [{"k": 3}] * 2


@pytest.mark.parametrize("size", [2.5, -1, None])
def test_a_size_that_is_no_number_of_bytes_is_a_sentence(size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    load_plugin(monkeypatch, CODECS={"odd": Spec("a plugin", lambda elements, item, settings: size)})
    with pytest.raises(PlanError, match=f"the size of codec odd is {size} for 4 numbers; return a whole number of"):
        coded_size(Codec("odd"), 4, 4)


@pytest.mark.parametrize("size", [lambda elements, item, settings: 1 / 0, lambda elements: elements])
def test_a_size_that_fails_is_a_sentence(size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    load_plugin(monkeypatch, CODECS={"odd": Spec("a plugin", size)})
    with pytest.raises(
        PlanError, match=r"^the size of codec odd failed \((Zero|Type).*; return a whole number of bytes"
    ):
        coded_size(Codec("odd"), 4, 4)


def test_a_size_may_be_a_whole_number_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    load_plugin(monkeypatch, CODECS={"odd": Spec("a plugin", lambda elements, item, settings: np.int64(elements))})  # type: ignore[arg-type,return-value]
    assert coded_size(Codec("odd"), 4, 4) == 4


@pytest.mark.parametrize(("fields", "says"), [
    ({"size": 3}, "its size is 3; give a function of (elements, item, settings)"),
    ({"passes": (1,)}, "its passes are (1,); give two numbers"),
    ({"settings": {"a": 1.0}}, "its settings are {'a': 1.0}; give a tuple of (name, number)"),
    ({"settings": (("level",),)}, "its settings are (('level',),); give a tuple of (name, number)"),
    ({"sums": "floaty"}, "its sums is 'floaty'; float16, bfloat16, float32, float64 are allowed"),
    ({"where": "nowhere"}, "its where is 'nowhere'; end, hop, server are allowed"),
    ({"varies": 1}, "its varies is 1; True or False belongs there"),
    ({"bound": "clip"}, "its bound is 'clip'; name one of its settings"),
    ({"counts": len}, "leave them out"),
    ({"calls": len}, "its calls are for a codec of matrices, which a plugin cannot add; leave them out"),
])  # fmt: skip
def test_a_wrong_field_of_a_codec_is_named(fields: dict[str, Any], says: str) -> None:
    right = {field.name: field.default for field in dataclasses.fields(Spec)} | {"size": len}
    assert wrong_field(SimpleNamespace(**right)) == ""
    assert says in wrong_field(SimpleNamespace(**right | fields))


def test_a_codec_that_is_wrong_leaves_the_others(tmp_path: Path) -> None:
    text = "from partita.wire.codec import Spec\nCODECS = {'three': 3, 'short': Spec('', len, passes=(1,))}"
    (tmp_path / "mine.py").write_text(text)
    for plan, says in {
        "ddp(codec=three)": "adds 'three' to CODECS, which is 3; give a Spec of partita.wire.codec",
        "ddp(codec=short)": "its passes are (1,); give two numbers, those of encoding and of decoding",
    }.items():
        found = told([*SIMULATE, plan], str(tmp_path / "mine.py"))
        assert found.returncode == 2
        assert json.loads(found.stdout)["error"].endswith(says)


def test_a_size_is_a_multiple_of_what_messages_are_summed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec("a plugin", lambda elements, item, settings: elements + 1, sums="float32")
    load_plugin(monkeypatch, CODECS={"odd": spec})
    with pytest.raises(PlanError, match="is 5 for 4 numbers; return a multiple of 4, the bytes of float32"):
        coded_size(Codec("odd"), 4, 4)


@pytest.mark.parametrize(("name", "make", "says"), [
    ("auto", print, "there is one of that name already; rename it"),
    ("kylix", print, "there is one of that name already; rename it"),
    ("mine", 5, "give a function of the number of ranks that returns a Schedule"),
])  # fmt: skip
def test_what_is_no_collective_is_refused(name: str, make: Any, says: str) -> None:
    with pytest.raises(OptionError, match=f"^{says}$"):
        offered(name, make)


@pytest.mark.parametrize(("make", "says"), [
    (lambda ranks: 1 / 0, r"failed \(ZeroDivisionError: division by zero\); it takes the number of ranks"),
    (lambda ranks: schedule("mine", 3, 1, [[Hop(0, 3, 0, 1, False)]]), "is impossible for 3 ranks: mine: the hop 0"),
    (lambda ranks: Schedule("mine", 3, 1, ((Hop(0, 1, 0, 2, False),),)), "is impossible for 3 ranks: mine: the hop 0"),
    (lambda ranks: None, "returned None for 3 ranks; it takes the number of ranks and returns a Schedule of them"),
    (lambda ranks: ring(2), "returned Schedule for 3 ranks; it takes"),
    (lambda ranks: schedule("mine", 3, 1, [[Hop(1, 0, 0, 1, True)]]), "leaves rank 0 of 3 without the sum of all"),
])  # fmt: skip
def test_a_collective_that_is_no_all_reduce_is_a_sentence(make: Any, says: str) -> None:
    with pytest.raises(PlanError, match=f"^the collective mine of a plugin {says}"):
        offered("mine", make)(3)
