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
from dataclasses import dataclass, field
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
from partita.lab.spares import Spares
from partita.lab.worker import Worker, start_worker
from partita.units import Bytes, Seconds

KEEPER: Final = -1  # among the ranks of whom the group hears
DEATH_DELAY: Final[Seconds] = 0.5  # of what says so, behind the reports of those who lost a connection by it
OnEvent = Callable[[int, dict[str, Any]], None]


@dataclass
class Request:
    """What all workers are asked, and what has come of it: `replies` by rank, `failures`, and when a worker that has
    yet to answer last `moved`. It waits `timeout` seconds for that, and `stall` seconds while some worker stands still.
    Private to one `ask_all`."""

    number: int
    verb: str
    timeout: Seconds
    stall: Seconds
    on_event: OnEvent
    spares: Spares
    replies: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: list[WorkerFailure] = field(default_factory=list)
    moved: Seconds = field(default_factory=time.monotonic)

    @property
    def end(self) -> Seconds:
        """When it is given up. A peer's report of a lost connection may arrive before the death that caused it."""
        given_up = self.moved + self.timeout
        return min(given_up, self.failures[0].heard + DEATH_DELAY) if self.failures else given_up

    def limit(self, workers: Sequence[Worker]) -> Seconds:
        """The same, or when who stands still has done so for too long."""
        standing = any(worker.stands for worker in workers)
        return min(self.end, self.moved + self.stall) if standing else self.end

    def owed_by(self, worker: Worker) -> bool:
        """Whether a worker has yet to answer."""
        return worker.rank not in self.replies

    def owing(self, workers: Sequence[Worker]) -> list[Worker]:
        """The workers that have yet to answer, of those that are there."""
        return [worker for worker in workers if self.owed_by(worker) and worker.rank not in self.spares.away]

    def goes_on(self) -> None:
        """A worker that had yet to answer has moved; what has failed ends nevertheless."""
        if not self.failures:
            self.moved = time.monotonic()

    def fails(self, worker: Worker, message: dict[str, Any]) -> None:
        """A worker reports an error: the others go on without it if they may."""
        if self.spares.gives_up(worker.rank):
            self.on_event(worker.rank, {"note": f"{message['error']}; the others go on without it"})
        elif worker.rank not in self.spares.away:
            self.failures.append(reported_by(worker, message))


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
        on_event: OnEvent = lambda rank, event: None, stall: Seconds = inf, spares: Spares | None = None,
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
        self.links = Links(self.cluster, self.lab.addresses)
        request = Request(self._number, verb, timeout, stall, on_event, spares or Spares())
        for worker in self.workers:
            own = payload if isinstance(payload, Mapping) else payload[worker.rank]
            worker.tell({"id": request.number, "verb": verb, **own})
            worker.step, worker.ready, worker.stands, worker.heard = -1, False, None, time.monotonic()
            self._want_write(worker)
        try:
            with self._untimed:
                replies = self._listen(request)
            if request.spares.died:
                self.broken = f"rank {min(request.spares.died)} died"
            return replies
        except BaseException as error:
            self.broken = str(error) or type(error).__name__
            raise

    def _listen(self, request: Request) -> list[dict[str, Any]]:
        """The replies of all but those that are away. Raises the likely cause of what has failed, a hang where nobody
        moves."""
        limit = request.end
        while request.owing(self.workers) or request.failures:
            limit, before = request.limit(self.workers), request.moved
            for key, events in self.selector.select(max(0.0, limit - time.monotonic())):
                self._attend(key, events, request)
            if any(failure.died for failure in request.failures):
                break
            if request.moved == before and time.monotonic() >= min(limit, request.end):
                break
        if request.failures:
            raise likely_cause(request.failures).error
        if silent := request.owing(self.workers):
            raise hang(request.verb, time.monotonic() - request.moved, silent, stood=limit < request.end)
        return [request.replies[worker.rank] for worker in self.workers if worker.rank in request.replies]

    def _attend(self, key: selectors.SelectorKey, events: int, request: Request) -> None:
        """Something moves: a worker can be told more, says something, or ends."""
        if key.data == KEEPER:
            raise self.lab.keeper.gone()
        worker = self.workers[key.data]
        if events & selectors.EVENT_WRITE:
            worker.flush()
            self._want_write(worker)
        elif key.fd == worker.lines.descriptor:
            owed = request.owed_by(worker)
            if self._hear(worker, request) and owed:
                request.goes_on()
        elif key.fd == worker.watch and not worker.ended:
            self._hear(worker, request)
            self.selector.unregister(worker.watch)
            worker.ended = True
            self._ends(worker, request)

    def _ends(self, worker: Worker, request: Request) -> None:
        """A worker has ended: the others go on without it if they may."""
        spare = request.spares.can_do_without(worker.rank, begun=worker.step >= 0)
        if spare and request.owed_by(worker) and not request.failures:
            self._do_without(worker, request)
            request.goes_on()
        elif all(failure.error.rank != worker.rank for failure in request.failures):
            request.failures.append(death_of(self.lab, worker))

    def _do_without(self, worker: Worker, request: Request) -> None:
        """Go on without a worker that has died; it is started again if it may be."""
        rank, again = worker.rank, request.spares.dies(worker.rank)
        sentence = death_of(self.lab, worker).error.sentence
        left = (
            "another of its chain plays its part"
            if request.spares.successors(rank)
            else "its samples are left out from then on"
        )
        way = "it is started again" if again else left
        request.on_event(rank, {"note": f"{sentence}; the others go on, {way}"})
        for descriptor in (worker.lines.descriptor, worker.stdin):
            if descriptor in self.selector.get_map():
                self.selector.unregister(descriptor)
        if again:
            self.workers[rank] = self._start(rank, self._stack)
            for number, message in zip((0, request.number), again, strict=True):
                self.workers[rank].tell({"id": number, **message})
            self._want_write(self.workers[rank])

    def _hear(self, worker: Worker, request: Request) -> bool:
        """Handle the messages of a worker; whether it has made progress. Lines that are no messages of this request
        go to its log."""
        moved, worker.heard = False, time.monotonic()
        for message in worker.hear():
            if message.get("id") != request.number:
                continue
            if at := message.get("event", {}).get("at"):
                worker.stands = at
                moved |= self._hear_of_links(worker, at, request.on_event)
                continue
            moved, worker.stands = True, None
            if "event" in message:
                self._hear_event(worker, message["event"], request)
            elif "error" in message:
                request.fails(worker, message)
            else:
                request.replies[worker.rank] = message["ok"]
        if worker.lines.ended and worker.lines.descriptor in self.selector.get_map():
            self.selector.unregister(worker.lines.descriptor)
        return moved

    def _hear_event(self, worker: Worker, event: dict[str, Any], request: Request) -> None:
        worker.step = max(worker.step, event.get("step", -1))
        worker.ready |= "ready" in event
        if "back" in event:
            request.spares.absent.discard(worker.rank)
        if "untimed" in event:
            self._untimed.enter_context(self.lab.lifted())
        if "failed" in event:
            request.fails(worker, event["failed"])
        request.on_event(worker.rank, event)

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
