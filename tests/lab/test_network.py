from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cluster.text import load_cluster
from partita.errors import ClusterError, RunError
from partita.lab import network
from partita.lab.keeper import members
from partita.lab.keeper_client import KeeperClient
from partita.lab.lab import Lab
from partita.lab.network import open_lab
from partita.lab.record import reap
from partita.runs.listener import LISTENER
from partita.simulator.ports import QUOTA_PERIOD

RECEIVE = """
import os, socket, time
port = socket.create_server((os.environ.get("BIND", ""), 29600))
print("ready", flush=True)
one, _ = port.accept()
size, start = 0, 0.0
while part := one.recv(1 << 20):
    start = start or time.perf_counter()
    size += len(part)
print(size / (time.perf_counter() - start), flush=True)
"""
WORDS = ("congestion_control", "slow_start_after_idle")
FRAMES = """
line = next(line for line in open("/proc/net/dev") if "eth0" in line).split(":")[1].split()
print(int(line[0]) / int(line[1]))
"""
SEND = "import socket, sys; s = socket.create_connection((sys.argv[1], 29600)); s.sendall(bytes(int(sys.argv[2])))"
BUSY = """
import time
start, used = time.perf_counter(), time.process_time()
while time.perf_counter() < start + 0.6: pass
print((time.process_time() - used) / (time.perf_counter() - start))
"""
REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(x)
print(x.sum().item(), flush=True)
"""
# What a busy neighbour may take of a half core or a gigabit, and what no process may have beyond its share.
LEAST, MOST = 0.3, 1.15

pytestmark = pytest.mark.usefixtures("state")


def lab_of(name: str) -> AbstractContextManager[Lab]:
    return open_lab(load_cluster(name))


@pytest.mark.parametrize("step", ["start_keeper", "write_record"])
def test_a_lab_that_cannot_open_closes_its_listener(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listeners, create = list[socket.socket](), socket.create_server

    def listening(*place: Any, **order: Any) -> socket.socket:
        listeners.append(create(*place, **order))
        return listeners[0]

    def full(*given: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(socket, "create_server", listening)
    monkeypatch.setattr(network, step, full)
    with pytest.raises(OSError, match="no space left"), lab_of("local:2"):
        pass
    assert listeners[0].fileno() == -1


def test_a_link_that_cannot_be_changed_is_an_error_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open lab has no other kind to fall back to."""
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    lab = Lab(load_cluster("lab-4x1g"), "namespaces", (), KeeperClient.__new__(KeeperClient), (), 1)
    for change in (lambda: lab.set_bandwidth(2, 4e6), lambda: lab.set_link(2, False)):
        with pytest.raises(RunError, match=r"the link of rank 2 cannot be changed \(the program \w+ of iproute2"):
            change()


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


@contextmanager
def receiving(lab: Lab, rank: int) -> Iterator[IO[str]]:
    """What a rank says that receives one transfer, once it is ready: how fast that came."""
    receiver = lab.spawn(rank, python(RECEIVE), stdout=subprocess.PIPE, text=True)
    assert receiver.stdout
    with receiver.stdout as said:
        assert said.readline() == "ready\n"
        yield said


def rate(name: str, source: int, target: int, size: int) -> float:
    """Bytes a second of one transfer."""
    with lab_of(name) as lab:
        with receiving(lab, target) as said:
            lab.spawn(source, python(SEND, lab.addresses[target], str(size)))
            measured = float(said.readline())
        assert lab.counters(source)[0] > size
        assert lab.counters(target)[1] > size
        return measured


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_a_transfer_runs_at_the_links_rate() -> None:
    assert rate("lab-4x100m", 0, 3, 6_000_000) == pytest.approx(12.5e6, rel=0.1)


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_every_device_speaks_the_same_tcp() -> None:
    """Whatever the host prefers: with BBR, flows that take turns leave much of the port that they share unused."""
    said = "print(*(open('/proc/sys/net/ipv4/tcp_' + n).read().strip() for n in " + repr(WORDS) + "))"
    with lab_of("lab-4x1g") as lab:
        for rank in range(4):
            found = lab.spawn(rank, python(said), stdout=subprocess.PIPE, text=True).communicate(timeout=20)[0]
            assert found.split() == ["reno", "0"]


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_between_nodes_the_port_of_the_node_binds() -> None:
    between, within = rate("lab-2x2", 1, 2, 20_000_000), rate("lab-2x2", 0, 1, 50_000_000)
    assert 125e6 * LEAST < between < 125e6 * MOST
    assert within > 1.5 * between


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_bandwidth_and_quota_change_while_it_runs() -> None:
    with lab_of("lab-4x1g") as lab:
        lab.set_bandwidth(2, 4e6)
        lab.set_quota(0, 0.25)
        with receiving(lab, 2) as said:
            lab.spawn(1, python(SEND, lab.addresses[2], "2000000"))
            assert float(said.readline()) == pytest.approx(4e6, rel=0.15)
        busy = lab.spawn(0, python(BUSY), stdout=subprocess.PIPE, text=True)
        assert 0.25 * LEAST < float(busy.communicate()[0]) < 0.25 * MOST


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_a_slow_port_does_not_take_what_is_sent_at_once_apart() -> None:
    """Else every 1,448 bytes wake the receiver, which at 100 Mbit/s costs it a third of a core."""
    with lab_of("lab-4x100m") as lab:
        with receiving(lab, 2) as said:
            lab.spawn(1, python(SEND, lab.addresses[2], "2000000"))
            assert float(said.readline()) < 1.25e7 * MOST
        frames = lab.spawn(2, python(FRAMES), stdout=subprocess.PIPE, text=True)
        assert float(frames.communicate(timeout=20)[0]) > 4 * 1448


