"""LB-01: sixteen times the minibatch at sixteen times the rate, with a warm-up and without, on real digits."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import pytest
import torch
from torch.nn import functional

from partita.plan.plan import Update
from partita.runtime.rules import step_at_rate
from partita.zoo.data import digits

SEEDS, EPOCHS, WIDTHS = 40, 20, (64, 64, 64, 64, 64, 10)
RATE, MOMENTUM, BATCH, TIMES, WARM = 0.012, 0.9, 8, 16, 5
DECAY = 14  # epochs, 70 % of all, after which the rate is a tenth


def accuracies(batch: int, update: Update) -> torch.Tensor:
    """Held-out accuracy of each seed's perceptron, shape [SEEDS]: He's first weights and an order of samples of its
    own. All seeds are trained at once, as slices of the same tensors, which do not mix."""
    (images, labels), (unseen, wanted) = (samples.columns for samples in digits())
    images, unseen = images.flatten(1), unseen.flatten(1)
    draws = [torch.Generator().manual_seed(seed) for seed in range(SEEDS)]
    weights = [
        torch.stack([torch.randn(a, b, generator=draw) * sqrt(2 / a) for draw in draws]).requires_grad_()
        for a, b in pairwise(WIDTHS)
    ]
    biases = [torch.zeros(SEEDS, 1, b, requires_grad=True) for b in WIDTHS[1:]]

    def scores(values: torch.Tensor) -> torch.Tensor:
        for layer, (w, b) in enumerate(zip(weights, biases, strict=True)):
            values = torch.baddbmm(b, values.relu() if layer else values, w)
        return values

    optimizer = torch.optim.SGD([*weights, *biases], lr=RATE, momentum=MOMENTUM)
    for epoch in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = RATE * (0.1 if epoch >= DECAY else 1)  # the task's schedule
        orders = torch.stack([torch.randperm(len(images), generator=draw) for draw in draws])
        for picked in orders[:, : len(images) // batch * batch].split(batch, dim=1):
            optimizer.zero_grad()
            found = scores(images[picked]).flatten(0, 1)
            (functional.cross_entropy(found, labels[picked].flatten(), reduction="sum") / batch).backward()
            step_at_rate(optimizer, update)
    with torch.no_grad():
        return (scores(unseen.expand(SEEDS, -1, -1)).argmax(-1) == wanted).float().mean(1)


@pytest.mark.slow
def test_a_large_minibatch_needs_its_warm_up() -> None:
    """Within 5 points of the small minibatch's mean accuracy: nine of ten seeds at least with the warm-up, seven of
    ten at most without it."""
    small = accuracies(BATCH, Update())
    least = small.mean() - 0.05
    assert small.min() > 0.9
    steps = WARM * (len(digits()[0]) // (BATCH * TIMES))
    warmed = accuracies(BATCH * TIMES, Update(scale=TIMES, warmup=steps))
    at_once = accuracies(BATCH * TIMES, Update(scale=TIMES))
    assert (warmed >= least).sum() >= 0.9 * SEEDS
    assert (at_once >= least).sum() <= 0.7 * SEEDS
