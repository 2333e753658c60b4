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

TASK = f"{Path(__file__).with_name('endless.py')}:endless"
ROOT = Path(__file__).parents[2]


@dataclass
class Run:
    """A `partita train` that would never end; `workers` are its processes by rank."""

    launcher: subprocess.Popen[str]
    workers: dict[int, psutil.Process]


def workers_of(launcher: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    found = psutil.Process(launcher.pid).children(recursive=True)
    return {int(p.environ()["RANK"]): p for p in found if "partita.lab.serve" in p.cmdline()}


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
        workers = workers_of(launcher)
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


def test_workers_do_not_outlive_their_launcher(run: Run) -> None:
    run.launcher.send_signal(signal.SIGKILL)
    assert ended(run.workers, 2.0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"])
def test_an_interrupted_launcher_cleans_up(run: Run, number: int, code: int) -> None:
    run.launcher.send_signal(number)
    assert run.launcher.wait(5.0) == code
    assert ended(run.workers, 2.0)