def held_up(lab: Lab, rank: int) -> int:
    """How many periods of its quota a device has spent before their end, as the kernel counts."""
    group = lab.groups[rank].cpu
    assert group
    return int(dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())["nr_throttled"])


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_a_device_has_half_a_core_and_its_peak_is_known() -> None:
    with lab_of("lab-4x1g") as lab:
        before = held_up(lab, 0)
        with lab.lifted():
            assert lab.spawn(0, python(BUSY), stdout=subprocess.DEVNULL).wait() == 0
        assert held_up(lab, 0) == before  # whatever else the machine computes
        busy = lab.spawn(0, python(BUSY), stdout=subprocess.PIPE, text=True)
        large = lab.spawn(1, python("x = b'x' * 100_000_000"))
        share = float(busy.communicate()[0])
        assert 0.5 * LEAST < share < 0.5 * MOST
        carried = 0.5 * QUOTA_PERIOD / 0.6  # what one period leaves to the next, of the time that it is busy
        assert held_up(lab, 0) > before or share < 0.5 + carried  # where the machine had no more to give
        large.wait()
        assert 100_000_000 < lab.memory_peak(1, reset=True) < 200_000_000
        assert lab.memory_peak(1) < 100_000_000
        assert not lab.killed_for_memory(1)


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_two_labs_at_once_do_not_see_each_other() -> None:
    with lab_of("lab-4x1g") as one, lab_of("lab-4x1g") as other:
        assert one.addresses == other.addresses
        with receiving(one, 1) as said:
            stranger = other.spawn(0, python(SEND, one.addresses[1], "1000"), stderr=subprocess.DEVNULL)
            assert stranger.wait() == 1
            assert one.spawn(0, python(SEND, one.addresses[1], "1000")).wait() == 0
            assert float(said.readline()) > 0


@pytest.mark.parametrize("name", ["lab-4x1g", "local:2"])
def test_gloo_meets_by_the_environment_alone(name: str) -> None:
    with lab_of(name) as lab:
        lab.free_port()
        ranks = range(lab.cluster.size)
        workers = [lab.spawn(rank, python(REDUCE), stdout=subprocess.PIPE, text=True) for rank in ranks]
        sums = [worker.communicate(timeout=90)[0] for worker in workers]
    assert sums == [f"{1000 * sum(rank + 1 for rank in ranks):.1f}\n"] * lab.cluster.size


USER = """
import subprocess, sys
from partita.cluster.text import load_cluster
from partita.lab.network import open_lab
with open_lab(load_cluster("lab-2x2")) as lab:
    assert lab.kind == "user namespaces", lab.notes
    receiver = lab.spawn(3, [sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
    receiver.stdout.readline()
    lab.spawn(0, [sys.executable, "-c", sys.argv[2], lab.addresses[3], "10000000"])
    print(float(receiver.stdout.readline()), lab.notes[0])
"""


@pytest.mark.lab
def test_without_root_bandwidth_is_emulated_and_the_rest_said() -> None:
    become = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if not shutil.which("unshare") or subprocess.run([*become, "unshare", "-Urn", "true"], check=False).returncode:
        pytest.skip("user namespaces are refused here")
    argv = [*become, *python(USER, RECEIVE, SEND)]
    measured, _, note = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.partition(" ")
    assert 125e6 * LEAST < float(measured) < 125e6 * MOST
    assert "no CPU quotas" in note


def test_loopback_listens_on_loopback_only() -> None:
    with lab_of("local:2") as lab:
        assert lab.kind == "loopback"
        assert lab.listener is not None
        assert lab.listener.getsockname() == ("127.0.0.1", lab.port)
        code = f"import os, socket; print(socket.socket(fileno=int(os.environ[{LISTENER!r}])).getsockname()[1])"
        worker = lab.spawn(0, python(code), listen=True, stdout=subprocess.PIPE, text=True)
        assert int(worker.communicate()[0]) == lab.port
        with pytest.raises(ClusterError, match="not counted"):
            lab.counters(0)


