"""A worker process that is kept alive over plans: reads one JSON request a line, writes one JSON reply a line.

-> {"id": 1, "verb": "open", "task": "file.py:function", "graph": "/run/graph.json", ...}
<- {"id": 1, "event": {"step": 12}}          any number of these
<- {"id": 1, "ok": {...}}                    or {"id": 1, "error": "one sentence", "exit": 2}
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import torch

from partita.cluster.text import load_cluster
from partita.errors import PartitaError, RunError, reported
from partita.graph.text import read_graph
from partita.plan.text import read_plan
from partita.probes.disturbance import UNDISTURBED, rank_disturbance
from partita.probes.link_timing import rank_wires
from partita.probes.operators import rank_operators
from partita.probes.schedule_timing import schedule_seconds
from partita.probes.touches import rank_touches
from partita.runs.execution import run
from partita.runs.session import Job, Session
from partita.runs.world import join_world
from partita.runtime.device import CPU, GLOO, backend_of, device_of
from partita.task import load_task
from partita.transport.ways import open_ways
from partita.units import Seconds

Request = dict[str, Any]
Tell = Callable[[dict[str, Any]], None]
WAYS_TIMEOUT: Final[Seconds] = 60.0  # for others to be there, who are asked at the same time


class Service:
    """The verbs that a worker answers; holds its session from `open` on."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.joined = False
        self.session: Session | None = None
        self.refusal = ""

    def answer(self, request: Request, tell: Tell) -> dict[str, Any]:
        """What a verb answers. Raises what it raises."""
        if request["verb"] not in VERBS:
            raise PartitaError(f"a worker has no verb {request['verb']!r}; it has {', '.join(VERBS)}")
        try:
            return getattr(self, request["verb"])(request, tell)  # type: ignore[no-any-return]
        except Exception as error:
            self.refusal = self.refusal or str(error)
            raise

    def open(self, request: Request, tell: Tell) -> dict[str, Any]:
        """Load the task and the graph, map the first weights, and meet the other ranks."""
        from partita.zoo.tasks import built_in

        task, cluster = load_task(request["task"], built_in), load_cluster(request["cluster"])
        tell({"ready": True})
        if not request.get("back"):
            self.join(request, tell)
        self.session = Session(
            task, read_graph(Path(request["graph"])), cluster, request["seed"], self.rank, self.world,
            request["timeout"], device_of(cluster, self.rank),
        )  # fmt: skip
        self.session.open(first=request["first"], back=request.get("back", False))
        return {"rank": self.rank}

    def join(self, request: Request, tell: Tell) -> dict[str, Any]:
        """Meet the other ranks, once."""
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        backend = backend_of(load_cluster(request["cluster"])) if "cluster" in request else GLOO
        if not self.joined and (self.world > 1 or backend != GLOO):
            join_world(
                self.rank, self.world, request["timeout"], backend, note=lambda sentence: tell({"note": sentence})
            )
        self.joined = True
        return {"rank": self.rank}

    def run(self, request: Request, tell: Tell) -> dict[str, Any]:
        """Carry out a plan for some steps."""
        if self.session is None:
            raise RunError(f"it could not load the task: {self.refusal}", rank=self.rank)
        job = Job(read_plan(request["plan"]), **{k: request[k] for k in Job.__slots__ if k in request and k != "plan"})
        return run(self.session, job, tell)

    def memory(self, request: Request, tell: Tell) -> dict[str, Any]:
        """Measure live tensor bytes under a plan."""
        assert self.session is not None
        seen = self.session.memory(Job(read_plan(request["plan"]), 0))
        return seen.message() if seen else {}

    def operators(self, request: Request, tell: Tell) -> dict[str, Any]:
        """Micro-benchmarks of this rank's part of the operators that the batches need."""
        assert self.session is not None
        if self.rank >= request["ranks"]:
            return {}
        session, asked = self.session, {name: request[name] for name in ("batches", "known", "steps", "total")}
        return rank_operators(
            session.task, session.graph, self.rank, request["ranks"], device=session.device, tell=tell, **asked
        )

    def touches(self, request: Request, tell: Tell) -> dict[str, Any]:
        """Micro-benchmarks of copies, updates and loading."""
        assert self.session is not None
        if self.rank >= request["ranks"]:
            return {}
        session, asked = self.session, {name: request[name] for name in ("codecs", "age", "passes")}
        return rank_touches(session.task, session.graph, request["count"], device=session.device, **asked)

    def wires(self, request: Request, tell: Tell) -> dict[str, Any]:
        """Micro-benchmarks of messages and all-reduces."""
        device = self.session.device if self.session else CPU
        if self.world > 1:
            open_ways(WAYS_TIMEOUT)
        return rank_wires(self.rank, self.world, tuple(request["sizes"]), request["kinds"], device)

    def schedules(self, request: Request, tell: Tell) -> dict[str, Any]:
        """Micro-benchmarks of all-reduces by several algorithms; none of what lies on cards."""
        if self.session and self.session.device != CPU:
            return {}
        open_ways(WAYS_TIMEOUT)
        return schedule_seconds(request["names"], request["sizes"])

    def beside(self, request: Request, tell: Tell) -> dict[str, Any]:
        """Micro-benchmarks of operators beside messages; cards do not feel these."""
        assert self.session is not None
        if self.session.device != CPU:
            return UNDISTURBED
        open_ways(WAYS_TIMEOUT)
        asked = request["batch"], self.rank, self.world, request["largest"], request["kinds"]
        return rank_disturbance(self.session.graph, *asked)


VERBS: Final = ("join", "open", "run", "memory", "operators", "touches", "wires", "schedules", "beside")


def serve(lines: TextIO, out: TextIO) -> None:
    """Answer requests until the input ends."""
    service, speaking = Service(), threading.Lock()

    def say(message: dict[str, Any]) -> None:
        with speaking:
            out.write(json.dumps(message) + "\n")
            out.flush()

    def tell(number: int, event: dict[str, Any]) -> None:
        say({"id": number, "event": event})

    for line in lines:
        request: Request = json.loads(line)
        number = request["id"]
        try:
            say({"id": number, "ok": service.answer(request, partial(tell, number))})
        except Exception as error:
            if not isinstance(error, PartitaError):
                traceback.print_exc(file=sys.stderr)
            say({"id": number, **reported(error)})


def main() -> None:
    """Answer requests from the inherited standard input on the inherited standard output; what user code prints goes to
    standard error, and what it reads has ended."""
    lines, out = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    serve(lines, out)
    os._exit(0)


if __name__ == "__main__":
    main()
