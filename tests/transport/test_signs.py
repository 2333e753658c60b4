"""Who waits for a rank that nobody watches gives up on one that is dead, and not on one that is slow."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

TIMEOUT, SLOW = 2.0, 3.5
RANKS = f"""
import os, signal, time
from partita.errors import RunError
from partita.runs.world import join_world
from partita.transport.messages import gather
from partita.transport.signs import signs_of_life
from tests.ranks import forked

def main(rank):
    join_world(rank, 3, {TIMEOUT})
    with signs_of_life(rank, 3) as words:
        words.own, words.speakers = f"from {{rank}}", 3
        if rank == 1:
            time.sleep({SLOW})
        found = gather(rank, rank, 3)
        assert rank or found == [0, 1, 2], found
        while not rank and words.heard != {{1: "from 1", 2: "from 2"}}:
            time.sleep(0.1)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        try:
            gather(rank, rank, 3)
        except RunError as error:
            assert error.rank == 1, error.rank
            print(rank, round(time.monotonic() - begun), error, flush=True)

forked(main, 3)
"""


def test_a_rank_that_is_killed_is_missed_and_one_that_is_slow_is_not() -> None:
    """Also by a rank that is about to write a checkpoint: all of its meetings are such."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RANKS], cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    said = sorted(done.stdout.splitlines())
    assert [line.split()[0] for line in said] == ["0", "2"], done.stderr
    for line in said:
        assert int(line.split()[1]) <= TIMEOUT + 4
        assert "rank 1 did not come to where all ranks meet, and gave no sign of life for 2 s" in line
