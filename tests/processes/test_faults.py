"""Who dies is named at once, and nobody stays behind."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.processes.training import workers_of

TASK = f"{Path(__file__).with_name('endless.py')}:endless"
ROOT = Path(__file__).parents[2]


@dataclass
class Run:
    """A `partita train` that would never end; `workers` are its processes by rank."""

    launcher: subprocess.Popen[str]
    workers: dict[int, psutil.Process]


def ended(processes: dict[int, psutil.Process], limit: float) -> bool:
    """Whether all of them end within `limit` seconds; one that nobody reaps has ended too."""
    end = time.monotonic() + limit
    for process in processes.values():
        try:
            watch = os.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([watch], [], [], max(end - time.monotonic(), 0.0))[0]:
                return False
        finally:
            os.close(watch)
    return True


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Two workers that have trained long enough to have reported a step."""
    pipe = tmp_path / "told"
    os.mkfifo(pipe)
    told = os.open(pipe, os.O_RDWR)
    words = ("-m", "partita", "train", TASK, "--cluster", "local:2", "--plan", "ddp", "--steps", "1000000000")
    launcher = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT,
        env=os.environ | {"TOLD": str(pipe), "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    workers: dict[int, psutil.Process] = {}
    try:
        heard = b""
        while len(heard) < 2 and launcher.poll() is None and select.select([told], [], [], 60.0)[0]:
            heard += os.read(told, 2)
        assert sorted(heard) == [ord("0"), ord("1")], launcher.poll()
        workers = workers_of(launcher.pid)
        assert sorted(workers) == [0, 1]
        yield Run(launcher, workers)
    finally:
        os.close(told)
        launcher.kill()
        for worker in workers.values():
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        launcher.communicate(timeout=10)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_is_named_with_its_step(run: Run, rank: int) -> None:
    begun = time.monotonic()
    run.workers[rank].kill()
    _, said = run.launcher.communicate(timeout=20)
    lasted = time.monotonic() - begun
    assert run.launcher.returncode == 3
    assert re.search(rf"partita: rank {rank} was killed by SIGKILL after step [1-9]\d*", said), said
    assert "Traceback" not in said
    assert lasted < 5.0
    assert ended(run.workers, 0.0)


def test_ports_are_loopbacks_alone_and_workers_do_not_outlive_their_launcher(run: Run) -> None:
    """FAULTS section 3, rules 1 and 9: from another network namespace, where there are any, no port can be reached."""
    processes = [psutil.Process(run.launcher.pid), *run.workers.values()]
    places = {
        c.laddr for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN
    }  # fmt: skip
    assert {place.ip for place in places} == {"127.0.0.1"}
    knock = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 1.0)"
    port = str(min(place.port for place in places))
    assert subprocess.run([sys.executable, "-c", knock, port], stderr=subprocess.DEVNULL).returncode == 0
    apart = ["unshare", "--net", "--map-root-user"]
    if not subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL).returncode:
        assert subprocess.run([*apart, sys.executable, "-c", knock, port], stderr=subprocess.DEVNULL).returncode == 1
    run.launcher.send_signal(signal.SIGKILL)
    assert ended(run.workers, 2.0)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],  # quickly in test_resume
    ids=["int", "term"],
)
def test_an_interrupted_launcher_cleans_up(run: Run, number: int, code: int) -> None:
    run.launcher.send_signal(number)
    assert run.launcher.wait(5.0) == code
    assert ended(run.workers, 2.0)


@pytest.mark.slow
def test_a_stopped_rank_is_found_from_the_program(run: Run) -> None:
    """FAULTS 5: three quarters of --timeout later, by name, with what it owes and who waits for it."""
    begun = time.monotonic()
    run.workers[1].suspend()
    _, said = run.launcher.communicate(timeout=80)
    assert run.launcher.returncode == 4
    assert re.search(
        r"partita: rank 1 \(stopped by a signal\) has not sent bucket b0 of step [1-9]\d*; rank 0 waits for it in A0",
        said,
    ), said
    assert 40.0 < time.monotonic() - begun < 60.0
    assert ended(run.workers, 2.0)


