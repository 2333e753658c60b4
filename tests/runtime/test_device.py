"""Ranks on accelerators, as far as that shows without one: torch's fake tensors refuse an operator on two devices."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import partita
from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cluster.text import load_cluster
from partita.errors import ClusterError
from partita.program.timeline import Span
from partita.runtime import device as devices
from partita.runtime.device import BOTH, CPU, GLOO, Events, backend_of, device_of
from partita.transport.operations import StagedMessage, StreamCollective

CARD = Device(kind="card", backend="cuda")


def cluster_with(*members: Device) -> Cluster:
    return Cluster("local:drawn", Group("root", members, (Link(1e9),) * len(members)))


def test_ghosts_and_processors_compute_on_the_processor() -> None:
    cluster = cluster_with(Device(), Device(backend="cuda", ghost=True))
    assert [device_of(cluster, rank) for rank in range(2)] == [CPU, CPU]
    assert backend_of(cluster) == GLOO
    assert backend_of(cluster_with(Device(), CARD)) == BOTH


def test_a_rank_takes_the_card_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cluster = cluster_with(CARD, CARD, CARD)
    assert [device_of(cluster, rank) for rank in range(2)] == ["cuda:0", "cuda:1"]
    with pytest.raises(ClusterError, match="puts rank 2 on cuda:2 and this process sees 2 such devices"):
        device_of(cluster, 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of(cluster, 2) == "cuda:1"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_card_that_is_not_here_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"sees 0 such devices .* take a cluster of cpu devices"):
        device_of(cluster_with(CARD), 0)


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, *cards: str) -> None:
    """A machine whose nvidia-smi tells of these cards."""
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\n" + "".join(f"echo '{card}'\n" for card in cards))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_cards_of_this_machine_are_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "NVIDIA H200, 143771", "NVIDIA Something, 8192")
    cluster = load_cluster("local:cuda:2")
    first, second = cluster.devices
    assert (first.kind, first.backend, first.memory) == ("h200-sxm", "cuda", 143771 * 2**20)
    assert dict(first.flops)["bf16"] == 989e12
    assert (second.kind, second.memory, second.flops) == ("nvidia-something", 2**33, ())
    assert cluster.machines == (0, 0)
    with pytest.raises(ClusterError, match="asks for 3 CUDA devices and nvidia-smi shows 2 here; take local:3"):
        load_cluster("local:cuda:3")


def test_a_machine_without_cards_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="nvidia-smi shows 0 here"):
        load_cluster("local:cuda:1")


def test_a_card_whose_memory_is_not_told_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "NVIDIA GB10, [N/A]")
    with pytest.raises(ClusterError, match=r"nvidia-smi says '\[N/A\]' of NVIDIA GB10; describe the machine"):
        load_cluster("local:cuda:1")


def on_a_card(*words: str) -> list[str]:
    """What the script of that name says of plans on a made-up device, in a process of its own: torch's second device
    can be named once."""
    script = Path(__file__).with_name("on_a_card.py")
    root = {**os.environ, "PYTHONPATH": str(script.parents[2])}
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, check=False, env=root)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def stay(plans: dict[str, int]) -> None:
    """Every tensor of a rank, and what it computes with, is on its device."""
    words = [word for text, ranks in plans.items() for word in (text, str(ranks))]
    assert on_a_card(*words) == [f"{text} card:0" for text in plans]


def test_nothing_of_a_rank_stays_behind_on_the_processor() -> None:
    stay({"single(precision=bf16)": 1, "ddp": 2, "zero3": 2})


@pytest.mark.slow
def test_nothing_of_other_families_does() -> None:
    two = ("pipe_sgd", "local_sgd(period=2)", "gpipe(stages=2,microbatches=2)", "zero1", "diloco(period=2)", "ad_psgd")
    three = ("ps_async", "ps_sync", "easgd", "d_psgd", "dc_asgd")
    stay({"single": 1, **dict.fromkeys(two, 2), **dict.fromkeys(three, 3)})


@pytest.mark.slow
def test_what_stays_behind_is_found() -> None:
    assert on_a_card("left", "ddp", "2")[0].startswith("ddp FakeTensorDeviceMismatchError")


class FakeEvent:
    """An event of a device that comes to everything 10 ms after it was asked for."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        self.when = 0.0

    def record(self, stream: Any) -> None:
        FakeEvent.now += 0.25
        self.when = FakeEvent.now

    def synchronize(self) -> None:
        """It has come."""

    def elapsed_time(self, other: FakeEvent) -> float:
        return (other.when - self.when) * 1e3


def test_spans_are_of_the_device_and_not_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    clock = Events("cuda:0")
    unseen, start, end, over = clock(False), clock(True), clock(True), clock(True)
    spans, ends = [Span(0, "compute", "F", "Compute", 0, start, end)], [(over, 1.5)]
    assert not isinstance(unseen, devices.Moment)
    clock.settle(spans, ends)
    base = clock.last.at - 0.75
    assert (spans[0].start - base, spans[0].end - base) == pytest.approx((0.25, 0.5))
    assert ends == [(pytest.approx(base + 0.75), 1.5)]
    assert not clock.open


def test_moments_are_read_before_too_many_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    clock = Events("cuda:0")
    for _ in range(devices.AHEAD + 100):
        clock(True)
    assert len(clock.open) == devices.AHEAD


class Flight:
    """A collective of NCCL's that has ended when it was asked for the third time."""

    def __init__(self) -> None:
        self.asked = self.waited = 0

    def is_completed(self) -> bool:
        self.asked += 1
        return self.asked > 2

    def wait(self) -> None:
        assert self.asked > 2  # sooner, it would hold up what computes
        self.waited += 1


def test_a_lane_waits_for_a_collective_and_the_stream_does_not() -> None:
    flight = Flight()
    assert not StreamCollective(flight).ready()
    assert StreamCollective(flight).block(10.0)
    assert flight.waited == 1
    assert not StreamCollective(SimpleNamespace(is_completed=lambda: False)).block(0.01)


@dataclass
class Arrived:
    """A message that is there, or not in time."""

    here: bool

    def ready(self) -> bool:
        return self.here

    def block(self, timeout: float) -> bool:
        return self.here


def test_a_message_is_on_the_card_once_it_is_there() -> None:
    for asks in (StagedMessage.ready, lambda message: message.block(0.1)):
        into = torch.zeros(3)
        assert not asks(StagedMessage(Arrived(False), torch.ones(3), into))
        assert not into.any()
        message = StagedMessage(Arrived(True), torch.ones(3), into)
        assert asks(message)
        assert into.eq(1).all()
        into.zero_()  # it is another's by now
        assert message.block(0.1)
        assert not into.any()


def test_devices_are_told_apart_in_one_file() -> None:
    """Whoever asks torch for a card elsewhere in what runs, stands here with the reason."""
    known = {"device.py": "it is the one", "generators.py": "its random numbers", "draws.py": "its random numbers",
             "memory_trace.py": "its allocator's counters"}  # fmt: skip
    found = {
        path.name
        for room in ("transport", "runtime", "checkpoints", "runs", "oracles")
        for path in (Path(partita.__file__).parent / room).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "cuda"
    }
    assert found == set(known)
