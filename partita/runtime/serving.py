"""The acts of a server that does not wait for all workers: it applies contributions as they arrive, and counts
versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from partita.kernels.shared import add_racing, key_of
from partita.program.instruction import Apply, Mark, Snapshot
from partita.program.space import Space
from partita.runtime.finite import check_gradients
from partita.runtime.rank import Rank
from partita.runtime.state import shaped

Correct = Callable[[Rank, Apply, torch.Tensor, dict[str, float]], None]


def apply(rank: Rank, act: Apply, name: str, round: int) -> None:
    """Apply the contribution in the inbox of `source` to a bucket, with its corrections; the ledger notes which
    version it was computed on."""
    state = rank.state
    own = act.source == rank.rank
    inbox = state.kept[Space.DELTA, act.bucket] if own else state.inbox_of(act.bucket, act.source)
    if own and not act.delta and not inbox.sum().isfinite():
        check_gradients(rank, act.bucket, shaped(inbox, state.views[act.bucket]), rank.step(round, 0))
    complete = state.ledger.merge(act, round)
    for correction in act.corrections:
        CORRECTIONS[correction.name](rank, act, inbox, dict(correction.settings))
    if act.into is Space.SHARED:
        add_racing(state.flat(act.into, act.bucket, 0), inbox, key_of(act.bucket, act.source, round))
    elif act.delta:
        weights = state.flat(act.into, act.bucket, 0)
        if act.keep != 1.0:
            weights.mul_(act.keep)
        weights.add_(inbox, alpha=act.scale)
    elif act.drop:
        taken = state.accepted.get(act.bucket, (round, 0.0))
        before = taken[1] if taken[0] == round else 0.0
        enter(state.gradient[act.bucket][0], inbox, before, act.share)
        state.accepted[act.bucket] = round, before + act.share
    elif act.need > 1:
        total = state.gradient[act.bucket][0].add_(inbox)
        if complete:
            step(rank, act, total)
            total.fill_(-0.0)  # see `neutral`
    else:
        step(rank, act, inbox)


def enter(mean: torch.Tensor, contribution: torch.Tensor, before: float, share: float) -> None:
    """Make a `mean` over samples that weigh `before` one over `share` more, of which the contribution is a sum."""
    if before:
        mean.mul_(before / (before + share)).add_(contribution, alpha=1 / (before + share))
    else:
        torch.div(contribution, share, out=mean)


def step(rank: Rank, act: Apply, gradient: torch.Tensor) -> None:
    """Step the bucket's optimizer at a contribution's own share of the rate, or at the mean one of several; a step of
    its schedule and of the plan's warm-up is a minibatch's worth of contributions."""
    state, ledger = rank.state, rank.state.ledger
    before, after = ledger.stepped.get(act.bucket, 0), ledger.minibatches[act.bucket]
    share = act.steps * act.share if act.need == 1 else (after - before) / act.among
    state.step(act.bucket, shaped(gradient, state.stepped(act.bucket)), rank.program, before // act.among, share)
    ledger.stepped[act.bucket] = after
    passed = after // act.among - before // act.among
    for _ in range(passed if act.bucket in state.schedule else 0):
        state.schedule[act.bucket].step()


def compensate(rank: Rank, act: Apply, gradient: torch.Tensor, settings: dict[str, float]) -> None:
    """g + lambda g g (w - w_read), with the mean gradient g of the worker's samples; with a `decay` m, lambda over the
    root of the running mean of g g (DC-ASGD, Zheng et al., ICML 2017)."""
    state = rank.state
    own = act.source == rank.rank
    read = state.parameter[act.bucket] if own else state.outbox[act.bucket, act.source]
    moved = state.flat(act.into, act.bucket, 0) - read
    moved.mul_(gradient).mul_(gradient)
    if decay := settings.get("decay", 0.0):
        mean = state.squares.setdefault(act.bucket, torch.zeros_like(gradient))
        mean.mul_(decay).addcmul_(gradient, gradient, value=(1 - decay) / act.share**2)
        moved.div_(mean.add(1e-7).sqrt_())
    gradient.add_(moved, alpha=settings["strength"] / act.share)


def revise(rank: Rank, act: Apply, gradient: torch.Tensor, settings: dict[str, float]) -> None:
    """Replace the average of what the workers of a clock have contributed by the one that includes this gradient, so
    that the d-th counts 1 / d when it arrives, and all count the same in the end (DynSGD, Jiang et al., SIGMOD
    2017)."""
    state = rank.state
    clock = state.ledger.turns[act.bucket, act.source] - 1
    count, mean = state.clocks.pop((act.bucket, clock), (0, None))
    gradient.div_(act.share)
    if mean is not None:
        gradient.sub_(mean).div_(count + 1)
    if count + 1 < act.among:
        state.clocks[act.bucket, clock] = count + 1, gradient.clone() if mean is None else mean.add_(gradient)


CORRECTIONS: Final[dict[str, Correct]] = {"delay": compensate, "staleness": revise}


def snapshot(rank: Rank, act: Snapshot, name: str, round: int) -> None:
    """Copy the version that peer `to` will read."""
    state, own = rank.state, act.to == rank.rank
    if own and act.into is Space.INBOX:
        taken = state.inbox_of(act.bucket, act.to)
    else:
        taken = state.flat(act.into, act.bucket, 0) if own else state.outbox[act.bucket, act.to]
    taken.copy_(state.flat(act.space, act.bucket, 0))
    state.ledger.give(act.bucket, act.to)


def mark(rank: Rank, act: Mark, name: str, round: int) -> None:
    """Nothing happens; that the instance is done is what others wait for."""
