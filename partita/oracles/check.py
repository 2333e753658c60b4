"""Whether a plan's training is what its semantic class promises, tested in one process against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final

import psutil
import torch

from partita.cluster.cluster import Cluster
from partita.errors import TaskError
from partita.graph.graph import Graph
from partita.graph.tensor import ITEMSIZE
from partita.lowering.lower import last_program
from partita.oracles.half_precision import half_precision
from partita.oracles.mean import divides, hooks_on, unlike_its_parts, unlike_its_shares
from partita.oracles.reference import fresh, reference
from partita.oracles.replay import replayed
from partita.oracles.replicas import ReplicaTraining
from partita.oracles.undetermined import undetermined
from partita.plan.memory import Precision
from partita.plan.plan import Plan
from partita.program.ledger import Merge
from partita.program.program import Program
from partita.runs.assembly import train_in_process
from partita.runs.heap import limit
from partita.runtime.leg import Leg, legs
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from partita.telling import Tell, quiet
from partita.tracing.capture import capture
from partita.tracing.draws import sample_dims
from partita.tracing.kept import loss_in, put_back
from partita.tracing.successive import changing, follows_python_random
from partita.tracing.trace import elements_of
from partita.units import show_bytes

TOLERANCE: Final = 1e-9
WHOLE: Final = ("exact", "delayed", "rounded")  # whose plans train minibatches as one process does
ROUNDING: Final = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # of a sum of gradients that are short themselves
Weights = Mapping[str, torch.Tensor]
AGAINST: Final = {
    "exact": "one-process training on the same minibatches",
    "delayed": "the serial recurrence w(t+1) = w(t) - rule(g(t - {lag}))",
    "lossy": "the serial recurrence of lag {lag} with each worker's gradient put through the same codecs",
    "rounded": "one-process training on the same minibatches, lag {lag}, both without TF32's rounding, which cards do",
    "replayed": "the serial replay of the versions that every gradient had read",
    "halved": "one-process training in half precision on the same parts of the minibatches, lag {lag}, of the captured "
    "step where the model casts by itself",
    "consensus": "serial training of every replica, agreeing every {steps} steps",
    "once": "serial training of every replica, averaged once at the end",
}


def checked(
    task: Task, planned: Callable[[Graph], Plan], cluster: Cluster, *, seed: int = 0, steps: int = 3,
    order: int = 0, tell: Tell = quiet,
) -> dict[str, Any]:  # fmt: skip
    """The result of `verify`: weights after `steps` steps under the plan, compared with the serial training that its
    class names. `planned` makes the plan of the captured step; `order` seeds the order in which lanes go on.

    fp64 decides, with a tolerance of 1e-9 relative to a tensor's largest weight. The difference in fp32 is reported
    beside that of a control, the same serial training fed in two halves, which differs only in the order of sums. In
    half precision, masters are compared in fp64; if short gradients are summed in an order that the transport chooses,
    a rounding error of the largest weight is allowed.
    """
    tell(f"capturing {task.name} in fp64")
    _check_memory(task)
    found = {}
    for precision in ("fp64", "fp32"):
        with loss_in(task, precision):
            graph = capture(task, precision=precision)
            plan = planned(graph)
            parts = legs(graph, plan, cluster, steps)
            program = last_program(graph, plan, cluster)
            tell(f"training {steps} steps of {plan.name} in {precision}")
            work = Workload(task, graph, seed, precision, keyed=True)
            train = put_back(task)(partial(train_in_process, work, plan, cluster, steps, order=order))
            states, _ = train()
            whole = not graph.mutations
            tell(f"training the same serially in {precision}")
            ledger, dims = ledger_of(states), sample_dims(graph)
            serially = put_back(task)(partial(
                serial_training, task, cluster, seed=seed, precision=precision, dims=dims, ledger=ledger, graph=graph
            ))  # fmt: skip
            plainly = partial(serially, parts, whole=whole or bool(ledger))
            serial = plainly()
            gaps = gaps_of(gathered(program, states), serial[0])
            found[precision] = largest(gaps)
            if precision == "fp64":
                explained = partial(_explained, task, program, steps, seed, gaps, serial[0], plainly, dims, whole)
            if precision == "fp64" and not parts[-1].program.steps and not ledger:
                found[precision] = max(found[precision], difference_before_end(train, serially, parts[:-1]))
            if precision == "fp32":
                found["control"] = difference(detached(serially(parts, whole=False) if whole else serial), serial[0])
    short, sums = next(((b.master and b.dtype, b.sums) for b in program.trained), ("", ""))
    near = found["fp64"] <= (tolerance := ROUNDING[short] if short and not sums else TOLERANCE)
    # What is fed the same sub-batches takes the same steps from them, whatever its loss does across samples.
    how = _compared(plan, program, bool(ledger), bool(short))
    across = not whole and how in WHOLE and divides(program)
    with loss_in(task, "fp64"):
        because = (unlike_its_parts(task, graph.batch, seed) if across else "") if near else explained()
    return {
        "equal": near and not because,
        "semantics": program.semantics,
        "max_difference": found["fp64"],
        "tolerance": tolerance,
        "against": _against(plan, program, how, whole),
        "fp32_difference": found["fp32"],
        "control_difference": found["control"],
        "because": because,
    }


def _compared(plan: Plan, program: Program, replayed: bool, short: bool) -> str:
    """How a plan is compared, a key of AGAINST."""
    coded = program.codings or any(sync.wire.codecs for sync in plan.sync)
    rounded = program.semantics == "lossy" and plan.memory.precision is Precision.TF32 and not coded
    return "replayed" if replayed else "halved" if short else "rounded" if rounded else program.semantics


def _against(plan: Plan, program: Program, how: str, whole: bool) -> str:
    """What the weights were compared with."""
    if how == "consensus" and any(sync.frequency.period == 0 for sync in plan.sync):
        how = "once"
    said = AGAINST[how].format(lag=program.slots - 1, steps=program.steps)
    return said if whole else f"{said}, fed the same sub-batches, each worker's with buffers of its own"


def _check_memory(task: Task) -> None:
    """Raises TaskError for a model whose weights and gradients, by the plan and serially, do not fit here."""
    needed, free = 4 * elements_of(task) * ITEMSIZE["float64"], min(psutil.virtual_memory().available, limit())
    if needed > free:
        raise TaskError(
            f"verifying {task.name!r} takes {show_bytes(needed)} and more, for weights and gradients in fp64 under the "
            f"plan and without it, and {show_bytes(free)} are free; verify the plan on a smaller model of the kind"
        )


def detached(states: Mapping[int, Weights]) -> Weights:
    """The weights of rank 0."""
    return {name: weight.detach() for name, weight in states[0].items()}


def _explained(
    task: Task, program: Program, steps: int, seed: int, gaps: Weights, straight: Weights,
    serially: Callable[..., Mapping[int, Weights]], dims: Mapping[int, int], whole: bool,
) -> str:  # fmt: skip
    """Why weights are not equal, if it is known: `gaps` apart from the serial training to `straight`, which `serially`
    repeats, also from weights a rounding away. `whole`: a step changes no buffers."""
    if why := changing(task):
        return why
    if follows_python_random(task):
        return (
            "the step follows Python's or NumPy's random numbers, and every worker draws its own; draw with torch, as "
            "tensors, of which `verify` gives every sample the same"
        )
    if (apart := difference(detached(serially()), straight)) > TOLERANCE:
        return (
            f"the same serial training, made twice, ends {apart:.3g} apart: samples or first weights come from a "
            "generator that --seed does not seed; draw from torch's, Python's or NumPy's own, not from a new one"
        )
    if why := unlike_its_shares(task, program, steps, seed):
        return why
    if whole and (why := unlike_its_shares(task, program, steps, seed, drawing=True)):
        return why
    if divides(program) and (why := hooks_on(task)):
        return why
    if any(bucket.master for bucket in program.buckets):
        return ""
    again = gaps_of(detached(serially(nudged=True)), straight)
    return undetermined(task, gaps, again, TOLERANCE, batch=program.batch, steps=steps, seed=seed, dims=dims)


def serial_training(
    task: Task, cluster: Cluster, parts: Sequence[Leg], *, ledger: Sequence[Merge] = (), whole: bool,
    graph: Graph | None = None, **more: Any,
) -> dict[int, dict[str, torch.Tensor]]:  # fmt: skip
    """The serial training that a plan has to equal: `reference`, with replicas that agree as the plans of the legs say;
    with a `ledger`, the replay of it; with masters, training in half precision of the model, or of the captured step
    `graph`."""
    if any(bucket.master for bucket in parts[0].program.buckets):
        return {0: half_precision(task, parts, graph=graph, **more).masters}
    if ledger:
        own = replace(fresh(task, **more), once=parts[0].program.deferred)
        return {0: replayed(own, parts, ledger, whole=whole)}
    return reference(task, parts, whole=whole, replica_training=ReplicaTraining(cluster), **more)


def difference_before_end(train: Callable[..., Any], serially: Callable[..., Any], parts: Sequence[Leg]) -> float:
    """The largest difference of any replica before the averaging at the end of the run."""
    states, _ = train(settle=False)
    serial = serially(parts, whole=False)
    return max(difference(states[rank].leaves, weights) for rank, weights in serial.items())


def ledger_of(states: Mapping[int, State]) -> tuple[Merge, ...]:
    """All servers' ledgers; a ledger that ranks share is taken once."""
    ledgers = {id(states[rank].ledger): states[rank].ledger for rank in sorted(states)}
    return tuple(merge for ledger in ledgers.values() for merge in ledger.merges)


