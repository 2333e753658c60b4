"""Lives of values, cuts, gradient edges and memory on graphs small enough to count by hand."""

from __future__ import annotations

from typing import Any

import pytest

from partita.errors import PlanError
from partita.graph.cuts import backward_edges, legal_cuts, live_across, liveness, peak_bytes
from partita.graph.graph import Graph, Parameter
from partita.graph.operator import Operator, Phase, Ref
from partita.graph.tensor import Affine, Tensor
from partita.zoo.tasks import built_in

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


def names(refs: tuple[Ref, ...]) -> list[str]:
    return [ref.name for ref in refs]


def test_what_is_alive_across_each_position() -> None:
    graph = chain()
    assert names(live_across(graph, 0)) == []
    assert names(live_across(graph, 2)) == ["a"]
    assert names(live_across(graph, 4)) == ["b", "seen"]
    assert names(live_across(graph, 6)) == ["b", "c", "loss"]
    assert names(live_across(graph, 9)) == ["loss", "gw1", "gw0"]


def test_liveness_agrees_with_a_plain_scan(captured: Any) -> None:
    graph = captured(built_in("digits-cnn"))
    lives = liveness(graph)
    for position in range(len(graph.operators) + 1):
        before = {o.name for o in graph.operators[:position]}
        later = {r for o in graph.operators[position:] for r in o.reads()} | set(graph.results())
        assert set(lives.across(position)) == {ref for ref in later if ref.name in before}


def test_cuts_leave_weights_at_home() -> None:
    found = {cut.position: names(cut.values) for cut in legal_cuts(chain())}
    assert found == {2: ["a"], 4: ["seen"], 5: ["c"]}


def test_gradients_are_complete_at() -> None:
    graph = chain()
    assert backward_edges(graph, (("w1",), ("w0", "w1"), ("idle",))) == (7, 9, 6)
    with pytest.raises(PlanError, match="'w9' is no parameter"):
        backward_edges(graph, (("w9",),))


def test_peak_counts_a_view_once_and_frees_after_the_last_reader() -> None:
    graph = chain()
    row = 2 * 16
    assert peak_bytes(graph, 0, 3, 2) == (2 * row, row)  # a and b, then b
    assert peak_bytes(graph, 0, 5, 2) == (2 * row, 2 * row)  # b (seen shares it) and c
    assert peak_bytes(graph, 0, 9, 2)[1] == 4 + 2 * 64  # loss and two gradients


def test_a_run_counts_what_it_reads_from_before() -> None:
    graph = chain()
    assert peak_bytes(graph, 6, 7, 2) == (64 + 2 * 32, 64 + 32)  # b and c are read, c lives on


def test_the_whole_is_no_less_than_its_parts(captured: Any) -> None:
    graph = captured(built_in("digits-cnn"))
    total = len(graph.operators)
    whole = peak_bytes(graph, 0, total, 64)[0]
    assert all(peak_bytes(graph, cut, total, 64)[0] <= whole for cut in range(0, total, 7))
