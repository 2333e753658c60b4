"""Ranks that somebody else launched differently are told before they meet, by what differs."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from partita.cluster.cluster import Cluster
from partita.errors import OptionError, RunError
from partita.graph.graph import Graph
from partita.recipes.catalogue import call
from partita.runs.preflight import differing, facts_of
from partita.runs.torchrun import place_here, talk_over
from partita.runs.world import join_world
from tests.small import cluster_of, two_layers


def facts(
    graph: Graph | None = None, plan: str = "ddp", machines: Cluster | None = None, **more: int
) -> dict[str, Any]:
    graph, machines = graph or two_layers(), machines or cluster_of(2)
    numbers = {"seed": 0, "steps": 9} | more
    return dict(facts_of(graph, call(plan, graph, machines), machines, **numbers))


def wider() -> Graph:
    graph = two_layers()
    first = replace(graph.parameters[0], tensor=replace(graph.parameters[0].tensor, shape=(4, 7)))
    return replace(graph, parameters=(first, *graph.parameters[1:]))


DIFFERENT = [
    (facts() | {"torch": "2.12.0"}, r"rank 1 has torch 2\.12\.0 and rank 0 2\.1\d.*; install one version"),
    (facts(steps=8), "rank 1 has --steps 8 and rank 0 9; start all ranks with the same words"),
    (facts() | {"--evaluate-every": 3}, "rank 1 has --evaluate-every 3 and rank 0 0; start all ranks with the same wo"),
    (facts() | {"--patience": 3}, "rank 1 has --patience 3 and rank 0 0; start all ranks with the same words"),
    (facts(plan="pipe_sgd"), "rank 1 has --plan pipe_sgd and rank 0 ddp; give all ranks the same plan"),
    (facts(machines=cluster_of(2, 9e6)), "rank 1 has --cluster equal-2 as rank 0 does, and it is another"),
    (facts(wider()), r"what rank 1 trains is of another model: 1 keys differ, such as a \(float32\[4, 7\] there"),
    (facts(seed=5), "what rank 1 trains was written with --seed 5, and this run has 0"),
    (facts(replace(two_layers(), samples=63)), "what rank 1 trains was written with data of length 63"),
    (facts(replace(two_layers(), operators=two_layers().operators[1:])), "rank 1 captured another step"),
]  # fmt: skip


@pytest.mark.parametrize(("other", "sentence"), DIFFERENT, ids=[sentence[:40] for _, sentence in DIFFERENT])
def test_ranks_that_would_mismatch_are_named_before_they_meet(other: dict[str, Any], sentence: str) -> None:
    """FAULTS 8, 9, 29; bad inputs 45, 46."""
    with pytest.raises(OptionError, match=sentence):
        raise OptionError(differing([facts(), other]))


def test_ranks_that_do_the_same_pass() -> None:
    assert differing([facts(), facts(), facts()]) == ""


def test_each_machine_has_interfaces_of_its_own() -> None:
    here, there = (replace(cluster_of(2), interface=name) for name in ("eth0", "enp3s0"))
    assert differing([facts(machines=here), facts(machines=there)]) == ""


RANKED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}
MISPLACED = [
    ({"WORLD_SIZE": ""}, "RANK is '0' and WORLD_SIZE is ''; start with torchrun, set both to numbers"),
    ({"RANK": "x"}, "RANK is 'x' and WORLD_SIZE is '2'"),
    ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE 2; ranks go from 0 to WORLD_SIZE - 1"),
    ({"WORLD_SIZE": "3"}, "WORLD_SIZE is 3 and equal-2 has 2 devices"),
    ({"MASTER_ADDR": ""}, "MASTER_ADDR is not"),
    ({"MASTER_ADDR": "no-such-host.invalid"}, "MASTER_ADDR 'no-such-host.invalid' is not found"),
    *(({"MASTER_PORT": port}, f"MASTER_PORT is '{port}'; give a port") for port in ("", "0", "65536", "-1", "http")),
]


@pytest.mark.parametrize(("changed", "sentence"), MISPLACED, ids=[str(changed) for changed, _ in MISPLACED])
def test_a_rank_that_cannot_meet_the_others_is_told_why(
    changed: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad inputs 40, 41, 43, 44."""
    for name, value in (RANKED | changed).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match=sentence):
        place_here(cluster_of(2))


def test_a_port_that_is_taken_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad inputs 42, 44: two of rank 0, or somebody else's server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in (RANKED | {"MASTER_PORT": str(server.getsockname()[1])}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(OptionError, match=r"port \d+ of 127.0.0.1 is taken"):
            join_world(0, 2, 5.0)


def test_a_server_that_is_no_store_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input 43: torch itself would wait for its answer without end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in (RANKED | {"RANK": "1", "MASTER_PORT": str(server.getsockname()[1])}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RunError, match=r"rank 1 could not meet .* no store of torch, or says nothing\); check"):
            join_world(1, 2, 0.5)


@pytest.mark.parametrize(
    ("number", "raised", "words"),
    [
        (errno.EACCES, OptionError, "rank 0 cannot listen at port 29500 of 127.0.0.1 .Permission denied"),
        (errno.EMFILE, OptionError, "rank 0 cannot listen at port 29500 of 127.0.0.1 .Too many open files"),
        (errno.EADDRNOTAVAIL, RunError, "could not meet the others"),
    ],
)
def test_only_an_address_elsewhere_has_rank_0_listen_everywhere(
    number: int, raised: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS section 3: and it says so."""

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    def alone(*_: Any, **__: Any) -> None:
        raise RuntimeError("nobody came")

    monkeypatch.setattr(socket, "create_server", refused)
    monkeypatch.setattr(dist, "TCPStore", alone)
    for name, value in (RANKED | {"MASTER_PORT": "29500"}).items():
        monkeypatch.setenv(name, value)
    said: list[str] = []
    with pytest.raises(raised, match=words):
        join_world(0, 2, 5.0, note=said.append)
    assert ["no address of this machine" in sentence for sentence in said] == [True] * (raised is RunError)


@pytest.mark.parametrize(
    ("host", "interface", "chosen", "warned"),
    [
        ("127.0.0.1", "", "lo", False),
        ("::1", "", "lo", False),
        ("localhost", "lo", "lo", False),
        ("192.0.2.1", "", "", True),
        ("2001:db8::1", "", "", True),
    ],
)
def test_ranks_talk_over_loopback_or_say_over_what(
    host: str, interface: str, chosen: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS section 3, rule 1."""
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    said: list[str] = []
    talk_over(replace(cluster_of(2), interface=interface), said.append)
    assert os.environ["GLOO_SOCKET_IFNAME"] == chosen
    assert [sentence.startswith("ranks talk over ") for sentence in said] == [True] * warned
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    with pytest.raises(OptionError, match=r"cluster .* names interface 'eth77'; this machine has lo"):
        talk_over(replace(cluster_of(2), interface="eth77"), said.append)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth78")
    with pytest.raises(OptionError, match=r"^GLOO_SOCKET_IFNAME names interface 'eth78'"):
        talk_over(replace(cluster_of(2), interface=interface), said.append)
