"""One rank on one card: speed beside plain PyTorch, step times and memory beside what was predicted, NCCL, codecs.

    run.py [--only speed,memory,nccl,compiled,codecs,operators] [--tasks resnet50,gpt2_small] [--steps 10] [--repeat 7]
           [--limit 560] [--lock FILE] [--out figures.json]

speed     `single` and the plain loop in turn, in fp32 and bf16, predicted before either runs
memory    peaks of allocated and of reserved bytes, without and with recomputation, beside what is predicted
nccl      a group of one rank: every collective, and what a lane waits for
compiled  `single(segments=compiled)` and the plain loop through torch.compile, in turn
codecs    each codec's kernels on 2^26 numbers, beside a copy on the card
operators what each operator takes: seconds, core-seconds of launching, bytes beyond its results

Several of these may run at once with one --lock: who times holds it alone, who fills memory together with others.

A line a case as it is done; all figures go to --out with card, date and commit. No case begins after --limit seconds;
what was left out is named. Without a CUDA device it says so: exit 0, or 2 where --only insists.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from math import log
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]  # the package, installed or not, for this process and its workers
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
try:
    from benchmarks.gpu.coding import BAR as PART
    from benchmarks.gpu.coding import copying, speed_of
    from benchmarks.gpu.courses import Course, courses_of
    from benchmarks.gpu.operators import taken_by
    from benchmarks.gpu.plain import Plain
    from benchmarks.gpu.reserved import held_by
    from benchmarks.gpu.tasks import FILLED, TIMED
    from partita import api
    from partita.cluster.cluster import Cluster
    from partita.cost.costs import Costs
    from partita.errors import PlanError
    from partita.graph.graph import Graph
    from partita.lab.rehearsal import Rehearsal
    from partita.lowering.lower import last_program
    from partita.lowering.precision import format_asked
    from partita.plan.plan import Plan
    from partita.program.space import Kind
    from partita.program.timeline import Span
    from partita.report.environment import environment
    from partita.runs.world import join_world
    from partita.simulator.simulate import simulate
    from partita.task import load_task
    from partita.transport.processes import Processes
    from partita.wire.codec import SPECS
except ImportError as missing:
    print(f"a package that partita needs is missing here ({missing}); install it, or carry its wheel along")
    sys.exit(2)

PIECES = ("speed", "memory", "nccl", "compiled", "codecs", "operators")
PRECISIONS = ("fp32", "bf16")
CLUSTER = "local:cuda:1"
BAR = 1.02
TURN = 0.4  # seconds, about, of the steps of a turn that count
WAYS = ("encode", "decode")
COMPILED = ("resnet50", "gpt2_small", "bert_large", "alexnet")
RECOMPUTE = ("none", "full", "auto")
BUDGETS = (0.6, 0.7, 0.8, 0.9, 0.95)  # of what comes and goes; one large activation may be more than 0.6 by itself


@dataclass
class Figures:
    """What has been measured, and what time did not suffice for."""

    card: str
    until: float
    out: Path | None
    lock: Path | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def each(self, piece: str, names: Iterable[str]) -> Iterable[str]:
        """The names for which there is time."""
        for name in names:
            if time.monotonic() > self.until:
                self.left.append(f"{piece} of {name}")
            else:
                yield name

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        if self.out:
            where = {"card": self.card, **asdict(environment())}
            self.out.write_text(json.dumps({**where, "rows": self.rows, "left": self.left}, indent=1) + "\n")

    @contextmanager
    def alone(self, way: int = fcntl.LOCK_EX) -> Iterator[None]:
        """A context in which nobody else with the same lock times, nor (LOCK_EX) does anything else on the card."""
        if self.lock is None:
            yield
            return
        with self.lock.open("a") as held:
            fcntl.flock(held, way)
            yield

    def of(self, piece: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["piece"] == piece and "error" not in row]


def spec(name: str) -> str:
    return f"{HERE / 'tasks.py'}:{name}"


def plan_text(precision: str, **knobs: Any) -> str:
    given = {**({"precision": "bf16"} if precision == "bf16" else {}), **knobs}
    return f"single({','.join(f'{knob}={value}' for knob, value in given.items())})" if given else "single"


def guarded(figures: Figures, piece: str, name: str, run: Callable[[], None]) -> None:
    """One model's failure is a row of its own, and the others go on."""
    try:
        run()
    except Exception as error:  # whatever a model meets on a card
        figures.add(piece=piece, task=name, error=f"{type(error).__name__}: {error}"[:400])
    torch.cuda.empty_cache()


