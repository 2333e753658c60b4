"""Lives of values, cuts and memory on graphs small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cost.lifetimes import lifetimes_of
from partita.errors import PlanError
from partita.graph.cuts import Liveness, legal_cuts, liveness
from partita.graph.graph import Buffer, Graph, Parameter
from partita.graph.homes import homes_of, stage_starts
from partita.graph.operator import Operator, Phase, Ref
from partita.graph.tensor import Affine, Tensor
from partita.zoo.tasks import built_in
from tests.captures import capture

ROW = Tensor((Affine(1), 4), "float32")  # 16 bytes a sample
WEIGHT = Tensor((4, 4), "float32")


def operator(name: str, target: str, *reads: str, out: Tensor = ROW, phase: Phase = Phase.FORWARD) -> Operator:
    return Operator(name, f"aten.{target}.default", tuple(Ref(r) for r in reads), outputs=(out,), phase=phase)


def chain() -> Graph:
    """x -> a=mm(x, w0^T) -> b=relu -> c=mm(b, w1) -> loss, and back."""
    back = Phase.BACKWARD
    operators = (
        operator("turned", "t", "w0", out=WEIGHT),
        operator("a", "mm", "input.0", "turned"),
        operator("b", "relu", "a"),
        operator("seen", "detach", "b"),
        operator("c", "mm", "seen", "w1"),
        operator("loss", "sum", "c", out=Tensor((), "float32")),
        operator("gw1", "mm", "b", "c", out=WEIGHT, phase=back),
        operator("gb", "mm", "c", "w1", phase=back),
        operator("gw0", "mm", "input.0", "gb", out=WEIGHT, phase=back),
    )
    parameters = (Parameter("w0", WEIGHT), Parameter("w1", WEIGHT), Parameter("idle", WEIGHT))
    gradients = (("w0", Ref("gw0")), ("w1", Ref("gw1")))
    return Graph("chain", 2, operators, parameters, (), (), (("input.0", ROW),), Ref("loss"), None, gradients)


def across(lives: Liveness, position: int) -> tuple[Ref, ...]:
    """The values made before `position` and read at it or later, in the order made."""
    ends = zip(lives.values, lives.made, lives.last, strict=True)
    return tuple(value for value, made, last in ends if made < position <= last)


def names(refs: tuple[Ref, ...]) -> list[str]:
    return [ref.name for ref in refs]


def test_what_is_alive_across_each_position() -> None:
    graph = chain()
    lives = liveness(graph)
    found = {position: names(across(lives, position)) for position in (0, 2, 4, 6, 9)}
    assert found == {0: [], 2: ["a"], 4: ["b", "seen"], 6: ["b", "c", "loss"], 9: ["loss", "gw1", "gw0"]}


def test_liveness_agrees_with_a_plain_scan() -> None:
    graph = capture(built_in("digits-cnn"))
    lives = liveness(graph)
    for position in range(len(graph.operators) + 1):
        before = {o.name for o in graph.operators[:position]}
        later = {r for o in graph.operators[position:] for r in o.reads()} | set(graph.results())
        assert set(across(lives, position)) == {ref for ref in later if ref.name in before}


def test_cuts_leave_weights_at_home() -> None:
    found = {cut.position: names(cut.values) for cut in legal_cuts(chain())}
    assert found == {2: ["a"], 4: ["seen"], 5: ["c"]}


def test_layers_without_anything_between_them_can_be_parted() -> None:
    """Before the transpose of the second one's weight, and not behind it."""
    operators = (
        operator("turned0", "t", "w0", out=WEIGHT),
        operator("a", "mm", "input.0", "turned0"),
        operator("turned1", "t", "w1", out=WEIGHT),
        operator("b", "mm", "a", "turned1"),
        operator("loss", "sum", "b", out=Tensor((), "float32")),
    )
    layers = replace(chain(), operators=operators, gradients=())
    assert {cut.position: names(cut.values) for cut in legal_cuts(layers)} == {2: ["a"], 4: ["b"]}


def kept_mean() -> Graph:
    """x -> a=relu -> b=sub(a, mean) -> c=tanh -> mean'=c's -> d=exp(c) -> loss."""
    operators = (
        operator("a", "relu", "input.0"),
        operator("b", "sub", "a", "mean"),
        operator("c", "tanh", "b"),
        operator("new", "mean", "c", out=Tensor((4,), "float32")),
        operator("d", "exp", "c"),
        operator("loss", "sum", "d", out=Tensor((), "float32")),
    )
    buffers = (Buffer("mean", Tensor((4,), "float32")),)
    return replace(chain(), operators=operators, buffers=buffers, gradients=(), mutations=(("mean", Ref("new")),))


def test_no_cut_parts_who_reads_a_buffer_from_who_changes_it() -> None:
    """Right before the one and right behind the other it may be cut."""
    assert {cut.position: names(cut.values) for cut in legal_cuts(kept_mean())} == {1: ["a"], 4: ["c"], 5: ["d"]}
    still = replace(kept_mean(), mutations=())
    assert [cut.position for cut in legal_cuts(still)] == [1, 2, 3, 4, 5]


