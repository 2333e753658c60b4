"""Workers that are forked are what workers that were executed would be."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from partita.cluster.text import load_cluster
from partita.errors import RunError
from partita.lab import fork_client
from partita.lab.fork_client import end_fork_server
from partita.lab.keeper import alive, members, started
from partita.lab.worker_group import WorkerGroup

pytestmark = pytest.mark.usefixtures("state")

LAUNCHER = """
import sys
from partita.cluster.text import load_cluster
from partita.lab.fork_client import servers
from partita.lab.worker_group import WorkerGroup
with WorkerGroup(load_cluster("local:2")) as group:
    print(*(worker.process.pid for worker in group.workers), servers[0].process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def pair() -> Iterator[WorkerGroup]:
    with WorkerGroup(load_cluster("local:2"), env={"COLOUR": "blue"}) as group:
        yield group


def own(group: WorkerGroup) -> list[psutil.Process]:
    return [psutil.Process(worker.process.pid) for worker in group.workers]


def server() -> int:
    """The process id of this process's fork server."""
    return fork_client.servers[0].process.pid


def test_a_worker_has_the_rank_that_others_see_and_none_of_the_launchers_descriptors(
    pair: WorkerGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match="has no verb 'rest'"):
        pair.ask_all("rest", {}, 20.0)
    for rank, process in enumerate(own(pair)):
        assert process.environ()["RANK"].strip() == str(rank)
        assert process.environ()["PARTITA_LAB"] == pair.lab.keeper.run
        assert os.getsid(process.pid) == process.pid
        assert process.ppid() == os.getpid()
        kinds = [os.readlink(path).partition(":")[0] for path in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert "socket" not in kinds
        # The pipes are copies of standard input and output, which user code neither reads nor writes.
        assert sorted(Path(kind).suffix or kind for kind in kinds) == [".log", ".log", "/dev/null", "pipe", "pipe"]
    assert members(pair.lab.keeper.run, []) >= {process.pid for process in own(pair)}
    monkeypatch.chdir(tmp_path)
    with WorkerGroup(load_cluster("local:2")) as group:
        group.ask_all("join", {"timeout": 20.0}, 20.0)
        assert {process.cwd() for process in own(group)} == {str(tmp_path)}


def test_the_listening_socket_is_the_one_descriptor_more() -> None:
    with WorkerGroup(load_cluster("local:2"), listen=True) as group:
        group.ask_all("join", {"timeout": 20.0}, 20.0)
        assert [reply["rank"] for reply in group.ask_all("join", {"timeout": 20.0}, 20.0)] == [0, 1]


def test_workers_of_many_groups_are_of_one_server(pair: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    first = server()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/nowhere")  # torch sets it when parts of it are loaded
    with WorkerGroup(load_cluster("local:2")):
        assert server() == first


def test_another_environment_to_load_by_is_another_server(pair: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    first = server()
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with WorkerGroup(load_cluster("local:2")) as group:
        assert server() != first
        group.ask_all("join", {"timeout": 20.0}, 20.0)
    pair.ask_all("join", {"timeout": 20.0}, 20.0)


def test_a_server_that_was_killed_is_started_again(pair: WorkerGroup) -> None:
    first = server()
    os.kill(first, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(first)], 5.0)
    with WorkerGroup(load_cluster("local:2")) as group:
        group.ask_all("join", {"timeout": 20.0}, 20.0)
    assert server() != first


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next(
    pair: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt comes while a worker is being forked."""
    send = socket.send_fds

    def interrupted(*given: Any) -> int:
        send(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(socket, "send_fds", interrupted)
    with pytest.raises(KeyboardInterrupt), WorkerGroup(load_cluster("local:2")):
        pass
    monkeypatch.setattr(socket, "send_fds", send)
    with WorkerGroup(load_cluster("local:2")) as group:
        assert all(process.ppid() == os.getpid() for process in own(group))
        group.ask_all("join", {"timeout": 20.0}, 20.0)


def test_what_keeps_it_from_loading_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('there is no such library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RunError, match="the process that forks them ended"), WorkerGroup(load_cluster("local:2")):
        pass
    monkeypatch.undo()
    end_fork_server()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15)])
def test_an_exit_code_is_that_of_a_child(pair: WorkerGroup, number: int, code: int) -> None:
    process = pair.workers[1].process
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.kill(process.pid, number)
    assert process.wait(5.0) == process.wait() == process.poll() == code


def test_only_its_own_orphans_are_adopted(pair: WorkerGroup) -> None:
    """A process that loses its parent once workers run goes where it would have gone before."""
    orphan = "import os, time; os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(1)"
    said = subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.PIPE, text=True)
    assert psutil.pid_exists(int(said.stdout)) is False or psutil.Process(int(said.stdout)).ppid() != os.getpid()


def test_nothing_outlives_a_launcher_that_was_killed() -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout
    assert launcher.stdin
    pids = [int(pid) for pid in launcher.stdout.readline().split()]
    processes = [(pid, started(pid)) for pid in pids]
    assert len(processes) == 3
    assert all(alive(process) for process in processes)
    launcher.kill()
    launcher.wait()
    end = time.monotonic() + 5.0
    while any(alive(process) for process in processes):
        assert time.monotonic() < end
        time.sleep(0.01)
    launcher.stdin.close()
    launcher.stdout.close()
