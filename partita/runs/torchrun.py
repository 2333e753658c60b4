"""One rank of a run that somebody else launched: torchrun, a cluster's scheduler, the lab's COMMAND."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from typing import Any, Final

import torch.distributed as dist

from partita.checkpoints.checkpoint import SavedCheckpoint, advising, stopped_at
from partita.cluster.cluster import Cluster
from partita.cluster.interfaces import check_interface
from partita.errors import InputError, OptionError, RunStopped
from partita.runs.directory import Finished, finish, opened
from partita.runs.execution import run
from partita.runs.heap import keep_freed
from partita.runs.preflight import differing, facts_of
from partita.runs.reporting import Progress
from partita.runs.result import RunResult, result_of
from partita.runs.session import Job, Session
from partita.runs.training import Training
from partita.runs.world import join_world
from partita.runtime.device import GLOO, backend_of, device_of
from partita.task import Task
from partita.telling import Tell, quiet
from partita.transport.messages import gather, spread
from partita.transport.signs import Words, signs_of_life
from partita.units import Seconds

INTERFACE: Final = "GLOO_SOCKET_IFNAME"
LOOP: Final = "lo"


def place_here(cluster: Cluster) -> tuple[int, int]:
    """(rank, world size) from the environment. Raises OptionError where the variables contradict each other."""
    given, size = os.environ["RANK"], os.environ.get("WORLD_SIZE", "")
    try:
        rank, world = int(given), int(size)
    except ValueError:
        raise OptionError(
            f"RANK is {given!r} and WORLD_SIZE is {size!r}; start with torchrun, set both to numbers, or unset RANK to "
            "train in processes of this machine"
        ) from None
    if not 0 <= rank < world:
        raise OptionError(f"RANK is {rank} and WORLD_SIZE {world}; ranks go from 0 to WORLD_SIZE - 1")
    if world != cluster.size:
        raise OptionError(f"WORLD_SIZE is {world} and {cluster.name} has {cluster.size} devices; make them equal")
    if world > 1:
        _check_meeting_place()
    return rank, world


def _check_meeting_place() -> None:
    """Raises OptionError where MASTER_ADDR and MASTER_PORT cannot be where the ranks meet."""
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host:
        raise OptionError("RANK is set and MASTER_ADDR is not; start with torchrun, or give rank 0's address")
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise OptionError(f"MASTER_PORT is {port!r}; give a port from 1 to 65535 at which rank 0 may listen")
    try:
        socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        why = error.strerror or error
        raise OptionError(f"MASTER_ADDR {host!r} is not found ({why}); give rank 0's name or address") from None


def talk_over(cluster: Cluster, note: Tell) -> None:
    """The interface at which gloo listens: the one that the environment or the cluster names, loopback where the ranks
    meet there. Says in one line that what passes over any other is neither encrypted nor asked for a password.
    Raises OptionError for an interface that this machine lacks."""
    chosen, host = os.environ.get(INTERFACE, "") or cluster.interface, os.environ.get("MASTER_ADDR", "")
    if chosen:
        who = INTERFACE if os.environ.get(INTERFACE) else f"cluster {cluster.name}"
        check_interface(chosen, who, OptionError)
    if not chosen and _leads_here(host):
        chosen = LOOP
    if chosen:
        os.environ[INTERFACE] = chosen
    if chosen != LOOP:
        where = f"interface {chosen}" if chosen else "whatever interface this host's name leads to"
        note(f"ranks talk over {where}, unencrypted and without a password: keep that network to yourself")


def _leads_here(host: str) -> bool:
    """Whether a name or an address, of either family, is that of loopback."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host else []
    return any(ip_address(address[0]).is_loopback for *_, address in found[:1])


