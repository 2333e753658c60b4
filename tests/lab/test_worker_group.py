from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partita.cluster.cluster import Group
from partita.cluster.text import load_cluster
from partita.errors import RunError, RunHung
from partita.lab.keeper import members
from partita.lab.worker_group import WorkerGroup

WORKER = [sys.executable, str(Path(__file__).with_name("worker_for_tests.py"))]

pytestmark = pytest.mark.usefixtures("state")


@pytest.fixture(params=["local:3", "lab-4x1g"])
def group(request: pytest.FixtureRequest) -> Iterator[WorkerGroup]:
    with WorkerGroup(load_cluster(request.param), WORKER) as group:
        yield group


@pytest.fixture
def trio() -> Iterator[WorkerGroup]:
    with WorkerGroup(load_cluster("local:3"), WORKER) as group:
        yield group


def test_the_same_workers_answer_again_and_again(group: WorkerGroup) -> None:
    events: list[tuple[int, dict[str, Any]]] = []
    pids = [worker.process.pid for worker in group.workers]
    for size in (3, 300_000, 0):
        replies = group.ask_all("echo", {"data": "x" * size, "steps": 2}, 20.0, lambda *event: events.append(event))
        assert [reply["rank"] for reply in replies] == list(range(group.cluster.size))
        assert {reply["size"] for reply in replies} == {size}
    assert sorted(step["step"] for rank, step in events if rank == 1) == [0, 0, 0, 1, 1, 1]
    assert pids == [worker.process.pid for worker in group.workers]
    assert "not a message" in group.workers[0].tail()


def test_each_rank_may_get_its_own(trio: WorkerGroup) -> None:
    replies = trio.ask_all("echo", [{"own": 10 * rank} for rank in range(3)], 20.0)
    assert [reply["own"] for reply in replies] == [0, 10, 20]


@pytest.mark.parametrize("untimed", [False, True])
def test_what_is_not_timed_has_no_quota(trio: WorkerGroup, monkeypatch: pytest.MonkeyPatch, untimed: bool) -> None:
    """From the moment that a worker says so until all have replied."""
    changes, seen = [], []

    @contextmanager
    def lifted() -> Iterator[None]:
        changes.append("lifted")
        yield
        changes.append("set")

    monkeypatch.setattr(trio.lab, "lifted", lifted)
    trio.ask_all("echo", {"untimed": untimed}, 20.0, lambda rank, event: seen.append(list(changes)))
    assert seen == [["lifted"]] * untimed
    assert changes == ["lifted", "set"] * untimed


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("SIGKILL", "rank 1 was killed by SIGKILL after step 4"),
        ("segfault", "rank 1 was killed by SIGSEGV after step 4"),
        ("0", "rank 1 left without an answer, exit code 0 after step 4"),
        ("7", "rank 1 ended with exit code 7 after step 4"),
    ],
)
def test_a_death_is_named_at_once(trio: WorkerGroup, how: str, sentence: str) -> None:
    trio.ask_all("echo", {}, 20.0)
    start = time.monotonic()
    with pytest.raises(RunError, match=sentence) as caught:
        trio.ask_all("die", {"rank": 1, "how": how, "steps": 5}, 20.0)
    assert time.monotonic() - start < 1.0
    assert (caught.value.rank, caught.value.step, caught.value.exit_code) == (1, 4, 3)
    assert "last words" in str(caught.value)
    with pytest.raises(RunError, match="cannot be asked to echo: rank 1"):
        trio.ask_all("echo", {}, 20.0)


def test_a_death_between_requests_is_named(trio: WorkerGroup) -> None:
    trio.ask_all("echo", {}, 20.0)
    trio.workers[2].process.kill()
    trio.workers[2].process.wait()
    with pytest.raises(RunError, match="rank 2 was killed by SIGKILL"):
        trio.ask_all("echo", {}, 20.0)


def test_a_lab_whose_keeper_is_killed_is_named_at_once(group: WorkerGroup) -> None:
    """Its links are gone: workers would wait for each other until --timeout."""
    group.ask_all("echo", {}, 20.0)
    group.lab.keeper.process.kill()
    start = time.monotonic()
    with pytest.raises(RunError, match=f"the process that holds lab {group.lab.keeper.run} .* is gone"):
        group.ask_all("die", {"rank": -1}, 20.0)
    assert time.monotonic() - start < 5.0


