"""gloo's threads that carry messages are woken only when their turn comes, where the system knows such a policy."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from partita.transport.loops import loops, woken_in_turn

RANKS = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from partita.transport.loops import loops
from partita.transport.processes import Processes

def rank(at, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=at, world_size=2)  # as a user's own loop may have done
    transport, world = Processes(at), loops()
    transport.join([("sums", (0, 1))], 30.0, messages=False)
    sums = loops() - world
    transport.join([("more", (0, 1))], 30.0, messages=True)
    threads = {int(task) for task in os.listdir("/proc/self/task")}
    batch = {one for one in threads if os.sched_getscheduler(one) == os.SCHED_BATCH}
    assert world and sums and len(batch) == 2 and batch <= loops(), (world, sums, batch)
    assert not (world | sums) & batch and len(loops() - world - sums - batch) == 1, (sums, batch, loops())
    summed = torch.ones(3)
    dist.all_reduce(summed)
    assert summed.tolist() == [2.0] * 3
    dist.barrier()

if __name__ == "__main__":
    mp.spawn(rank, (sys.argv[1],), nprocs=2)
"""


def test_those_of_messages_put_off_nobody_and_those_of_sums_do(tmp_path: Path) -> None:
    file = tmp_path / "ranks.py"
    file.write_text(RANKS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    subprocess.run([sys.executable, str(file), port], check=True, timeout=100, cwd=Path.cwd())


def test_where_threads_have_no_policies_nothing_is_asked_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "SCHED_BATCH")
    with woken_in_turn():
        assert loops() == frozenset()
