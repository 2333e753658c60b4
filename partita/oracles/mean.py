"""Whether a loss may be computed in parts: it must be the mean over its samples, or a sum with its weight.

loss of 8 samples    = the mean of those of 1 and of 7, by samples      a plan that divides a minibatch trains the same
                    /= ...                   a mean over tokens, a sum, samples that are compared with each other
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isclose
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

from partita.oracles.reference import fresh, shares_of
from partita.program.instruction import Load
from partita.program.program import Program
from partita.runtime.evaluation import loss_alone
from partita.runtime.feed import Feed, place
from partita.task import Task
from partita.tracing.draws import KeyedDraws
from partita.tracing.prepare import checked_model
from partita.tracing.promote import Promoted

SAMPLES: Final = 8
CLOSE: Final = 1e-6
CLOSER: Final = 1e-10  # where weights are known to differ: an auxiliary loss, small and nearly a mean, has gradients
MEAN: Final = (
    "the loss of {name!r} on {count} samples is {means[0]:.4g}, on {few} of them {means[1]:.4g} and on the others "
    "{means[2]:.4g}: it is not the mean over its {what} (by {off:.1g}), so a divided minibatch trains otherwise than "
    "a whole one; {mend}, mask what pads a sample to the longest of its batch, and use `single` where samples are "
    "compared with each other"
)
MENDS: Final = {  # of what the loss should be a mean: what to do; by whether it is a (sum, weight)
    False: {"what": "samples", "mend": "return (sum, weight) for a sum or a mean over tokens"},
    True: {"what": "weights", "mend": "return a sum, not a mean, with its weight"},
}
SYNCHRONISED: Final = (
    "layer {name!r} is a SyncBatchNorm, and each rank normalises by its own samples here, as BatchNorm does; give it "
    "BatchNorm to have that, or GroupNorm, or use `single`"
)
COUNTED: Final = (
    "layer {name!r} divides a row's gradient by how often the row is looked up (scale_grad_by_freq), which each part "
    "of a minibatch counts for itself; leave it out, or use `single`"
)
DRAWS: Final = (
    "the loss of {name!r} on {count} samples is {means[0]:.4g} while it draws, on {few} of them {means[1]:.4g} and on "
    "the others {means[2]:.4g}: what it draws at random does not lie along its samples (in packed sequences, say), so "
    "parts of a minibatch draw otherwise than a whole one; verify it without dropout"
)

HOOKED: Final = (
    "parameter {name!r} has a hook, which gets the gradient of a part of a minibatch where one is divided, and of the "
    "whole in one process; bound norms by Task.clip_norm, or use `single`"
)


def divides(program: Program) -> bool:
    """Whether a Program computes minibatches in parts."""
    return any(act.count < program.batch for act in program.acts(Load))


def hooks_on(task: Task) -> str:
    """A sentence if a parameter has a hook on its gradient; else ""."""
    parameters = checked_model(task).named_parameters()
    return next((HOOKED.format(name=name) for name, p in parameters if p._backward_hooks), "")


def unlike_its_parts(task: Task, batch: int, seed: int = 0) -> str:
    """A sentence if the loss of the first samples is not the mean of the losses of one and of the rest, or if the model
    asks for statistics or counts over all ranks, which nobody sums; "" if neither, or if it cannot be computed. It is
    computed in fp64 and in evaluation mode, so that neither batch statistics nor dropout count."""
    return _unlike(task, Feed(task, seed), [(0, range(min(SAMPLES, batch)), 0, 1)])


def unlike_its_shares(task: Task, program: Program, steps: int, seed: int, *, drawing: bool = False) -> str:
    """A sentence if the loss of a minibatch of the first steps is not the mean of the losses of a part that the program
    makes of it and of the rest, in evaluation mode, or, `drawing`, in training mode; else ""."""
    shares, feed = [share for share in shares_of(program) if not share.step], Feed(task, seed)
    divided = ((step, share) for step in range(steps) for share in shares)
    return _unlike(
        task,
        feed,
        ((t, feed.positions(t, 0, program.batch), share.start, share.count) for t, share in divided),
        drawing,
        CLOSER,
    )


def _unlike(
    task: Task, feed: Feed, divided: Iterable[tuple[int, Sequence[int], int, int]], drawing: bool = False,
    close: float = CLOSE,
) -> str:  # fmt: skip
    """The sentence of the first of the (step, samples, start and count of a part of them) that needs one."""
    try:
        with torch.random.fork_rng(devices=[]):
            own = fresh(task, seed=feed.seed, precision="fp64")
            own.model.train(drawing)
            for name, layer in own.model.named_modules():
                if isinstance(layer, torch.nn.SyncBatchNorm):
                    return SYNCHRONISED.format(name=name)
                if getattr(layer, "scale_grad_by_freq", False) is True:
                    return COUNTED.format(name=name)
            for step, samples, start, count in divided:
                part, rest = samples[start : start + count], [*samples[:start], *samples[start + count :]]
                if not part or not rest:
                    continue
                read = (samples, samples, part, rest)
                whole, again, one, others = (_sums(task, own.model, feed, some, step) for some in read)
                if whole != again:  # by a generator of the data set's own, or by a clock: it tells nothing
                    return ""
                pairs = zip(whole, one, others, strict=True)
                if not all(isclose(a + b, total, rel_tol=close, abs_tol=close) for total, a, b in pairs):
                    means = [values[0] / values[1] for values in (whole, one, others)]
                    off = abs(means[0] - (one[0] + others[0]) / (one[1] + others[1]))
                    few = "one" if len(part) == 1 else len(part)
                    said = {"name": task.name, "count": len(samples), "few": few, "means": means, "off": off}
                    weighted = isinstance(_loss(task, own.model, feed, part, step), tuple)
                    return (DRAWS if drawing else MEAN).format(**said, **MENDS[weighted])
    except Exception:  # a model that cannot be evaluated, or not in fp64, has been trained or refused by others
        pass
    return ""


def _sums(task: Task, model: Any, feed: Feed, samples: Sequence[int], step: int) -> tuple[float, float]:
    """(sum of losses, sum of weights) over samples of the data."""
    loss = _loss(task, model, feed, samples, step)
    if isinstance(loss, tuple):
        return float(loss[0]), float(loss[1])
    return float(loss) * len(samples), float(len(samples))


def _loss(task: Task, model: Any, feed: Feed, samples: Sequence[int], step: int) -> Any:
    """What the task's loss returns for samples of the data."""
    batch = feed.batch(samples)
    with Promoted(), KeyedDraws(feed.seed, step, samples):
        return loss_alone(task, model, tree_map(lambda leaf: place(leaf, "cpu", torch.float64), batch))
