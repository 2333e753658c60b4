"""Lives of values, cuts and memory on graphs small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

from partita.cost.lifetimes import lifetimes_of
from partita.graph.cuts import Liveness, legal_cuts, liveness
from partita.graph.graph import Graph, Parameter
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


def test_a_view_counts_once_and_what_was_read_for_the_last_time_goes() -> None:
    """Rows of 32 bytes: a and b, b alone (seen shares it), b and c, with the loss, with gw1, which stays, ..."""
    during, across = lifetimes_of(chain(), 2).live_bytes
    assert during.sum(axis=1).tolist() == [0, 32, 64, 32, 64, 68, 128, 128, 160]
    assert across.sum(axis=1).tolist() == [0, 0, 32, 32, 32, 64, 64, 96, 96, 128]
