"""Every recipe on a cluster, and every way to misspell one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cluster.text import load_cluster
from partita.errors import InputError, PlanError
from partita.graph.graph import Graph
from partita.lowering.lower import last_program, lower
from partita.plan.memory import Memory, Precision, Recompute, Shard
from partita.plan.plan import ranks_of
from partita.plan.sync import Servers
from partita.plan.text import read_plan, write_plan
from partita.recipes.catalogue import RECIPES, call, parse
from tests.small import cluster_of, layers

APART = {("hogwild", "lab-2x2"), ("buckwild", "lab-2x2")}  # two machines have no memory in common


@pytest.fixture(scope="module")
def graph() -> Graph:
    return layers(16)


def test_the_readme_shows_a_recipe_as_it_is() -> None:
    root = Path(__file__).parents[2]
    shown = (root / "README.md").read_text().split("```python\n")[2].partition("```")[0]
    assert (root / "partita/recipes/ps_sharded.py").read_text().partition('"""\n\n')[2] == shown


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("place", ["local:1", "local:4", "lab-2x2"])
def test_every_recipe_is_lowered_or_says_why(graph: Graph, name: str, place: str) -> None:
    machines = load_cluster(place)
    try:
        plan = call(name, graph, machines)
        programs = [stretch.program for stretch in lower(graph, plan, machines)]
    except InputError as refusal:
        assert place == "local:1" or (name, place) in APART
        said = str(refusal)
    else:
        said = f"{plan.name} runs"
        assert all(program.size == ranks_of(plan) <= machines.size for program in programs)
    assert name in said
    assert "\n" not in said


@pytest.mark.parametrize("name", RECIPES)
def test_every_knob_can_be_given_its_default(graph: Graph, name: str) -> None:
    machines, knobs = cluster_of(4), RECIPES[name].knobs
    text = f"{name}({','.join(f'{knob}={value}' for knob, value in knobs.items())})"
    assert replace(call(text, graph, machines), name="") == replace(call(name, graph, machines), name="")


@pytest.mark.parametrize("name", RECIPES)
def test_a_plan_keeps_its_call_for_a_name_and_survives_toml(graph: Graph, name: str) -> None:
    plan = call(f" {name}( microbatches = 2 )", graph, cluster_of(4))
    assert plan.name == f"{name}(microbatches=2)"
    assert read_plan(write_plan(plan)) == plan


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_the_knobs_of_memory(graph: Graph, name: str) -> None:
    """They change the finished plan's memory, that of phases before it as well, and nothing else."""
    machines = cluster_of(4)
    knobs = "shard=optimizer,recompute=full,precision=bf16,loss_scale=8"
    made, bare = call(f"{name}({knobs})", graph, machines), call(name, graph, machines)
    wanted = Memory(Shard.OPTIMIZER, recompute=Recompute.FULL, precision=Precision.BF16, loss_scale=8.0)
    assert made.memory == wanted
    assert replace(made, name=bare.name, memory=bare.memory, before=bare.before) == bare
    assert [phase.plan.memory for phase in made.before] == [wanted] * len(bare.before)
    if name == "pipe_sgd":
        early = call(f"{name}(warmup=3,{knobs})", graph, machines).before
        assert [phase.plan.memory for phase in early] == [wanted]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_it_reproduces(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.make.__name__ == name
    assert all(entry in (recipe.make.__doc__ or "") for entry in recipe.catalogue[:1])
    assert recipe.paper


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("ddp", ("ddp", {})),
        ("ddp()", ("ddp", {})),
        ("ps_sync(servers=2, own=false)", ("ps_sync", {"servers": 2, "own": False})),
        ("ps_sync(own=True)", ("ps_sync", {"own": True})),
        ("ddp(bucket_bytes=-1)", ("ddp", {"bucket_bytes": -1})),
        ("ddp(order=fifo)", ("ddp", {"order": "fifo"})),
        ("ddp(codec='q8')", ("ddp", {"codec": "q8"})),
    ],
)
def test_a_call_is_a_name_and_literals(text: str, parsed: tuple[str, dict[str, object]]) -> None:
    assert parse(text) == parsed


MISTAKES = [
    ("dpd", "did you mean 'ddp'?"),
    ("local-sgd", "no recipe call"),
    ("warp_drive", "there are single, ddp"),
    ("ddp(bucket_byte=1)", "did you mean 'bucket_bytes'?"),
    ("single(servers=1)", "it has microbatches"),
    ("ddp(bucket_bytes=1.5)", "a value such as 4194304 belongs there"),
    ("ddp(bucket_bytes=large)", "a value such as 4194304 belongs there"),
    ("ddp(microbatches=true)", "a value such as 1 belongs there"),
    ("ps_sync(own=1)", "a value such as True belongs there"),
    ("ddp(bucket_bytes=-1)", "0 or more is allowed"),
    ("ddp(budget=-0.5)", "0 or more is allowed"),
    ("ddp(recompute=some)", "one of none, full, selective, auto belongs there"),
    ("ddp(", "no recipe call"),
    ("", "no recipe call"),
    ("ddp(1048576)", "give knobs by name"),
    ("ddp(**{'bucket_bytes': 1})", "give knobs by name"),
    ("ddp(bucket_bytes=1)(2)", "give knobs by name"),
    ("ddp; single", "no recipe call"),
    ("ddp(bucket_bytes={[]: 1})", "no number, word or true/false"),
]