def gathered(program: Program, states: Mapping[int, State]) -> dict[str, torch.Tensor]:
    """Every parameter and buffer of the model, each from the first worker that holds it."""
    found: dict[str, torch.Tensor] = {}
    for rank in sorted(states, reverse=True):
        if program.role_of[rank].keeps == "model":
            found |= states[rank].leaves
    return found


def difference(ours: Weights, theirs: Weights) -> float:
    """The largest of the gaps."""
    return largest(gaps_of(ours, theirs))


def largest(gaps: Weights) -> float:
    """The largest gap of any weight."""
    return max((float(gap.max()) for gap in gaps.values()), default=0.0)


def gaps_of(ours: Weights, theirs: Weights) -> dict[str, torch.Tensor]:
    """How far each weight is apart, relative to the largest weight of its tensor; infinitely if it is no number.

    A tensor that is zero up to round-off (a key's bias, whose gradient is zero in exact arithmetic) has no scale of its
    own; it is held to the largest weight of the model.
    """
    scales = {name: float(signed(w).abs().max()) for name, w in theirs.items() if w.numel()}
    model = max(scales.values(), default=1.0)
    found = {}
    for name, scale in scales.items():
        gap = (signed(ours[name]) - signed(theirs[name])).abs() / (scale if scale > TOLERANCE * model else model or 1.0)
        found[name] = torch.where(gap.isfinite(), gap, inf)
    return found


def signed(weight: torch.Tensor) -> torch.Tensor:
    """A weight's values as numbers that can be subtracted, which truth values and unsigned numbers cannot."""
    return weight.detach() if weight.dtype.is_signed else weight.detach().double()
