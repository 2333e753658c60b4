"""Every exact method on every family of models: in fp64, the weights of one process; or one sentence why not.

    rows      pipelines of 2, 3, 4 stages in 1, 4, 8 microbatches; divided state on 2, 3, 4 ranks in 1, 2; both at once
    twice     keeping what forward made, and computing all of it again
    columns   transformers, mixtures of experts, recurrent and convolutional networks; batch statistics in sub-batches

A test is one model, one recipe and one number of ranks, of a pipeline also of microbatches; its cells are the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import pytest
import torch

from partita.errors import LoweringError, PlanError
from partita.graph.graph import Graph
from partita.recipes.catalogue import call
from partita.runtime.assembly import train_in_process
from partita.runtime.check import TOLERANCE, difference, gathered, serial_training
from partita.runtime.leg import Leg, legs
from partita.runtime.reference import shares_of
from partita.task import Task
from partita.tracing.draws import sample_dims
from partita.zoo.convolutional import AlexNet, digits_cnn
from partita.zoo.gpt import Gpt
from partita.zoo.inception import inception3
from partita.zoo.recurrent import Gnmt
from partita.zoo.resnet import ResNet50
from partita.zoo.tasks import on_digits, on_images, on_text
from tests.captures import capture
from tests.small import cluster_of
from tests.tracing.models import TASKS, images, texts

BATCH = 16
ON_TEXT, ON_IMAGES = ("gpt2", "llama", "bert", "t5", "mixtral", "lstm"), ("vit", "unet", "convnet", "resnet")
MODELS: dict[str, Callable[[], Task]] = {
    **{name: lambda name=name: replace(TASKS[name](), data=texts(48)) for name in ON_TEXT},
    **{name: lambda name=name: replace(TASKS[name](), data=images(48)) for name in ON_IMAGES},
    "digits-cnn": lambda: on_digits("digits-cnn", digits_cnn, 0.1),
    "bytes-gpt": lambda: on_text("bytes-gpt", partial(Gpt, length=12, width=32), length=12),
    "gnmt": lambda: on_text("gnmt", partial(Gnmt, width=32), length=12),
    # of 32 pixels one is left at the end: statistics of two samples' numbers, which make a million of a rounding
    "resnet50": lambda: on_images("resnet50", partial(ResNet50, 4), 64, classes=4),
    "alexnet": lambda: on_images("alexnet", partial(AlexNet, 4), 224, classes=4),
    "inception3": lambda: on_images("inception3", partial(inception3, 4), 75, classes=4),
}
HEAVY = ("resnet50", "alexnet", "inception3")  # two steps
HALF = ("alexnet",)  # of the minibatch
PIPELINES = ("gpipe", "torchgpipe", "one_f_one_b", "interleaved", "zero_bubble")
STATES = ("zero1", "zero2", "zero3")
TOO_MANY = r"(\d+) stages were asked of a model that can be cut into (\d+) at most"
TOO_FEW = r"a minibatch of (\d+) does not divide into (\d+) replicas x (\d+) microbatches"

pytestmark = pytest.mark.slow


@lru_cache(maxsize=1)
def model(name: str) -> tuple[Task, Graph]:
    task = replace(MODELS[name](), batch_size=BATCH // 2 if name in HALF else BATCH)
    return task, capture(task, precision="fp64")


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
    machines, steps = cluster_of(size), 2 if name in HEAVY else 3
    plan = call(text, graph, machines)
    parts = legs(graph, plan, machines, steps)
    states, _ = train_in_process(task, graph, plan, machines, steps, precision="fp64", keyed=True)
    fed = frozenset((share.start, share.count) for share in shares_of(parts[0].program)) if graph.mutations else None
    return difference(gathered(parts[0].program, states), serial(name, Same(parts), fed))


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