def test_no_cut_parts_a_view_of_a_buffer_from_its_reader() -> None:
    operators = (operator("seen", "t", "table", out=WEIGHT), *kept_mean().operators)
    operators = tuple(replace(o, arguments=(Ref("a"), Ref("seen"))) if o.name == "b" else o for o in operators)
    buffers = (Buffer("table", WEIGHT), *kept_mean().buffers)
    graph = replace(kept_mean(), operators=operators, buffers=buffers, mutations=())
    assert [cut.position for cut in legal_cuts(graph)] == [3, 4, 5, 6]


def test_the_memory_of_a_view_of_a_view_is_the_first_s() -> None:
    operators = (
        operator("a", "relu", "input.0"), operator("b", "t", "a"), operator("c", "t", "b"),
        operator("d", "t", "input.0"), operator("e", "t", "d"), operator("loss", "sum", "c"),
    )  # fmt: skip
    assert liveness(replace(chain(), operators=operators, gradients=())).roots == (0, 0, 0, -1, -1, 5)


def test_what_depends_on_samples_alone_is_made_by_every_stage() -> None:
    """A mask of them, and a table; not a count that the loss is divided by, nor what reads a buffer that changes, nor
    what reads a weight."""
    operators = (
        operator("mask", "gt", "input.0"), operator("wide", "mul", "mask", "table"),
        operator("off", "sub", "mask", "mean"), operator("a", "mm", "wide", "w0"), operator("new", "mean", "off"),
        operator("count", "sum", "mask"), operator("loss", "sum", "a"),
    )  # fmt: skip
    graph = replace(
        chain(), operators=operators, gradients=(), weight=Ref("count"), mutations=(("mean", Ref("new")),),
        buffers=(Buffer("mean", ROW), Buffer("table", ROW)),
    )  # fmt: skip
    assert homes_of(graph).free == {"mask", "wide"}


def test_what_looks_at_weights_moves_with_its_first_reader_and_a_sum_with_its_earliest() -> None:
    back = Phase.BACKWARD
    operators = (
        operator("turned", "t", "w0", out=WEIGHT), operator("table", "mul", "kept", "w0", out=WEIGHT),
        operator("a", "mm", "input.0", "w1"), operator("b", "mm", "a", "turned"), operator("c", "mm", "b", "turned"),
        operator("d", "mm", "c", "table"), operator("loss", "sum", "d"),
        replace(operator("gc", "mm", "c", phase=back), twin="c"),
        replace(operator("gb", "mm", "b", phase=back), twin="b"),
        operator("both", "add", "gc", "gb", phase=back), operator("seed", "ones_like", "tangent", phase=back),
    )  # fmt: skip
    graph = replace(chain(), operators=operators, gradients=(), buffers=(Buffer("kept", WEIGHT),))
    assert homes_of(graph).home == (3, 5, 2, 3, 4, 5, 6, 4, 3, 3, 6)


def test_only_what_adds_two_values_for_nobody_else_is_a_sum_of_gradients() -> None:
    """a + (b + c), but not with a factor, nor where another operator reads a part of it."""
    back = Phase.BACKWARD

    def add(name: str, *reads: str, **more: float) -> Operator:
        return Operator(name, "aten.add.Tensor", tuple(Ref(r) for r in reads), tuple(more.items()), (ROW,), phase=back)

    parts = tuple(operator(name, "mm", "c", "w1", phase=back) for name in "pqr")
    inner, whole = add("inner", "q", "r"), add("whole", "p", "inner")
    plain = replace(chain(), operators=(*chain().operators, *parts, inner, whole))
    assert homes_of(plain).summed(Ref("whole")) == ((Ref("p"), Ref("q"), Ref("r")), ("inner", "whole"))
    taken = replace(plain, operators=(*plain.operators, operator("norm", "sum", "inner", phase=back)))
    assert homes_of(taken).summed(Ref("whole")) == ((Ref("p"), Ref("inner")), ("whole",))
    scaled = replace(plain, operators=(*plain.operators[:-2], add("inner", "q", "r", alpha=0.5), whole))
    assert homes_of(scaled).summed(Ref("whole")) == ((Ref("p"), Ref("inner")), ("whole",))


def test_a_stage_starts_at_an_operator_or_a_module_and_behind_the_last_one() -> None:
    operators = tuple(replace(o, module="body.first" if o.name in ("b", "c") else "") for o in kept_mean().operators)
    graph = replace(kept_mean(), operators=operators, mutations=())
    assert stage_starts(graph, ["", "body", "d"]) == stage_starts(graph, ["", "body.first", "d"]) == (0, 1, 4)
    for firsts in (["", "c", "c"], ["", "d", "c"], ["", "a"]):
        with pytest.raises(PlanError, match="order them as the forward pass goes"):
            stage_starts(graph, firsts)
    for first in ("bod", "", "body.", "input.0"):
        with pytest.raises(PlanError, match=f"stage 1 starts at '{first}', which is no forward operator or module"):
            stage_starts(graph, ["", first])


def test_a_view_counts_once_and_what_was_read_for_the_last_time_goes() -> None:
    """Rows of 32 bytes: a and b, b alone (seen shares it), b and c, with the loss, with gw1, which stays, ..."""
    during, across = lifetimes_of(chain(), 2).live_bytes
    assert during.sum(axis=1).tolist() == [0, 32, 64, 32, 64, 68, 128, 128, 160]
    assert across.sum(axis=1).tolist() == [0, 0, 32, 32, 32, 64, 64, 96, 96, 128]