@pytest.mark.parametrize(("text", "words"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_a_mistake_gets_one_sentence(graph: Graph, text: str, words: str) -> None:
    with pytest.raises(PlanError) as refusal:
        call(text, graph, cluster_of(4))
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "value",
    ["__import__('os').putenv('PARTITA_RAN', '1')", "(lambda: 1)()", "2**20", "[i for i in (1,)]", "graph.name"],
)
def test_no_code_of_a_call_is_run(graph: Graph, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []
    monkeypatch.setattr(os, "putenv", lambda *given: ran.append(given))
    with pytest.raises(PlanError, match="no number, word or true/false"):
        call(f"ddp(bucket_bytes={value})", graph, cluster_of(4))
    assert not ran


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ps_sync(servers=4)", "length 0"),
        ("ps_sync(servers=0)", "0 servers"),
        ("ps_sync(servers=5,own=false)", "5 servers"),
        ("ddp(microbatches=3)", "does not divide"),
        ("ddp(microbatches=0)", "0 microbatches"),
        ("diloco(period=2,fragments=3)", "at most 2 fragments"),
        ("diloco(period=2,lag=3)", "and a lag of 2 are allowed"),
        (
            "backup_workers(backup=3)",
            "more than equal-4 can spare of its 3 workers; use a backup below their",
        ),
        ("backup_workers(backup=2,servers=4)", "length 0; 1 or more is allowed, and 4 devices serve: ask for fewer"),
        ("softsync(n=4)", "of each of the 3 workers on equal-4; use n from 1 to the number of workers"),
        ("softsync(n=0)", "softsync(n=0) makes 0 steps"),
        ("ddp(budget=3)", "a budget of 3 and recompute=none, which heeds none; use recompute=auto"),
        ("zero2(shard=none)", "zero2 divides state and shard=none divides none; leave shard out"),
        ("easgd(rate=5)", "a moving rate of 5 carries workers beyond the centre; use rate=1 or less"),
        ("ps_hierarchical(fan=3)", "4 devices serve: ask for fewer servers, or take a cluster of 5 devices or more"),
    ],
)
def test_a_knob_that_asks_too_much(graph: Graph, text: str, words: str) -> None:
    machines = cluster_of(4)
    with pytest.raises(InputError) as refusal:
        lower(graph, call(text, graph, machines), machines)
    assert words in str(refusal.value)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_plan_takes_the_whole_cluster(graph: Graph, size: int) -> None:
    machines = cluster_of(size)
    assert {name: ranks_of(call(name, graph, machines)) for name in RECIPES if name != "single"} == dict.fromkeys(
        RECIPES.keys() - {"single"}, size
    )


def test_servers_of_their_own_come_on_top_of_workers(graph: Graph) -> None:
    plan = call("ps_sync(servers=2)", graph, cluster_of(5))
    assert (plan.mesh.size, plan.sync[0].through) == (3, Servers(2, own=True))


def test_a_slow_device_serves_nobody(graph: Graph) -> None:
    """Servers that share devices stand on the fastest; 0 of them: on all but the slower ones."""
    fast, slow = Device(cores=0.5), Device(cores=0.1)
    machines = Cluster("slow", Group("root", (slow, fast, fast, slow, fast), (Link(1e8),) * 5))
    found = {
        text: call(text, graph, machines) for text in ("backup_workers(own=false,servers=0)", "ps_sync(own=false)")
    }
    assert [plan.sync[0].through for plan in found.values()] == [
        Servers(3, False, at=(1, 2, 4)),
        Servers(1, False, at=(1,)),
    ]
    for plan in found.values():
        assert plan.mesh.size == 5
        program = last_program(graph, plan, machines)
        serving = {role.ranks[0] for role in program.roles if "server" in role.name}
        assert serving == set(plan.sync[0].through.at)
    equal = call("ps_async(own=false,servers=0)", graph, cluster_of(3))
    assert equal.sync[0].through == Servers(3, False)


@pytest.mark.parametrize("at", [(0, 0), (0, 7), (1,)])
def test_servers_stand_at_workers_each_once(graph: Graph, at: tuple[int, ...]) -> None:
    plan = call("ps_sync(own=false,servers=2)", graph, cluster_of(3))
    wrong = replace(plan, sync=(replace(plan.sync[0], through=Servers(2, False, at=at)),))
    with pytest.raises(PlanError, match="ranks"):
        lower(graph, wrong, cluster_of(3))