@contextmanager
def met(
    cluster: Cluster, rank: int, world: int, *, timeout: Seconds, note: Tell, refuse: Callable[[], None]
) -> Iterator[Words]:
    """A context in which this process's rank, which `place_here` says, has met the others and gives signs of life. What
    rank 0 finds to `refuse` all ranks refuse, before their steps are captured, which may take minutes.

    Raises OptionError for that, and for an address or interface that cannot be; RunError where ranks do not come.
    """
    keep_freed()
    if world > 1 or backend_of(cluster) != GLOO:
        talk_over(cluster, note if rank == 0 else quiet)
        join_world(rank, world, timeout, backend_of(cluster), note=note)
    with signs_of_life(rank, world) as words:
        why = ""
        try:
            refuse() if rank == 0 else None
        except InputError as error:
            why = str(error)
        if why := spread(why, rank, world):
            raise OptionError(why)
        yield words


def train_rank(task: Task, asked: Training, rank: int, world: int, words: Words) -> RunResult | None:
    """Train as this process's rank, once it has `met` the others; the result on rank 0, None on the others. Rank 0
    calls `asked.begin` once the directory is its own.

    Raises OptionError for what this process was told otherwise than the others, InputError for a directory that holds
    another run, RunStopped after a signal.
    """
    graph, cluster, steps = asked.graph, asked.cluster, asked.steps
    words.speakers = asked.program.size
    with ExitStack() as stack:
        told = facts_of(graph, asked.plan, cluster, seed=asked.seed, steps=steps, evaluation=asked.evaluation)
        facts = gather(dict(told), rank, world)
        start = _start(asked, facts, stack) if rank == 0 else None
        word = spread(_word(start), rank, world)
        if word["error"]:
            raise OptionError(word["error"])
        if word["finished"]:
            return start.result if isinstance(start, Finished) else None
        session = Session(task, graph, cluster, asked.seed, rank, world, asked.timeout, device_of(cluster, rank))
        session.open(asked.init)
        report = _report(session, asked, word["resume"], words)
        reports = gather(report, rank, world)
        if dist.is_initialized():
            dist.destroy_process_group()
        if (step := report["stopped"]) is not None:
            raise RunStopped(stopped_at(step, asked.keep.out), report["stopped_by"], step=step)
        if rank:
            return None
        discard = min(3, max(steps - report["since"] - 1, 0))
        result = result_of(asked.program, reports, discard)
        finish(asked, result)
        return result


def _start(asked: Training, facts: Sequence[Any], stack: ExitStack) -> SavedCheckpoint | Finished | InputError | None:
    """Where a run begins, on rank 0, to which all ranks have told their `facts`: at the start, at a checkpoint, with
    its result, or not at all. The directory is its own until `stack` ends."""
    try:
        if unlike := differing(facts):
            raise OptionError(unlike)
        return stack.enter_context(opened(asked))
    except InputError as error:
        return error


def _word(start: SavedCheckpoint | Finished | InputError | None) -> dict[str, Any]:
    """What rank 0 tells the others of it."""
    return {
        "error": str(start) if isinstance(start, InputError) else "",
        "resume": str(start.path) if isinstance(start, SavedCheckpoint) else "",
        "finished": isinstance(start, Finished),
    }


def _report(session: Session, asked: Training, resume: str, words: Words) -> dict[str, Any]:
    """This rank's part of the result, once it has trained."""
    keep, plan = asked.keep, asked.plan
    job = Job(
        plan, asked.steps, out=keep.out, keyed=asked.keyed, every=keep.every, keep=keep.many, resume=resume,
        evaluate_every=asked.evaluation.every, patience=asked.evaluation.patience,
    )  # fmt: skip
    progress = Progress(plan.name, asked.steps, asked.program.size)

    def hear(event: dict[str, Any]) -> None:
        if "note" in event:
            asked.note(event["note"])
        if "loss" in event:
            words.own = json.dumps(event["loss"])
        for other, word in words.heard.items():
            progress.take_in(other, json.loads(word))
        if sentence := progress.hear(session.rank, event, time.perf_counter()):
            asked.tell(sentence)

    with advising("" if session.rank else keep.out), session.together():  # the first computes the held-out loss
        return run(session, job, hear)