def test_nothing_is_left_after_closing(state: Path) -> None:
    with lab_of("lab-4x1g") as lab:
        directories = [Path(each) for group in lab.groups for each in group.directories]
        assert all(each.is_dir() for each in directories)
        sleepers = [lab.spawn(rank, ["sleep", "100"]) for rank in range(4)]
        lab.spawn(0, ["sh", "-c", "setsid sleep 100 & sleep 100"])
    assert all(sleeper.returncode == -signal.SIGKILL for sleeper in sleepers)
    assert not members(lab.keeper.run, [])
    assert not any(each.exists() for each in directories)
    assert list(state.iterdir()) == []


PARENT = """
import sys, subprocess
from partita.cluster.text import load_cluster
from partita.lab.network import open_lab
with open_lab(load_cluster(sys.argv[1])) as lab:
    lab.spawn(0, ["sh", "-c", "setsid sleep 100 & sleep 100"])
    lab.spawn(1, ["sleep", "100"])
    print(lab.keeper.run, lab.keeper.process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["lab-4x1g", "local:2"])
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    argv = python(PARENT, request.param)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def until(seconds: float, pid: int) -> bool:
    """Whether process `pid` ends within that time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended = bool(select.select([handle], [], [], seconds)[0])
    os.close(handle)
    return ended


def test_the_keeper_cleans_up_after_a_killed_launcher(parent: subprocess.Popen[str], state: Path) -> None:
    assert parent.stdout
    run, keeper = parent.stdout.readline().split()
    assert members(run, [])
    parent.kill()
    assert until(2.0, int(keeper))
    assert not members(run, [])
    assert list(state.iterdir()) == []
    assert not list(Path("/sys/fs/cgroup/cpu").glob(f"partita-{run}-*"))


def test_the_next_start_reaps_what_a_killed_keeper_left(parent: subprocess.Popen[str], state: Path) -> None:
    assert parent.stdout
    run, keeper = parent.stdout.readline().split()
    assert reap() == ()
    os.kill(int(keeper), signal.SIGKILL)
    parent.kill()
    parent.wait()
    assert (state / f"lab-{run}.json").exists()
    start = time.monotonic()
    with lab_of("local:1"):
        assert not members(run, [])
    assert time.monotonic() - start < 2.0
    assert list(state.iterdir()) == []
    assert not list(Path("/sys/fs/cgroup/cpu").glob(f"partita-{run}-*"))


@pytest.mark.parametrize("name", ["lab-4x1g", "local:2"])
def test_a_launcher_cleans_up_after_a_killed_keeper(name: str, state: Path) -> None:
    """Nobody else would while this process lives: the next start leaves the labs of live launchers alone."""
    with lab_of(name) as lab:
        directories = [Path(each) for group in lab.groups for each in group.directories]
        with lab.spawn(0, ["sh", "-c", "setsid sleep 100 & echo"], stdout=subprocess.PIPE) as parent:
            assert parent.stdout
            parent.stdout.readline()
        os.kill(lab.keeper.process.pid, signal.SIGKILL)
    assert not members(lab.keeper.run, [])
    assert not any(each.exists() for each in directories)
    assert list(state.iterdir()) == []


def test_a_broken_record_is_thrown_away(state: Path) -> None:
    state.mkdir(mode=0o700)
    (state / "lab-x.json").write_text("{")
    assert reap() == ()
    assert list(state.iterdir()) == []


def test_a_state_directory_of_someone_else_is_refused(state: Path) -> None:
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    with pytest.raises(ClusterError, match="not a directory of yours alone"):
        reap()


def one_device(device: Device, interface: str = "") -> Cluster:
    return Cluster("one", Group("one", (device,), (Link(1e9),)), interface=interface)


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        (load_cluster("h100-dgx-x2"), "is more than one machine; start it there under torchrun"),
        (one_device(Device(backend="cuda")), "has cuda devices and this machine has none"),
        (one_device(Device(), "eth77"), "names interface 'eth77'; this machine has lo"),
    ],
)
def test_machines_that_are_not_here_are_refused(cluster: Cluster, sentence: str) -> None:
    if "cuda" in sentence and Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has cuda devices")
    with pytest.raises(ClusterError, match=sentence), open_lab(cluster):
        pass


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_the_notes_say_what_is_not_emulated() -> None:
    ghost = Device(ghost=True, cores=64.0)
    greedy = Device(cores=10_000.0)
    cluster = load_cluster("lab-4x1g")
    root = Group("g", (ghost, greedy), (Link(1e9, latency=1e-3, duplex=False), Link(1e9, latency=0.0)))
    with open_lab(replace(cluster, root=root)) as lab:
        text, way = " ".join(lab.notes), lab.cluster.way(0, 1)
    assert way == (0.0 if "no netem" in text else 1e-3)
    assert "ask for 10000 cores" in text
    assert "1 of 2 devices are ghosts" in text
    assert "half-duplex" in text
