"""What is said of a worker that failed."""

from __future__ import annotations

import signal
from unittest.mock import Mock

import pytest

from partita.lab.failures import death_of, hang
from partita.lab.lab import Lab
from partita.lab.worker import Worker

DEATHS = {
    9: "rank 1 ended with exit code 9 after step 3; something that it called left, look for exit in the task's code",
    0: "rank 1 left without an answer, exit code 0 after step 3; something that it called left, look for exit in the "
    "task's code",
    -signal.SIGSEGV: "rank 1 was killed by SIGSEGV after step 3",
    -signal.SIGKILL: "rank 1 was killed by SIGKILL after step 3; another process did, or the kernel where memory ran "
    "out (dmesg tells)",
    **dict.fromkeys(
        (-signal.SIGTERM, 128 + signal.SIGTERM),
        "rank 1 was ended by SIGTERM after step 3; send it to partita itself, which stops all ranks, at a "
        "checkpoint if there is --out",
    ),
}


def worker(code: int = 0) -> Worker:
    """One that has come to step 3 and ended with that code."""
    process = Mock(wait=lambda: code, pid=-1)
    return Mock(spec=Worker, rank=1, step=3, ready=False, process=process, tail=lambda: "a long story")


@pytest.mark.parametrize("code", DEATHS)
def test_a_death_ends_with_advice_and_the_log_is_behind_it(code: int) -> None:
    error = death_of(Mock(spec=Lab, killed_for_memory=lambda rank: False), worker(code)).error
    assert str(error) == f"{DEATHS[code]}; the end of its log:\na long story"
    error.advise("--resume goes on")
    assert str(error) == f"{DEATHS[code]}; --resume goes on; the end of its log:\na long story"


def test_a_hang_says_how_long_in_few_digits_and_what_it_is_of() -> None:
    said = "no answer to 'run' and nothing heard for 7.5 s (75% of --timeout) from rank 1 after step 3"
    assert str(hang("run", 7.50354, [worker()], stood=True)) == said
    assert str(hang("open", 7.50354, [worker()])) == said.replace("run", "open").replace(" (75% of --timeout)", "")
