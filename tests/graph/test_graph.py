"""What a graph says of itself, of statistics, of signatures and of gradients that are products, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.graph.batch import substitute
from partita.graph.graph import Buffer, Graph, Optimizer, Parameter
from partita.graph.operator import Argument, Operator, Phase, Ref, Symbol
from partita.graph.products import products, samples_of
from partita.graph.recompute import BATCH_NORM
from partita.graph.signature import signature
from partita.graph.statistics import Statistic, fewest_samples, sample_free, statistics_of
from partita.graph.tensor import Affine, Tensor
from tests.small import two_layers

CHANNELS = Tensor((4,), "float32")
COUNT = Tensor((), "int64")


def test_a_graph_counts_what_is_trained_and_what_is_not() -> None:
    frozen = Parameter("frozen", Tensor((5,), "float64"), trainable=False)
    short = Parameter("short", Tensor((3,), "bfloat16"))
    teacher = Buffer("teacher", Tensor((7,), "float32"))  # frozen, and moved by the step itself
    graph = replace(two_layers(), parameters=(*two_layers().parameters, frozen, short), buffers=(teacher,))
    assert (graph.trained_bytes, graph.frozen_bytes) == (4 * 36 + 2 * 3, 40 + 28)
    assert (graph.trained_elements, graph.parameter_elements) == (39, 44)
    assert graph.item == 150 / 39
    adam = replace(graph, optimizer=Optimizer("Adam", (("exp_avg", 1.0, "float32"), ("row", 0.5, "float32"))))
    assert adam.state_factor == pytest.approx(6 / (150 / 39))
    assert (replace(graph, global_batch=0).minibatch, replace(graph, global_batch=96).minibatch) == (8, 96)


def test_only_sgd_without_decay_is_linear() -> None:
    assert Optimizer("SGD", momentum=0.9).linear
    assert not Optimizer("SGD", decays=True).linear
    assert not Optimizer("Adam").linear


def test_what_outlives_a_step_and_which_gradients_are_shared() -> None:
    graph = replace(two_layers(), weight=Ref("y"), mutations=(("buffer", Ref("h")),))
    assert [ref.name for ref in graph.results()] == ["loss", "y", "da", "db", "h"]
    assert graph.shared_gradients == frozenset()
    later = Operator("norm", "aten.sum.default", (Ref("da"),), (), (Tensor((), "float32"),), phase=Phase.BACKWARD)
    assert replace(graph, operators=(*graph.operators, later)).shared_gradients == {Ref("da")}
    assert replace(graph, gradients=(*graph.gradients, ("c", Ref("db")))).shared_gradients == {Ref("db")}


def test_products_over_samples_are_found_in_the_order_in_which_they_are_done() -> None:
    found = products(two_layers())
    assert [(name, p.left.name, p.right.name, p.rows, p.columns) for name, p in found.items()] == [
        ("b", "ht", "dy", 6, 2), ("a", "xt", "dh", 4, 6),
    ]  # fmt: skip
    assert samples_of(two_layers(), found["a"], 24) == 24


def test_what_is_no_product_over_samples_is_none() -> None:
    """One that something else reads as well, and one over another dimension than the samples'."""
    graph = two_layers()
    later = Operator("norm", "aten.sum.default", (Ref("da"),), (), (Tensor((), "float32"),), phase=Phase.BACKWARD)
    assert list(products(replace(graph, operators=(*graph.operators, later)))) == ["b"]
    fixed = {"ht": Tensor((6, 3), "float32"), "dy": Tensor((3, 2), "float32")}
    operators = tuple(replace(o, outputs=(fixed[o.name],)) if o.name in fixed else o for o in graph.operators)
    assert list(products(replace(graph, operators=operators))) == ["a"]


