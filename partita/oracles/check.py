"""Whether a plan's training is what its semantic class promises, tested in one process against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import psutil
import torch

from partita.cluster.cluster import Cluster
from partita.errors import TaskError
from partita.graph.graph import Graph
from partita.graph.tensor import ITEMSIZE
from partita.oracles.mean import divides, hooks_on, unlike_its_parts, unlike_its_shares
from partita.oracles.trial import Trial
from partita.oracles.undetermined import undetermined
from partita.plan.memory import Precision
from partita.plan.plan import Plan
from partita.program.ledger import Merge
from partita.program.program import Program
from partita.runs.heap import limit
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from partita.telling import Tell, quiet
from partita.tracing.capture import capture
from partita.tracing.kept import loss_in
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

    def outcome(precision: str) -> Outcome:
        graph = capture(task, precision=precision)
        work = Workload(task, graph, seed, precision, keyed=True)
        return compared(Trial(work, planned(graph), cluster, steps, order), tell)

    with loss_in(task, "fp64"):
        exact = outcome("fp64")
        gap = max(largest(exact.gaps), exact.before_end())
    with loss_in(task, "fp32"):
        rough = outcome("fp32")
        control = rough.control()
    near = gap <= rough.tolerance
    with loss_in(task, "fp64"):
        because = rough.unlike_its_parts() if near else exact.because()
    return {
        "equal": near and not because,
        "semantics": rough.trial.program.semantics,
        "max_difference": gap,
        "tolerance": rough.tolerance,
        "against": rough.against,
        "fp32_difference": largest(rough.gaps),
        "control_difference": control,
        "because": because,
    }


def compared(trial: Trial, tell: Tell) -> Outcome:
    """Both trainings of a trial, made and compared."""
    parts, program, precision = trial.legs, trial.program, trial.work.precision
    tell(f"training {trial.steps} steps of {trial.plan.name} in {precision}")
    states = trial.trained()
    tell(f"training the same serially in {precision}")
    ledger = ledger_of(states)
    straight = trial.serially(parts, ledger, whole=trial.whole or bool(ledger))[0]
    return Outcome(trial, ledger, straight, gaps_of(gathered(program, states), straight))


@dataclass(frozen=True)
class Outcome:
    """A trial that was made: the servers' `ledger`, the weights to which serial training goes `straight`, and the
    `gaps` to which the plan's are apart from them."""

    trial: Trial
    ledger: tuple[Merge, ...]
    straight: Weights
    gaps: Weights

    @property
    def tolerance(self) -> float:
        """How far weights may be apart: a rounding error where short gradients are summed in any order."""
        short, sums = self.trial.short, next((bucket.sums for bucket in self.trial.program.trained), "")
        return ROUNDING[short] if short and not sums else TOLERANCE

    @property
    def how(self) -> str:
        """How the plan is compared, a key of AGAINST."""
        plan, program = self.trial.plan, self.trial.program
        coded = program.codings or any(sync.wire.codecs for sync in plan.sync)
        rounded = program.semantics == "lossy" and plan.memory.precision is Precision.TF32 and not coded
        if self.ledger:
            return "replayed"
        return "halved" if self.trial.short else "rounded" if rounded else program.semantics

    @property
    def against(self) -> str:
        """What the weights were compared with."""
        program, how = self.trial.program, self.how
        if how == "consensus" and any(sync.frequency.period == 0 for sync in self.trial.plan.sync):
            how = "once"
        said = AGAINST[how].format(lag=program.slots - 1, steps=program.steps)
        return said if self.trial.whole else f"{said}, fed the same sub-batches, each worker's with buffers of its own"

    def again(self, **more: Any) -> Weights:
        """Where the same serial training ends once more."""
        trial = self.trial
        return detached(trial.serially(trial.legs, self.ledger, whole=trial.whole or bool(self.ledger), **more))

    def before_end(self) -> float:
        """The largest difference of any replica before the averaging at the end of the run; 0 without one."""
        trial = self.trial
        if trial.legs[-1].program.steps or self.ledger:
            return 0.0
        states, serial = trial.trained(settle=False), trial.serially(trial.legs[:-1], whole=False)
        return max(difference(states[rank].leaves, weights) for rank, weights in serial.items())

    def control(self) -> float:
        """How far apart the serial training ends where it is fed in two halves, if it may be fed at once."""
        trial = self.trial
        halved = detached(trial.serially(trial.legs, self.ledger, whole=False)) if trial.whole else self.straight
        return difference(halved, self.straight)

    def unlike_its_parts(self) -> str:
        """Why weights are not those of whole minibatches though they are those of their parts; else "".

        What is fed the same sub-batches takes the same steps from them, whatever its loss does across samples."""
        trial = self.trial
        across = not trial.whole and self.how in WHOLE and divides(trial.program)
        return unlike_its_parts(trial.work.task, trial.work.graph.batch, trial.work.seed) if across else ""

    def because(self) -> str:
        """Why weights are not equal, if it is known."""
        trial, task, seed = self.trial, self.trial.work.task, self.trial.work.seed
        if why := changing(task):
            return why
        if follows_python_random(task):
            return (
                "the step follows Python's or NumPy's random numbers, and every worker draws its own; draw with torch, "
                "as tensors, of which `verify` gives every sample the same"
            )
        if (apart := difference(self.again(), self.straight)) > TOLERANCE:
            return (
                f"the same serial training, made twice, ends {apart:.3g} apart: samples or first weights come from a "
                "generator that --seed does not seed; draw from torch's, Python's or NumPy's own, not from a new one"
            )
        if why := unlike_its_shares(task, trial.program, trial.steps, seed):
            return why
        if trial.whole and (why := unlike_its_shares(task, trial.program, trial.steps, seed, drawing=True)):
            return why
        if divides(trial.program) and (why := hooks_on(task)):
            return why
        if any(bucket.master for bucket in trial.program.buckets):
            return ""
        nudged, batch = gaps_of(self.again(nudged=True), self.straight), trial.program.batch
        return undetermined(
            task, self.gaps, nudged, TOLERANCE, batch=batch, steps=trial.steps, seed=seed, dims=trial.dims
        )


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
