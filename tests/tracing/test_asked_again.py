"""A step that is asked whether it is the same again: what may differ, and that asking leaves nothing behind."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch

from partita.tracing.successive import changing, follows_python_random, unsaved
from tests.tracing.models import classify, task
from tests.tracing.test_successive import Layer


@pytest.mark.parametrize(
    "loss",
    [
        lambda m, b: classify(m, b) * float(b[0].sum()),
        lambda m, b: classify(m, b) * float(torch.rand(())),
        lambda m, b: classify(m, b) + torch.full((2,), float("nan")).nan_to_num().sum(),
    ],
    ids=["sample", "draw", "no number"],
)
def test_a_step_that_follows_samples_and_torchs_own_draws_is_held_by_checkpoints(loss: Any) -> None:
    assert not changing(task("still", Layer, loss))
    assert not unsaved(task("still", Layer, loss))


def test_asking_leaves_random_generators_as_they_were() -> None:
    before = random.getstate(), repr(numpy.random.get_state()), torch.get_rng_state()
    follows_python_random(task("moving", Layer, lambda m, b: classify(m, b) * random.random()))
    assert (random.getstate(), repr(numpy.random.get_state())) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])