FAULTY = {
    "1:nan:3": r"the gradient of \S+ is not finite in step 2 on rank 1; no other rank",
    "2:flip:5": r"the weights of rank 2 differ from those of 0, 1, in bucket b0 .* found at step 6",
    "1:seed:0": r"the weights of rank 1 differ from those of 0, 2, in bucket b0 .* found at step 0",
    "1:raise:3": r"rank 1.*: ValueError: the disk is on fire",
    "1:exit:3": r"rank 1 left without an answer, exit code 0",
    "1:crash:3": r"rank 1 was killed by SIGSEGV",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTY)
def test_the_rank_that_goes_wrong_is_named(fault: str, tmp_path: Path) -> None:
    """FAULTS 2, 3, 4, 26, 28, 29; nothing that is wrong becomes a checkpoint."""
    done = faulty(
        fault, "--plan", "ddp", "--steps", "12", "--out", str(tmp_path), "--checkpoint-every", "3"
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert re.search(FAULTY[fault], done.stderr, re.DOTALL), done.stderr
    kept = [path.name for path in (tmp_path / "checkpoints").glob("step-*/manifest.json")]
    assert len(kept) == ("flip" in fault)


def faulty(fault: str, *more: str) -> subprocess.CompletedProcess[str]:
    """A run of the task in which one rank goes wrong."""
    task = f"{TASK.rpartition('/')[0]}/faulty.py:faulty"
    words = ("-m", "partita", "train", task, "--cluster", "local:3", *more)
    env = os.environ | {"FAULT": fault, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120
    )  # fmt: skip


MISMATCHED = {
    "1:skip:2": r"rank 1 has left out A\d+, the all_reduce of bucket b\d+ in step \d+ and comes to A",
    "1:short:2": r"rank 1 brings \d+ numbers to A\d+, the all_reduce of bucket b\d+ in step \d+, which has \d+",
    "1:other:2": r"rank 1 brings a broadcast of bucket b\d+ to A\d+, the all_reduce of bucket b\d+ in step \d+",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", MISMATCHED)
def test_a_mismatched_collective_is_named_before_the_backend_aborts_or_hangs(fault: str) -> None:
    """FAULTS 7, 8, 9."""
    done = faulty(fault, "--plan", "ddp(bucket_bytes=200)", "--steps", "12")
    assert done.returncode == 3, done.stderr
    assert re.search(MISMATCHED[fault], done.stderr), done.stderr
    assert "SIGABRT" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_rank_that_goes_astray_is_found_without_checkpoints() -> None:
    """FAULTS 28: a run that would take hours, and keeps nothing."""
    done = faulty("2:flip:5", "--plan", "ddp", "--steps", "1000000")
    assert done.returncode == 3, done.stderr
    assert re.search(r"the weights of rank 2 differ from those of 0, 1, in bucket b0 .* found at step \d+", done.stderr)


@pytest.mark.slow
def test_slow_data_is_blamed_on_the_data_while_the_run_goes_on() -> None:
    """FAULTS 18: told by the note and not by the run's end."""
    done = faulty("1:late:0", "--plan", "ddp", "--steps", "600", "--json")
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if "times as long" in line]
    assert len(notes) == 1, done.stderr
    assert "rank 1 loads its samples" in notes[0]


@pytest.mark.slow
def test_ranks_without_work_wait_for_as_long_as_it_takes(tmp_path: Path) -> None:
    """A plan for one rank on three, whose training takes longer than --timeout."""
    task = f"{TASK.rpartition('/')[0]}/mortal.py:mortal"
    words = (
        "-m",
        "partita",
        "train",
        task,
        "--cluster",
        "local:3",
        "--plan",
        "single",
        "--steps",
        "16",
        "--timeout",
        "6",
    )
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"SLOW": "0.06"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
