"""Times that were taken beside other work are not kept, and are told of."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from partita.lab import background_load


def test_what_others_use_is_what_is_used_less_what_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"busy_seconds": 100.0, "own_seconds": 40.0, "monotonic": 10.0}
    monkeypatch.setattr(background_load, "busy_seconds", lambda: clock["busy_seconds"])
    monkeypatch.setattr(background_load, "own_seconds", lambda: clock["own_seconds"])
    monkeypatch.setattr(background_load.time, "monotonic", lambda: clock["monotonic"])
    beside = background_load.BackgroundLoad()
    assert beside.cores() == 0.0
    clock |= {"busy_seconds": 107.0, "own_seconds": 43.0, "monotonic": 12.0}
    assert beside.cores() == pytest.approx(2.0)


def test_descendants_are_ours() -> None:
    before, busy = background_load.own_seconds(), background_load.busy_seconds()
    work = "import time\nwhile time.process_time() < 0.4: pass\nprint('done', flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        assert background_load.own_seconds() - before >= 0.35
        assert background_load.busy_seconds() - busy >= 0.35
        child.kill()


def test_the_machine_has_been_up_and_busy() -> None:
    assert 0 < background_load.busy_seconds() <= (time.time() - psutil.boot_time()) * (os.cpu_count() or 1) * 1.1
