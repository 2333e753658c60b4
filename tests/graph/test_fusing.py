"""Which operators a compiler makes one kernel of, what of them stays on the chip, and what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cluster.cluster import Device
from partita.cost.datasheet import LAUNCH, datasheet_costs, part_seconds
from partita.cost.demand import demand_of
from partita.cost.kernels import KERNEL
from partita.graph.flops import bytes_moved
from partita.graph.fusing import Part, parts_of
from partita.graph.graph import Graph
from partita.graph.operator import Operator, Phase, Ref
from partita.graph.tensor import Affine, Tensor
from partita.lowering.lower import last_program
from partita.recipes.catalogue import read_call
from tests.captures import capture
from tests.cost.test_datasheet import CARD, carded
from tests.small import perceptron, two_layers

EACH = Affine(1)
ROW, NARROW, NUMBER = Tensor((EACH, 4), "float32"), Tensor((EACH, 1), "float32"), Tensor((), "float32")
SQUARE, WIDE = Tensor((4, 4), "float32"), Tensor((4,), "float32")


def step(*forward: Operator, loss: str) -> Graph:
    """A forward pass on rows of four numbers, with a square weight."""
    return replace(two_layers(), operators=forward, loss=Ref(loss), gradients=(), inputs=(("input.0", ROW),),
                   parameters=(replace(two_layers().parameters[0], tensor=SQUARE),))  # fmt: skip


def op(name: str, kind: str, *arguments: object, made: Tensor = ROW) -> Operator:
    return Operator(name, f"aten.{kind}", tuple(Ref(a) if isinstance(a, str) else a for a in arguments), (), (made,))  # type: ignore[misc]


def norm() -> Graph:
    """x = input @ a; y = x * rsqrt(mean(x^2)); y @ a: a norm by hand between two products."""
    return step(
        op("x", "mm.default", "input.0", "a"), op("square", "pow.Tensor_Scalar", "x", 2),
        op("mean", "mean.dim", "square", (-1,), True, made=NARROW), op("root", "rsqrt.default", "mean", made=NARROW),
        op("y", "mul.Tensor", "x", "root"), op("z", "mm.default", "y", "a"),
        op("loss", "sum.default", "z", made=NUMBER), loss="loss",
    )  # fmt: skip


def test_a_norm_is_one_kernel_that_reads_once_and_writes_once() -> None:
    graph = norm()
    parts = dict(zip(graph.index, parts_of(graph), strict=True))
    assert (parts["x"], parts["z"]) == (None, None)
    assert parts["square"] == Part((True,), (False,), begins=True)
    assert parts["mean"] == Part((False,), (False,), begins=False)
    assert parts["root"] == Part((False,), (False,), begins=False)
    assert parts["y"] == Part((False, False), (True,), begins=False)
    moved = sum(bytes_moved(o, graph, 8, parts[o.name]) for o in graph.operators[1:5])
    assert moved == 2 * ROW.size(8)
    assert sum(bytes_moved(o, graph, 8) for o in graph.operators[1:5]) > 3 * moved / 2


def test_what_a_product_parts_is_no_kernel() -> None:
    """A residual is read again after the product that its norm feeds, so it is written; the sum is another kernel."""
    graph = step(
        op("x", "relu.default", "input.0"), op("y", "sigmoid.default", "x"), op("z", "mm.default", "y", "a"),
        op("sum", "add.Tensor", "x", "z"), op("w", "mm.default", "sum", "a"),
        op("loss", "sum.default", "w", made=NUMBER), loss="loss",
    )  # fmt: skip
    parts = dict(zip(graph.index, parts_of(graph), strict=True))
    assert parts["x"] == Part((True,), (True,), begins=True)
    assert parts["y"] == Part((False,), (True,), begins=False)
    assert parts["sum"] == Part((True, True), (True,), begins=True)


def test_views_hide_nothing() -> None:
    """A value that is read through a view by a product is written; by a loop of the same turn it stays."""
    flat = Tensor((Affine(4),), "float32")
    graph = step(
        op("x", "relu.default", "input.0"), op("flat", "view.default", "x", (Affine(4),), made=flat),
        op("y", "sigmoid.default", "flat", made=flat), op("rows", "view.default", "y", (EACH, 4)),
        op("z", "mm.default", "rows", "a"), op("loss", "sum.default", "z", made=NUMBER), loss="loss",
    )  # fmt: skip
    parts = dict(zip(graph.index, parts_of(graph), strict=True))
    assert parts["x"] == Part((True,), (False,), begins=True)
    assert parts["y"] == Part((False,), (True,), begins=False)
    assert parts["flat"] is None


def test_a_sum_over_rows_is_a_kernel_of_its_own_unless_it_alone_reads() -> None:
    def rows(*more: Operator, loss: str) -> dict[str, Part | None]:
        first = op("x", "relu.default", "input.0"), op("sum", "sum.dim_IntList", "x", (0,), made=WIDE)
        graph = step(*first, *more, loss=loss)
        return dict(zip(graph.index, parts_of(graph), strict=True))

    alone = rows(loss="sum")
    assert alone["sum"] == Part((False,), (True,), begins=False)
    shared = rows(op("y", "neg.default", "x"), loss="y")
    assert shared["sum"] == Part((True,), (False,), begins=True)
    assert shared["x"] == Part((True,), (True,), begins=True)


def test_what_outlives_a_pass_is_written() -> None:
    """What another stage takes, a result, what backward reads, and what a draw makes: none stays on the chip."""
    first = op("x", "relu.default", "input.0"), op("sum", "sum.dim_IntList", "x", (0,), made=WIDE)
    own, taken, result = Part((False,), (True,), begins=False), Part((True,), (True,)), Part((True,), (True,))
    alone = step(*first, loss="sum")
    sent = replace(alone, sends=(("x>1", Ref("x")),))
    kept = replace(alone, mutations=(("buffer", Ref("x")),))
    assert parts_of(alone)[1] == own
    for graph in (sent, kept):
        assert parts_of(graph) == (result, taken)
    late = replace(op("y", "neg.default", "x"), phase=Phase.BACKWARD)
    graph = step(op("x", "relu.default", "input.0"), late, loss="y")
    assert parts_of(graph) == (Part((True,), (True,)), Part((True,), (True,)))
    drawn = op("d", "relu.default", "x"), replace(op("y", "x.y", "d", 0.5, 0), target="partita.dropout")
    parts = parts_of(step(op("x", "relu.default", "input.0"), *drawn, loss="y"))
    assert (parts[1], parts[2]) == (Part((False,), (True,), begins=False), None)


@pytest.mark.parametrize(("kind", "dims"), [("sum.dim_IntList", ((0, 1),)), ("sum.default", ()), ("amax.default", ())])
def test_a_sum_over_all_is_over_rows_too(kind: str, dims: tuple[object, ...]) -> None:
    first = op("x", "relu.default", "input.0"), op("sum", kind, "x", *dims, made=NUMBER)
    parts = parts_of(step(*first, op("y", "neg.default", "x"), loss="y"))
    assert parts == (Part((True,), (True,)), Part((True,), (False,)), Part((False,), (True,), begins=False))


def test_what_a_kernel_costs_is_its_bytes_and_one_beginning() -> None:
    graph = norm()
    costs = datasheet_costs(graph, carded(1), (8,), compiled=True)
    assert costs.launching is not None
    plain, fused = costs.prices(8), costs.prices(8, compiled=True)
    assert fused["x"] == plain["x"]
    assert fused["mean"] < plain["mean"]
    inner = [fused[name] for name in ("square", "mean", "root", "y")]
    assert KERNEL < sum(inner) < KERNEL + 1e-9
    launches = costs.launching.prices(8, compiled=True)
    assert [launches[name] for name in ("square", "mean", "root", "y")] == [LAUNCH, 0.0, 0.0, 0.0]
    assert part_seconds(CARD, graph.operators[1], graph, 8, Part((True,), (True,))) > part_seconds(
        CARD, graph.operators[1], graph, 8, Part((True,), (False,))
    )


def test_measured_costs_of_compiled_segments_are_those_of_operators() -> None:
    graph = norm()
    costs = datasheet_costs(graph, carded(1), (8,))
    assert costs.prices(8, compiled=True) == costs.prices(8)


@pytest.mark.parametrize("more", ["", "precision=bf16"])
def test_a_compiled_step_takes_less(more: str) -> None:
    graph, machine = capture(perceptron()), carded(1)
    batches = (graph.global_batch,)
    costs = datasheet_costs(graph, machine, batches, precisions=("bfloat16",), compiled=True)

    def seconds(knobs: str) -> float:
        plan = read_call(f"single({knobs})" if knobs else "single").plan(graph, machine, costs)
        program = last_program(graph, plan, machine)
        return sum(demand_of(costs, program, i.act).core for i in program.roles[0].on("compute"))

    assert seconds(",".join(filter(None, (more, "segments=compiled")))) < seconds(more)


def test_a_machine_without_cards_prices_operators() -> None:
    graph, machine = norm(), carded(1, Device("plain"))
    costs = datasheet_costs(graph, machine, (8,), compiled=True)
    assert costs.prices(8, compiled=True) == costs.prices(8)