def test_a_signature_tells_shapes_strides_literals_and_tf32() -> None:
    graph = substitute(two_layers(), 8)
    product, total = graph.operators[graph.index["db"]], graph.operators[graph.index["loss"]]
    assert signature(product, graph) == "aten.mm.default(float32[6x8/1x6], float32[8x2])"
    tensors = replace(graph, precision="tf32")
    assert signature(product, tensors) == "aten.mm.default(float32[6x8/1x6], float32[8x2]) tf32"
    assert signature(total, tensors) == signature(total, graph) == "aten.sum.default(float32[8x2])"
    told = (("dtype", Symbol("dtype", "int64")), ("device", Symbol("device", "")))
    made = Operator("z", "aten.full.default", ((2, 3), 1.0), told, (COUNT,))
    assert signature(made, graph) == "aten.full.default([2,3], 1.0, dtype=int64, device=device)"


def op(name: str, target: str, *arguments: Argument, made: Tensor = CHANNELS) -> Operator:
    """Texts that are names of values are read."""
    return Operator(name, target, tuple(Ref(a) if isinstance(a, str) else a for a in arguments), (), (made,))


def normed(rows: Tensor, *, trains: bool = True, prefix: str = "norm.", changes: tuple[str, ...] = ()) -> Graph:
    """A batch norm of samples, counters of its own and of steps, and buffers that follow from samples or draws."""
    mean, variance, counter = (f"{prefix}{name}" for name in ("running_mean", "running_var", "num_batches_tracked"))
    operators = (
        op("seen", BATCH_NORM, "input.0", None, None, mean, variance, trains, 0.3, 1e-5, made=rows),
        op("newer", "aten.add.Tensor", mean, "seen"), op("counted", "aten.add.Tensor", counter, 1, made=COUNT),
        op("stepped", "aten.add.Tensor", "steps", 1, made=COUNT), op("turned", "aten.neg.default", "power"),
        op("drawn", "partita.random", 0, "aten.rand_like.default", "power"),
        op("late", "aten.neg.default", "latest"), op("latest'", "aten.neg.default", "newer"),
        op("loss", "aten.sum.default", "seen", made=Tensor((), "float32")),
    )  # fmt: skip
    made = {
        mean: "newer", variance: "newer", counter: "counted", "steps": "stepped", "power": "turned", "chance": "drawn",
        "later": "late", "latest": "latest'",
    }  # fmt: skip
    names = [*made]
    return replace(
        two_layers(), operators=operators, gradients=(), inputs=(("input.0", rows),),
        buffers=tuple(Buffer(name, COUNT if name in (counter, "steps") else CHANNELS) for name in names),
        mutations=tuple((name, Ref(made[name])) for name in changes or names),
    )  # fmt: skip


ROWS, IMAGES = Tensor((Affine(1), 4), "float32"), Tensor((Affine(1), 4, 3, 3), "float32")


def test_statistics_are_told_with_what_they_are_made_of() -> None:
    (found,) = statistics_of(normed(IMAGES))
    assert found == Statistic("norm.running_mean", "norm.running_var", "norm.num_batches_tracked", 0.3, Ref("input.0"))
    assert found.samples(normed(IMAGES), 5) == 45
    (uncounted,) = statistics_of(normed(ROWS, changes=("norm.running_mean", "norm.running_var")))
    assert uncounted.buffers == ("norm.running_mean", "norm.running_var")
    (plain,) = statistics_of(normed(ROWS, prefix=""))
    assert plain.buffers == ("running_mean", "running_var", "num_batches_tracked")
    assert not [*statistics_of(normed(ROWS, changes=("steps",)))]


def test_one_value_of_a_channel_is_too_few_to_normalise() -> None:
    assert [fewest_samples(graph) for graph in (normed(ROWS), normed(IMAGES), normed(ROWS, trains=False))] == [2, 1, 1]


def test_buffers_that_follow_from_no_sample_are_known() -> None:
    """A counter of steps and a vector of its own; not what is drawn, nor what reads what samples left, the step after
    next; nor what a batch norm counts."""
    assert sample_free(normed(ROWS)) == ("steps", "power")
