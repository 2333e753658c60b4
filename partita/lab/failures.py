"""Failures of a run in words: which worker died and of what, which reported an error, which is silent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from partita.errors import PartitaError, RunError, RunHung
from partita.lab.lab import Lab
from partita.lab.links import Links
from partita.lab.worker import Worker
from partita.program.program import Program
from partita.program.stall import LanePosition, RankPosition, stall_of
from partita.runtime.brake import STOPPING
from partita.units import Seconds, show_bytes

NO_REPORT: Final[Seconds] = 5.0
STALL_SHARE: Final = 0.75  # of --timeout, after which a rank or a link is named that holds up a run that stands still


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """One worker's failure, the time at which the launcher learned of it, and whether the worker died of it."""

    error: RunError
    heard: Seconds
    died: bool


def likely_cause(failures: Sequence[WorkerFailure]) -> WorkerFailure:
    """The likely cause of all: a death by a signal or an error code rather than a reported error, and the first of
    those."""
    return min(failures, key=lambda failure: (not failure.died, failure.heard))


def death_of(lab: Lab, worker: Worker) -> WorkerFailure:
    """The death of a worker that still owed an answer."""
    code = worker.process.wait()
    how, who = f"ended with exit code {code}", "; something that it called left, look for exit in the task's code"
    if code == 0:
        how = "left without an answer, exit code 0"
    elif code - 128 in STOPPING or code < 0:  # a rank of a run that can be stopped leaves with such a code
        number = -code if code < 0 else code - 128
        how, who = f"was {'ended' if number in STOPPING else 'killed'} by {_signal(number)}", ""
        if lab.killed_for_memory(worker.rank):
            how += f", out of memory ({_room(lab, worker.rank)}peak {show_bytes(lab.memory_peak(worker.rank))})"
        elif number == signal.SIGKILL:
            who = "; another process did, or the kernel where memory ran out (dmesg tells)"
        elif number in STOPPING:
            who = "; send it to partita itself, which stops all ranks, at a checkpoint if there is --out"
    sentence = f"rank {worker.rank} {how}{_after(worker)}{who}"
    error = RunError(sentence, rank=worker.rank, step=worker.step, log=worker.tail())
    return WorkerFailure(error, time.monotonic(), True)


def _room(lab: Lab, rank: int) -> str:
    """What a device's processes may have in memory, in words; "" where that was not the lab's to say."""
    limit, memory = lab.limits[rank] if lab.limits else 0, lab.cluster.devices[rank].memory
    parts = f": {show_bytes(memory)} of the device and {show_bytes(limit - memory)} for the process"
    return f"limit {show_bytes(limit)}{parts if limit > memory else ''}, " if limit else ""


def reported_by(worker: Worker, message: dict[str, Any]) -> WorkerFailure:
    """The error that a worker reports; `rank` and `step` in it are those of the cause where it knows them."""
    rank, step = message.get("rank", worker.rank), message.get("step", worker.step)
    kind = RunHung if message.get("exit") == RunHung.exit_code else RunError
    sentence = f"rank {worker.rank}{_after(worker)}: {message['error']}"
    error = kind(sentence, rank=rank, step=step)
    if message.get("logged"):
        shown = os.environ.get("PARTITA_TRACEBACK") == "1"
        error.log = worker.tail() if shown else ""
        error.advise("" if shown else "PARTITA_TRACEBACK=1 shows where")
    if message.get("exit", PartitaError.exit_code) != kind.exit_code:
        error.exit_code = message["exit"]
    return WorkerFailure(error, time.monotonic(), False)


def hang(verb: str, timeout: Seconds, silent: Sequence[Worker], stood: bool = False) -> RunHung:
    """The error for a run in which nothing was heard for `timeout` seconds: it names the workers that owe an answer,
    and which of them are stopped; where some went to meet the others, those that did not. `stood`: the run stood still
    for the share of --timeout that it may."""
    late = [worker for worker in silent if not worker.ready]
    others = ", ".join(str(worker.rank) for worker in silent if worker.ready) if late else ""
    wait, silent = f", for which others wait (ranks {others})" if others else "", late or silent
    each = ", ".join(f"rank {worker.rank}{_words_of(worker)}{_after(worker)}" for worker in silent)
    share = f" ({STALL_SHARE:.0%} of --timeout)" if stood else ""
    first = min(silent, key=lambda worker: (not state_of(worker), worker.step))
    return RunHung(
        f"no answer to {verb!r} and nothing heard for {timeout:.3g} s{share} from {each}{wait}",
        rank=first.rank,
        step=first.step,
    )


def stalled(program: Program, workers: Sequence[Worker], links: Links, hung: RunHung) -> RunHung:
    """The same error with the ranks that hold the run up, if the Program tells which, or with the link that is cut."""
    now = time.monotonic()
    positions, mute = {}, {}
    for worker in workers[: program.size]:
        if worker.stands is None or now - worker.heard > NO_REPORT:
            mute[worker.rank] = state_of(worker)
        else:
            places = tuple(LanePosition(*place) for place in worker.stands["places"])
            positions[worker.rank] = RankPosition(places, worker.stands["done"], worker.stands["first_step"])
    named = ((rank, place.name) for rank, position in positions.items() for place in position.places)
    known = all(name in program.role_of[rank].on_name for rank, name in named)
    stall = stall_of(program, positions, mute) if known else None
    step = stall.step if stall else hung.step
    cut, sentence = links.cut(now)
    if cut and not mute:
        return RunHung(f"{sentence} (step {step})", rank=min(cut), step=step)
    return RunHung(stall.sentence, rank=stall.ranks[0], step=step) if stall else hung


def state_of(worker: Worker) -> str:
    """The state of a silent worker as its operating system reports it, in words."""
    with suppress(OSError), open(f"/proc/{worker.process.pid}/stat") as file:
        return "stopped by a signal" if file.read().rpartition(")")[2].split()[0] in "Tt" else ""
    return ""


def _words_of(worker: Worker) -> str:
    return f" ({state})" if (state := state_of(worker)) else ""


def _after(worker: Worker) -> str:
    return f" after step {worker.step}" if worker.step >= 0 else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