def speed(figures: Figures, names: Iterable[str], steps: int, repeat: int, piece: str = "speed") -> None:
    compiled = piece == "compiled"
    cluster = api.cluster_of(CLUSTER)

    def one(name: str) -> None:
        graph, task = api.graph_of(spec(name)), load_task(spec(name))
        knobs = {"segments": "compiled"} if compiled else {}
        plans = {p: api.plan_of(plan_text(p, **knobs), graph, cluster) for p in PRECISIONS}
        with Rehearsal(spec(name), graph, cluster, timeout=300.0) as rehearsal, figures.alone():
            costs = None if compiled else rehearsal.probe(list(plans.values()))
            for precision, plan in plans.items():
                program = last_program(graph, plan, cluster)
                timeline = simulate(program, costs) if costs else None
                predicted = timeline.step_seconds if timeline else None
                loop = Plain(task, "cuda:0", precision == "bf16", compiled)
                turn = min(max(int(TURN / loop.seconds(3)), 3), steps)
                ours, theirs = [], []
                for _ in range(repeat):
                    ran = rehearsal.measure(plan, steps=turn, evaluate=False).timeline
                    ours.append(ran.step_seconds)
                    theirs.append(loop.seconds(turn))
                figures.add(
                    piece=piece, task=name, precision=precision, seconds=median(ours), spread=[min(ours), max(ours)],
                    plain=median(theirs), plain_spread=[min(theirs), max(theirs)], ratio=median(ours) / median(theirs),
                    predicted=predicted, off=log(predicted / median(ours)) if predicted else None,
                    spans={n: [last_of(timeline.spans, n), last_of(ran.spans, n)] for n in names_of(ran.spans)}
                    if timeline else {},
                )  # fmt: skip
                del loop
                torch.cuda.empty_cache()

    for name in figures.each(piece, names):
        guarded(figures, piece, name, partial(one, name))


def names_of(spans: Iterable[Span]) -> list[str]:
    return list(dict.fromkeys(span.name for span in spans))


def last_of(spans: Iterable[Span], name: str) -> float:
    """Seconds of an instruction in the last round."""
    return next((s.end - s.start for s in reversed(list(spans)) if s.name == name), 0.0)


def memory(figures: Figures, names: Iterable[str]) -> None:
    cluster = api.cluster_of(CLUSTER)
    courses: dict[str, dict[str, Course]] = {}

    def case(rehearsal: Rehearsal, name: str, plan: Plan, costs: Costs, precision: str, recompute: str) -> None:
        program = last_program(rehearsal.graph, plan, cluster)
        predicted = simulate(program, costs).memory[0]
        held = held_by(program, rehearsal.graph, costs.workspaces.kept, courses[precision])
        watch = rehearsal.memory(plan)[0]
        figures.add(
            piece="memory", task=name, precision=precision, recompute=recompute, budget=plan.memory.budget,
            predicted=predicted, allocated=watch.peak, allocated_off=predicted / watch.peak - 1,
            predicted_held=held, reserved=watch.held, reserved_off=held / watch.held - 1,
        )  # fmt: skip

    def one(name: str) -> None:
        graph = api.graph_of(spec(name))
        plans = {each: planned(graph, cluster, *each) for each in product(PRECISIONS, RECOMPUTE)}
        with Rehearsal(spec(name), graph, cluster, timeout=300.0) as rehearsal, figures.alone(fcntl.LOCK_SH):
            costs = rehearsal.probe([plan for plan in plans.values() if plan])
            for precision in PRECISIONS:
                courses[precision] = courses_of(graph, "bfloat16" if precision == "bf16" else "")
                torch.cuda.empty_cache()
            for (precision, recompute), plan in plans.items():
                what = f"{name} {precision} {recompute}"
                if plan:
                    guarded(figures, "memory", what, partial(case, rehearsal, name, plan, costs, precision, recompute))
                else:
                    figures.add(piece="memory", task=name, error=f"{what}: no budget below that of none suffices")

    for name in figures.each("memory", names):
        guarded(figures, "memory", name, partial(one, name))


def planned(graph: Graph, cluster: Cluster, precision: str, recompute: str) -> Plan | None:
    """`single` with that; auto with the least of BUDGETS that it can keep to, None if with none of them."""
    if recompute != "auto":
        knobs = {"recompute": "full"} if recompute == "full" else {}
        return api.plan_of(plan_text(precision, **knobs), graph, cluster)
    for budget in BUDGETS:
        with suppress(PlanError):
            return api.plan_of(plan_text(precision, recompute="auto", budget=budget), graph, cluster)
    return None


