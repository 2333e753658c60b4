"""Times that were taken beside other work are not kept, and are told of."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from partita.lab import company


def test_what_others_use_is_what_is_used_less_what_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"_busy": 100.0, "_own": 40.0, "monotonic": 10.0}
    monkeypatch.setattr(company, "_busy", lambda: clock["_busy"])
    monkeypatch.setattr(company, "_own", lambda: clock["_own"])
    monkeypatch.setattr(company.time, "monotonic", lambda: clock["monotonic"])
    beside = company.Company()
    assert beside.cores() == 0.0
    clock |= {"_busy": 107.0, "_own": 43.0, "monotonic": 12.0}
    assert beside.cores() == pytest.approx(2.0)


def test_descendants_are_ours() -> None:
    before, busy = company._own(), company._busy()
    work = "import time\nwhile time.process_time() < 0.4: pass\nprint('done', flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        assert company._own() - before >= 0.35
        assert company._busy() - busy >= 0.35
        child.kill()


def test_the_machine_has_been_up_and_busy() -> None:
    assert 0 < company._busy() <= (time.time() - psutil.boot_time()) * (os.cpu_count() or 1) * 1.1
