"""Every exact method on every family of models: in fp64, the weights of one process; or one sentence why not.

    rows      pipelines of 2, 3, 4 stages in 1, 4, 8 microbatches; divided state on 2, 3, 4 ranks in 1, 2; both at once
    twice     keeping what forward made, and computing all of it again
    columns   transformers, mixtures of experts, recurrent and convolutional networks; batch statistics in sub-batches

A test is one model, one recipe and one number of ranks, of a pipeline also of microbatches; its cells are the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import pytest
import torch

from partita.errors import LoweringError, PlanError
from partita.graph.graph import Graph
from partita.oracles.check import TOLERANCE, difference, gathered
from partita.oracles.reference import shares_of
from partita.oracles.trial import serial_training
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.leg import Leg, legs
from partita.runtime.workload import Workload
from partita.task import Task
from partita.tracing.draws import sample_dims
from tests.captures import capture
from tests.oracles.matrix_models import MODELS, steps_of, task_of
from tests.small import cluster_of

PIPELINES = ("gpipe", "torchgpipe", "one_f_one_b", "interleaved", "zero_bubble")
STATES = ("zero1", "zero2", "zero3")
TOO_MANY = r"(\d+) stages were asked of a model that can be cut into (\d+) at most"
TOO_FEW = r"a minibatch of (\d+) does not divide into (\d+) replicas x (\d+) microbatches"

pytestmark = pytest.mark.slow


@lru_cache(maxsize=1)
def model(name: str) -> tuple[Task, Graph]:
    task = task_of(name)
    return task, capture(task)


@lru_cache(maxsize=8)
def serial(name: str, parts: tuple[Leg, ...], fed: object) -> dict[str, torch.Tensor]:
    """The weights that one process ends with; of all plans that feed a minibatch alike."""
    task, graph = model(name)
    found = serial_training(
        task, cluster_of(1), parts, seed=0, precision="fp64", dims=sample_dims(graph), whole=not graph.mutations
    )
    return {name: weight.detach() for name, weight in found[0].items()}


class Same(tuple[Leg, ...]):
    """Legs that are the same key of a cache as any others."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same)

    def __hash__(self) -> int:
        return 0


def gap(name: str, text: str, size: int) -> float:
    """How far a plan's weights end from one process's. Raises PlanError or LoweringError where it cannot apply."""
    task, graph = model(name)
    machines = cluster_of(size)
    plan = call(text, graph, machines)
    parts = legs(graph, plan, machines, steps_of(name))
    states, _ = train_in_process(Workload(task, graph, precision="fp64", keyed=True), plan, machines, steps_of(name))
    return difference(gathered(parts[0].program, states), one_process(name, parts))


def one_process(name: str, parts: tuple[Leg, ...]) -> dict[str, torch.Tensor]:
    """The weights that one process ends with which is fed as these legs are."""
    _, graph = model(name)
    fed = frozenset((share.start, share.count) for share in shares_of(parts[0].program)) if graph.mutations else None
    return serial(name, Same(parts), fed)


def check(name: str, plans: list[str], size: int, record: Callable[[str, object], None]) -> None:
    """Every cell ends within the tolerance, or is refused for its numbers in one sentence."""
    wrong, refused, largest = [], [], 0.0
    for text in plans:
        try:
            far = gap(name, text, size)
        except (PlanError, LoweringError) as error:
            refused.append(text)
            if not rightly(str(error)):
                wrong.append((text, str(error)))
            continue
        largest = max(largest, far)
        if not far <= TOLERANCE:
            wrong.append((text, f"{far:.3g}"))
    record("equal", len(plans) - len(refused))
    record("refused", len(refused))
    record("largest", f"{largest:.1e}")
    assert not wrong


def rightly(sentence: str) -> bool:
    """Whether a refusal is one sentence, and true by the numbers in it."""
    if "\n" in sentence:
        return False
    if found := re.search(TOO_MANY, sentence):
        return int(found[1]) > int(found[2])
    found = re.search(TOO_FEW, sentence)
    return found is not None and int(found[1]) < int(found[2]) * int(found[3])


def cells(recipe: str, microbatches: tuple[int, ...], knobs: str = "") -> list[str]:
    return [
        f"{recipe}(microbatches={m},recompute={how}{knobs})" for m in microbatches for how in ("none", "full")
    ]  # fmt: skip


@pytest.mark.parametrize("m", [1, 4, 8])
@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("recipe", PIPELINES)
@pytest.mark.parametrize("name", MODELS)
def test_pipelines(name: str, recipe: str, p: int, m: int, record_property: Callable[[str, object], None]) -> None:
    """PP-01, PP-02, PP-10, PP-11, EX-07, ME-07."""
    check(name, cells(recipe, (m,), f",stages={p}"), p, record_property)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("recipe", STATES)
@pytest.mark.parametrize("name", MODELS)
def test_divided_state(name: str, recipe: str, ranks: int, record_property: Callable[[str, object], None]) -> None:
    """ME-01, ME-02, ME-03, ME-07; nine microbatches are too many for the samples."""
    check(name, [*cells(recipe, (1, 2)), f"{recipe}(microbatches=9)"], ranks, record_property)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_stages_that_divide_their_weights(
    name: str, stages: int, record_property: Callable[[str, object], None]
) -> None:
    plans = cells("one_f_one_b", (1, 4), f",stages={stages},data=2,shard=parameters")
    check(name, plans, 2 * stages, record_property)


def test_a_refusal_is_held_to_its_numbers() -> None:
    assert rightly("x: 4 stages were asked of a model that can be cut into 3 at most; ask for fewer stages")
    assert not rightly("x: 3 stages were asked of a model that can be cut into 3 at most; ask for fewer stages")
    assert not rightly("x: a minibatch of 16 does not divide into 2 replicas x 8 microbatches = 16 parts")
    assert not rightly("x asks for tiles, which this version cannot carry out yet")