def nccl(figures: Figures) -> None:
    """Every collective that the worker asks a backend for, on a card, in a group of one rank that a lane waits for."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    torch.cuda.set_device(0)
    join_world(0, 1, 60.0, "cpu:gloo,cuda:nccl")
    transport, group, size = Processes(0), (0,), 2**22
    transport.groups["wire", group] = dist.new_group([0])
    dist.barrier()
    for kind in Kind:
        flat, edges = torch.arange(size, device="cuda:0", dtype=torch.float32), (0, size)
        before, seconds = flat.clone(), []
        for _ in range(20):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            launched = transport.collective(kind, flat, group, "wire", str(kind), 0, edges)
            assert not isinstance(launched, Generator)  # which goes hop by hop: no card does
            done = launched.block(60.0)
            seconds.append(time.perf_counter() - begun)
        equal = bool(done and torch.equal(flat, before))
        figures.add(piece="nccl", task=str(kind), bytes=4 * size, seconds=median(seconds[5:]), equal=equal)
    dist.destroy_process_group()


def codecs(figures: Figures, names: Iterable[str]) -> None:
    def one(name: str) -> None:
        with figures.alone():
            copy, speed = copying(), speed_of(name)  # in turn, so that a card's clocks are alike
        figures.add(
            piece="codecs", task=name, copy=copy, bytes=speed.bytes, staged=speed.staged,
            encode=speed.encode, encode_part=speed.encode / copy, decode=speed.decode, decode_part=speed.decode / copy,
        )  # fmt: skip

    for name in figures.each("codecs", names):
        guarded(figures, "codecs", name, partial(one, name))


def operators(figures: Figures, names: Iterable[str]) -> None:
    def one(name: str) -> None:
        graph = api.graph_of(spec(name))
        for precision in PRECISIONS:
            rows = taken_by(
                graph, format_asked(api.plan_of(plan_text(precision), graph, api.cluster_of(CLUSTER)).memory), "cuda:0"
            )
            figures.add(
                piece="operators", task=name, precision=precision, kinds=len(rows),
                seconds=sum(row["count"] * row["seconds"] for row in rows),
                launching=sum(row["count"] * row["launching"] for row in rows),
                beyond=max(row["beyond"] for row in rows),
            )  # fmt: skip
            if figures.out:
                where = figures.out.with_suffix(f".{name}.{precision}.json")
                where.write_text(json.dumps(rows, indent=0) + "\n")
            torch.cuda.empty_cache()

    for name in figures.each("operators", names):
        guarded(figures, "operators", name, partial(one, name))


def told(figures: Figures) -> None:
    """What it comes to."""
    for piece in ("speed", "compiled"):
        if rows := figures.of(piece):
            over = [f"{r['task']} {r['precision']} {r['ratio']:.3f}" for r in rows if r["ratio"] > BAR]
            print(f"{piece}: {len(rows) - len(over)} of {len(rows)} within {BAR} of plain PyTorch; over it: {over}")
    if off := [abs(r["off"]) for r in figures.of("speed")]:
        print(f"step times: mean error {mean(off):.1%} (bar 5 %), at most {max(off):.1%}")
    for name, bar in (("allocated_off", 2), ("reserved_off", 4)):
        if off := [abs(r[name]) for r in figures.of("memory")]:
            print(f"{name}: mean {mean(off):.1%}, at most {max(off):.1%} (bar {bar} %)")
    if rows := [row for row in figures.of("codecs") if not row["staged"]]:
        parts = [(f"{r['task']} {way} {r[way + '_part']:.0%}", r[way + "_part"]) for r in rows for way in WAYS]
        under = [text for text, part in parts if part < PART]
        print(f"codecs: {len(parts) - len(under)} of {len(parts)} at {PART:.0%} of a copy's GB/s; under it: {under}")
        print(f"by way of the host: {[row['task'] for row in figures.of('codecs') if row['staged']]}")
    if figures.left:
        print(f"left out for want of time: {', '.join(figures.left)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--limit", type=float, default=560.0)
    parser.add_argument("--lock", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    pieces = [piece for piece in given.only.split(",") if piece] or list(PIECES)
    if wrong := [piece for piece in pieces if piece not in PIECES]:
        print(f"--only is {given.only!r}; {wrong[0]!r} is none of {', '.join(PIECES)}")
        sys.exit(2)
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no CUDA device on this machine, so there is nothing to measure")
        sys.exit(2 if given.only else 0)
    torch.set_num_threads(1)
    wanted = given.tasks.split(",") if given.tasks else ()
    figures = Figures(torch.cuda.get_device_name(0), time.monotonic() + given.limit, given.out, given.lock)
    for piece in pieces:
        if piece == "nccl":
            guarded(figures, piece, "one rank", lambda: nccl(figures))
        elif piece == "codecs":
            codecs(figures, wanted or SPECS)
        elif piece == "memory":
            memory(figures, wanted or FILLED)
        elif piece == "operators":
            operators(figures, wanted or FILLED)
        else:
            speed(figures, wanted or (TIMED if piece == "speed" else COMPILED), given.steps, given.repeat, piece)
    told(figures)


if __name__ == "__main__":
    main()
