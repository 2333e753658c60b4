"""gloo's threads are woken only when their turn comes, where the system knows such a policy."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from partita.transport.processes import Processes
from partita.transport.loops import NAME

def rank(at, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=at, world_size=2)
    Processes(at).join([("wire", (0, 1))], 30.0, messages=True)
    threads = [int(task) for task in os.listdir("/proc/self/task")]
    ours = [one for one in threads if open(f"/proc/self/task/{one}/comm").read().strip() == NAME]
    assert len(ours) >= 3, ours
    assert {os.sched_getscheduler(one) for one in ours} == {os.SCHED_BATCH}
    assert {os.sched_getscheduler(one) for one in threads if one not in ours} == {os.SCHED_OTHER}
    sum_ = torch.ones(3)
    dist.all_reduce(sum_)
    assert sum_.tolist() == [2.0] * 3
    dist.barrier()

if __name__ == "__main__":
    mp.spawn(rank, (sys.argv[1],), nprocs=2)
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="no SCHED_BATCH on this system")
def test_they_put_off_nobody(tmp_path: Path) -> None:
    file = tmp_path / "ranks.py"
    file.write_text(RANKS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    subprocess.run([sys.executable, str(file), port], check=True, timeout=100, cwd=Path.cwd())
