"""One set of worker processes, a device each, kept alive over many jobs.

    ask_all("run", {...})  ──>  {"id": 3, "verb": "run", ...}      to each worker's stdin
    on_event(rank, event)  <──  {"id": 3, "event": {"step": 12}}   any number, from its stdout
                                {"id": 3, "event": {"ready": true}}   it goes to meet the others: who holds them up?
                                {"id": 3, "event": {"untimed": true}}   quotas are lifted until all have replied
                                {"id": 3, "event": {"failed": {...}}}   an error of a worker that cannot reply any more
    a list of replies      <──  {"id": 3, "ok": {...}}             or {"id": 3, "error": "a sentence", "exit": 3}

Nothing is polled: the group sleeps until a pipe or a process moves.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from partita.cluster.cluster import Cluster
from partita.errors import RunError
from partita.lab.failures import WorkerFailure, death_of, hang, likely_cause, reported_by
from partita.lab.lab import Lab
from partita.lab.links import Links
from partita.lab.network import open_lab
from partita.lab.record import scratch
from partita.lab.spares import NOBODY, Spares
from partita.lab.worker import Worker, start_worker
from partita.units import Bytes, Seconds

KEEPER: Final = -1  # among the ranks of whom the group hears
DEATH_DELAY: Final[Seconds] = 0.5  # of what says so, behind the reports of those who lost a connection by it
OnEvent = Callable[[int, dict[str, Any]], None]


class WorkerGroup:
    """Workers on every device of `cluster`: forked from the fork server, or running `argv`; use as a context manager.

    `logs` is the directory for each worker's standard error (a temporary one by default). With `listen`, on loopback,
    rank 0 inherits the listening socket of MASTER_PORT (see Lab.spawn). `beside` is as in `open_lab`. On any way out
    every process group is killed and the lab is removed.
    """

    def __init__(
        self, cluster: Cluster, argv: Sequence[str] = (), *, env: Mapping[str, str] | None = None,
        logs: Path | None = None, beside: Bytes | None = None, listen: bool = False,
    ) -> None:  # fmt: skip
        self.cluster, self.argv, self.env = cluster, tuple(argv), dict(env or {})
        self.logs, self.beside, self.listen = logs, beside, listen
        self.workers: list[Worker] = []
        self.broken = ""
        self.spares = Spares()
        self._number = 0
        self._stack, self._untimed = ExitStack(), ExitStack()

    def __enter__(self) -> WorkerGroup:
        with ExitStack() as stack:
            logs = self.logs
            if logs is None:
                logs = stack.enter_context(scratch())
            logs.mkdir(parents=True, exist_ok=True)
            self.logs = logs
            self.lab: Lab = stack.enter_context(open_lab(self.cluster, beside=self.beside))
            self.selector = stack.enter_context(selectors.DefaultSelector())
            self.selector.register(self.lab.watch(self.lab.keeper.process), selectors.EVENT_READ, KEEPER)
            if not self.listen:
                self.lab.free_port()
            for rank in range(self.cluster.size):
                self.workers.append(self._start(rank, stack))
            self.lab.free_port()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broken = self.broken or "it was closed"
        self._stack.close()
        self.workers = []

    def _start(self, rank: int, stack: ExitStack) -> Worker:
        assert self.logs is not None
        worker = start_worker(self.lab, rank, self.argv, self.env, self.logs / f"rank{rank}.log", self.listen)
        stack.callback(worker.close)
        self.selector.register(worker.lines.descriptor, selectors.EVENT_READ, rank)
        self.selector.register(worker.watch, selectors.EVENT_READ, rank)
        return worker

    def ask_all(
        self, verb: str, payload: Mapping[str, Any] | Sequence[Mapping[str, Any]], timeout: Seconds,
        on_event: OnEvent = lambda rank, event: None, stall: Seconds = inf, spares: Spares = NOBODY,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """The reply of every rank to `verb`, in order; a sequence as `payload` has one for each rank. The others go on
        without a rank of `spares` that dies; it is started again if they say so.

        `timeout` limits the seconds without any message from the workers that have yet to answer, `stall` the seconds
        in which they report that they stand still (`{"at": ...}`) while no byte moves. Raises RunError with rank and
        last step if a worker dies or reports an error, RunHung if time runs out; the group cannot be used afterwards.
        """
        if self.broken:
            raise RunError(f"the workers cannot be asked to {verb}: {self.broken}; start them again")
        self._number += 1
        self.spares, self.links = spares, Links(self.cluster, self.lab.addresses)
        for worker in self.workers:
            own = payload if isinstance(payload, Mapping) else payload[worker.rank]
            worker.tell({"id": self._number, "verb": verb, **own})
            worker.step, worker.ready, worker.stands, worker.heard = -1, False, None, time.monotonic()
            self._want_write(worker)
        try:
            with self._untimed:
                replies = self._listen(verb, timeout, on_event, stall)
            if spares.died:
                self.broken = f"rank {min(spares.died)} died"
            return replies
        except BaseException as error:
            self.broken = str(error) or type(error).__name__
            raise

    def _listen(self, verb: str, timeout: Seconds, on_event: OnEvent, stall: Seconds) -> list[dict[str, Any]]:
        replies: dict[int, dict[str, Any]] = {}
        failures: list[WorkerFailure] = []
        moved = time.monotonic()
        end = moved + timeout
        while len(replies) + len(self.spares.away) < len(self.workers) or failures:
            limit = min(end, moved + stall) if any(worker.stands for worker in self.workers) else end
            heard = moved
            for key, events in self.selector.select(max(0.0, limit - time.monotonic())):
                if key.data == KEEPER:
                    raise self.lab.keeper.gone()
                worker = self.workers[key.data]
                if events & selectors.EVENT_WRITE:
                    worker.flush()
                    self._want_write(worker)
                elif key.fd == worker.lines.descriptor:
                    owes = worker.rank not in replies
                    if self._hear(worker, replies, failures, on_event) and owes and not failures:
                        moved = time.monotonic()
                        end = moved + timeout
                elif key.fd == worker.watch and not worker.ended:
                    self._hear(worker, replies, failures, on_event)
                    self.selector.unregister(key.fileobj)
                    worker.ended = True
                    owes, begun = worker.rank not in replies, worker.step >= 0
                    if owes and not failures and self.spares.can_do_without(worker.rank, begun):
                        self._do_without(worker, on_event)
                        moved = time.monotonic()
                        end = moved + timeout
                    elif all(failure.error.rank != worker.rank for failure in failures):
                        failures.append(death_of(self.lab, worker))
            if failures:
                # A peer's report of a lost connection may arrive before the death that caused it.
                end = min(end, failures[0].heard + DEATH_DELAY)
                if any(failure.died for failure in failures):
                    break
            if moved == heard and time.monotonic() >= min(limit, end):
                break
        if failures:
            raise likely_cause(failures).error
        if len(replies) + len(self.spares.away) < len(self.workers):
            raise hang(verb, time.monotonic() - moved, self._silent(replies), stood=limit < end)
        return [replies[worker.rank] for worker in self.workers if worker.rank in replies]

    def _do_without(self, worker: Worker, on_event: OnEvent) -> None:
        """Go on without a worker that has died; it is started again if it may be."""
        rank, again = worker.rank, self.spares.dies(worker.rank)
        sentence = death_of(self.lab, worker).error.sentence
        left = (
            "another of its chain plays its part"
            if self.spares.successors(rank)
            else "its samples are left out from then on"
        )
        way = "it is started again" if again else left
        on_event(rank, {"note": f"{sentence}; the others go on, {way}"})
        for descriptor in (worker.lines.descriptor, worker.stdin):
            if descriptor in self.selector.get_map():
                self.selector.unregister(descriptor)
        if again:
            self.workers[rank] = self._start(rank, self._stack)
            for number, message in zip((0, self._number), again, strict=True):
                self.workers[rank].tell({"id": number, **message})
            self._want_write(self.workers[rank])

    def _silent(self, replies: Mapping[int, Any]) -> list[Worker]:
        return [w for w in self.workers if w.rank not in replies and w.rank not in self.spares.away]

    def _hear(
        self, worker: Worker, replies: dict[int, dict[str, Any]], failures: list[WorkerFailure], on_event: OnEvent
    ) -> bool:
        """Handle the messages of a worker; whether it has made progress. Lines that are no messages of this request
        go to its log."""
        moved, worker.heard = False, time.monotonic()
        for message in worker.hear():
            if message.get("id") != self._number:
                continue
            if at := message.get("event", {}).get("at"):
                worker.stands = at
                moved |= self._hear_of_links(worker, at, on_event)
                continue
            moved, worker.stands = True, None
            if "event" in message:
                event = message["event"]
                worker.step = max(worker.step, event.get("step", -1))
                worker.ready |= "ready" in event
                if "back" in event:
                    self.spares.absent.discard(worker.rank)
                if "untimed" in event:
                    self._untimed.enter_context(self.lab.lifted())
                if "failed" in event:
                    self._fails(worker, event["failed"], failures, on_event)
                on_event(worker.rank, event)
            elif "error" in message:
                self._fails(worker, message, failures, on_event)
            else:
                replies[worker.rank] = message["ok"]
        if worker.lines.ended and worker.lines.descriptor in self.selector.get_map():
            self.selector.unregister(worker.lines.descriptor)
        return moved

    def _fails(self, worker: Worker, message: dict[str, Any], failures: list[WorkerFailure], on_event: OnEvent) -> None:
        """A worker reports an error: the others go on without it if they may."""
        if self.spares.gives_up(worker.rank):
            on_event(worker.rank, {"note": f"{message['error']}; the others go on without it"})
        elif worker.rank not in self.spares.away:
            failures.append(reported_by(worker, message))

    def _hear_of_links(self, worker: Worker, at: Mapping[str, Any], on_event: OnEvent) -> bool:
        """Whether bytes move to or from a worker that stands still: then it is slow, and does not hang."""
        carried = self.links.hear(worker.rank, at.get("flows", {}), worker.heard)
        for sentence in self.links.slow(worker.heard):
            on_event(worker.rank, {"note": sentence})
        return carried

    def _want_write(self, worker: Worker) -> None:
        """Watch the worker's stdin for as long as messages are queued."""
        pipe = worker.stdin
        registered = pipe in self.selector.get_map()
        if worker.unsaid and not registered:
            self.selector.register(pipe, selectors.EVENT_WRITE, worker.rank)
        elif registered and not worker.unsaid:
            self.selector.unregister(pipe)
