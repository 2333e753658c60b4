"""Servers in two tiers do what one does, with less at the root."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.errors import LoweringError, PlanError
from partita.lowering.lower import last_program, lower
from partita.oracles.check import checked
from partita.plan.plan import own_servers
from partita.recipes.catalogue import call
from partita.simulator.simulate import simulate
from tests.captures import capture
from tests.priced import batches_of, priced
from tests.programs import program_by
from tests.small import cluster_of, layers, perceptron

TEXT = "ps_hierarchical(fan={},bucket_bytes=400)"


@pytest.mark.parametrize(("fan", "size", "within"), [(2, 6, 1e-9), (2, 8, 1e-12)])
def test_two_tiers_are_exact(fan: int, size: int, within: float) -> None:
    """DP-08: equal to the oracle, also where groups and parts differ in size; plain SGD to 1e-12."""
    task, machines = perceptron(), cluster_of(size)
    if within < 1e-9:
        task = replace(task, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    found = checked(task, lambda graph: call(TEXT.format(fan), graph, machines), machines, order=fan)
    assert found["semantics"] == "exact"
    assert found["max_difference"] <= within


def machines(ranks: int, bandwidth: float) -> Cluster:
    return Cluster("thin", Group("root", (Device(cores=1.0),) * ranks, (Link(bandwidth, 0.0),) * ranks))


@pytest.mark.parametrize(
    ("plan", "size", "roles"),
    [
        ("ps_sync", 2, 2), ("ps_sync(codec=topk)", 2, 2), ("p3", 2, 2), ("adam", 2, 2), ("ps_hierarchical", 3, 3),
        ("ps_replicated", 3, 3), ("ps_sync(own=false)", 1, 1),
    ],
)  # fmt: skip
def test_one_worker_has_the_servers_that_were_asked_for(plan: str, size: int, roles: int) -> None:
    machines, graph = cluster_of(size), capture(perceptron())
    made = call(plan, graph, machines)
    assert [len(role.ranks) for role in last_program(graph, made, machines).roles] == [1] * roles
    assert checked(perceptron(), lambda graph: call(plan, graph, machines), machines)["max_difference"] <= 1e-9


@pytest.mark.parametrize("fan", [1, 2, 4])
def test_a_root_has_as_many_peers_as_its_fan(fan: int) -> None:
    """DP-08: f n bytes come in and go out at the root each step, n for each child of an inner node."""
    graph, place = layers(4, batch=24), machines(8 + 1 + fan, 1e9)
    size = graph.trained_bytes
    program = program_by(f"ps_hierarchical(fan={fan})", graph, place)
    found = simulate(program, priced(graph, place, batches_of(program)))
    root, leaves, workers = found.wire_sent[8], found.wire_sent[9:], found.wire_sent[:8]
    assert root == fan * size
    assert leaves == tuple([(8 // fan + 1) * size] * fan)
    assert workers == (size,) * 8
    assert sum(leaves) + sum(workers) - 8 * size == (fan + 8) * size


def test_the_best_fan_is_the_one_whose_tiers_take_least() -> None:
    """DP-08: with p = 8 and messages that rule, a step of whole tiers is (f + p / f) n / bandwidth each way; 2 and 4
    beat one server (8 n) and a chain of 8 below one."""
    graph, seconds = layers(64, batch=24), {}
    for fan in (1, 2, 4, 8):
        place = machines(8 + 1 + fan, 1e5)
        program = program_by(f"ps_hierarchical(fan={fan})", graph, place)
        costs = priced(graph, place, batches_of(program), operator=1e-9)
        seconds[fan] = simulate(program, costs).step_seconds
    n = graph.trained_bytes / 1e5
    for fan, found in seconds.items():
        assert found == pytest.approx(2 * (fan + 8 / fan) * n, rel=0.1)
    assert max(seconds[2], seconds[4]) < min(seconds[1], seconds[8])


def test_what_cannot_be_is_refused() -> None:
    task = perceptron()
    graph, place = capture(task), cluster_of(7)
    with pytest.raises(PlanError, match="5 servers under each, over 1 workers"):
        lower(graph, call("ps_hierarchical(fan=5)", graph, place), place)
    bounded = capture(replace(task, clip_norm=1.0))
    assert own_servers(call("ps_hierarchical", graph, cluster_of(16))) == 1 + 4
    with pytest.raises(LoweringError, match="under servers in levels"):
        lower(bounded, call("ps_hierarchical", bounded, place), place)