def test_silence_is_a_hang_and_the_stopped_rank_is_named(trio: WorkerGroup) -> None:
    trio.ask_all("echo", {}, 20.0)
    with pytest.raises(RunHung, match=r"rank 0 after step 1, rank 1 \(stopped by a signal\) after step 1") as caught:
        trio.ask_all("die", {"rank": 1, "how": "stop", "steps": 2}, 0.6)
    assert (caught.value.rank, caught.value.exit_code) == (1, 4)


def test_of_those_who_are_to_meet_the_one_who_does_not_come_is_named(trio: WorkerGroup) -> None:
    """A task that loads for ever on one rank; the others are silent as well."""
    with pytest.raises(RunHung, match=r"from rank 1 \(stopped by a signal\), for which .* \(ranks 0, 2\)$") as caught:
        trio.ask_all("die", {"rank": 1, "how": "stop", "ready": True}, 0.6)
    assert caught.value.rank == 1


def test_a_complaint_is_passed_on(trio: WorkerGroup) -> None:
    with pytest.raises(RunError, match="rank 2 after step 2: ValueError: rank 2 is unhappy") as caught:
        trio.ask_all("complain", {"rank": 2, "steps": 3}, 20.0)
    assert caught.value.rank == 2


def test_an_error_of_one_that_cannot_reply_is_passed_on(trio: WorkerGroup) -> None:
    """It stands in a message that nobody may send any more."""
    with pytest.raises(RunError, match="rank 1: the disk is on fire") as caught:
        trio.ask_all("complain", {"rank": 3, "failed": 1}, 20.0)
    assert (caught.value.rank, caught.value.exit_code) == (1, 3)


def test_what_was_said_in_time_counts_however_late_it_is_read(trio: WorkerGroup) -> None:
    """A launcher that was stopped for longer than the limit finds all pipes full."""
    trio.ask_all("echo", {}, 20.0)
    select, stops = trio.selector.select, [2.5]

    def late(timeout: float) -> list[Any]:
        time.sleep(stops.pop() if stops else 0.0)
        return select(timeout)

    trio.selector.select = late  # type: ignore[method-assign,assignment]
    assert len(trio.ask_all("echo", [{"at": True, "pause": 3.5}, {}, {}], 2.0)) == 3


def test_a_death_outweighs_the_complaints_that_it_caused(trio: WorkerGroup) -> None:
    with pytest.raises(RunError, match="rank 0 was killed by SIGKILL"):
        trio.ask_all("complain", {"rank": 1, "killed": 0}, 20.0)


def interrupt(rank: int, event: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_leaves_nothing() -> None:
    with pytest.raises(KeyboardInterrupt), WorkerGroup(load_cluster("local:3"), WORKER) as group:
        group.ask_all("die", {"steps": 1}, 20.0, interrupt)
    assert not members(group.lab.keeper.run, [])


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_a_death_by_memory_is_called_so() -> None:
    cluster = load_cluster("lab-4x1g")
    small = tuple(replace(device, memory=64 << 20) for device in cluster.devices)
    cluster = replace(cluster, root=Group("small", small, cluster.root.ports))
    with WorkerGroup(cluster, WORKER, beside=0) as group, pytest.raises(RunError) as caught:
        group.ask_all("die", {"rank": 3, "how": "memory"}, 20.0)
    assert "rank 3 was killed by SIGKILL, out of memory (limit 64 MiB, peak" in str(caught.value)


ORPHAN = """
import sys
from partita.cluster.text import load_cluster
from partita.lab.worker_group import WorkerGroup
with WorkerGroup(load_cluster("local:2"), sys.argv[1:]) as crew:
    print(*(worker.process.pid for worker in crew.workers), flush=True)
    crew.ask_all("die", {}, 60.0)
"""


def test_workers_die_with_their_launcher() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN, *WORKER], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pids = [int(word) for word in parent.stdout.readline().split()]
        handles = [os.pidfd_open(pid) for pid in pids]
        parent.kill()
        for handle, pid in zip(handles, pids, strict=True):
            with os.fdopen(handle):
                assert select.select([handle], [], [], 2.0)[0], pid
