"""A step that computes some of its forward pass again: nothing else changes, and memory falls."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cost.demand import demand_of
from partita.cost.lifetimes import lifetimes_of
from partita.errors import PlanError
from partita.graph.blocks import block_starts, crossings, evenly, saved_before
from partita.graph.graph import Buffer, Graph, Repeat
from partita.graph.operator import Argument, Operator, Phase, Ref
from partita.graph.recompute import AGAIN, BATCH_NORM, recomputable, recomputed
from partita.graph.recompute_rules import cheap, whole_blocks
from partita.graph.tensor import Affine, Tensor
from partita.lowering.lower import last_program, lower
from partita.plan.memory import Memory, Recompute
from partita.plan.plan import Plan
from tests.priced import priced
from tests.programs import program_by
from tests.small import cluster_of, layers


def peak(graph: Graph) -> int:
    """At so many samples that the gradients of weights do not count."""
    return int(lifetimes_of(graph, 4096).live_bytes[0].sum(axis=1).max())


def evenly_cut(graph: Graph, count: int) -> tuple[int, ...]:
    return evenly(saved_before(graph), crossings(graph), count)


def chain(count: int) -> Graph:
    """Layers all of one width, whose activations are larger than their weights."""
    return layers(count - 2, batch=8)


@given(st.data())
def test_a_rewritten_step_is_a_step(data: st.DataObject) -> None:
    """Every value is made before it is read; each copy once, as late as can be; forward and results are untouched."""
    graph = layers(data.draw(st.integers(0, 8)))
    names = data.draw(st.sets(st.sampled_from([o.name for o in graph.operators])))
    made = recomputed(graph, names)
    step, copies = made.graph, [o for o in made.graph.operators if o.name.endswith(AGAIN)]
    for i, operator in enumerate(step.operators):
        assert all(step.index.get(ref.name, -1) < i for ref in operator.reads())
    assert step.operators[: graph.forward_length] == graph.operators[: graph.forward_length]
    assert tuple(step.results()) == tuple(graph.results())
    assert len({o.name for o in step.operators}) == len(step.operators)
    assert {o.name.removesuffix(AGAIN) for o in copies} <= names & recomputable(graph)
    for copy in copies:
        reader = min(i for i, o in enumerate(step.operators) if any(ref.name == copy.name for ref in o.reads()))
        between = step.operators[step.index[copy.name] + 1 : reader]
        assert copy.phase is Phase.BACKWARD
        assert all(o.name.endswith(AGAIN) for o in between)
    for old, place in zip(graph.operators, made.places, strict=False):
        assert place <= step.index[old.name]
        assert all(o.name.endswith(AGAIN) for o in step.operators[place : step.index[old.name]])


def test_a_loss_is_kept_and_nothing_named_changes_nothing() -> None:
    graph = layers(3)
    assert "loss" not in recomputable(graph)
    assert recomputed(graph, ()).graph is graph
    assert recomputed(graph, ("loss", "w0", "nobody")).graph is graph


@pytest.mark.parametrize("count", range(1, 25))
def test_forward_operators_of_a_chain(count: int) -> None:
    """ME-07: n operators in segments are computed 2n - (the last segment) times in all, less what nobody needs: the
    value that each segment gives the next is kept."""
    graph = chain(24)
    starts = evenly_cut(graph, count)
    step = recomputed(graph, whole_blocks(graph, starts, last=False)).graph
    n = graph.forward_length - 1
    again = len(step.operators) - len(graph.operators)
    last = n - starts[-1]
    assert again == n - last - (len(starts) - 1)


def test_the_peak_of_a_chain_is_least_near_the_root_of_its_length() -> None:
    """ME-07: what is kept follows k + n/k (R^2 > 0.95), and is least near k = sqrt(n)."""
    graph = chain(66)
    found = {}
    for count in range(2, 33):
        starts = evenly_cut(graph, count)
        if len(starts) == count:
            found[count] = peak(recomputed(graph, whole_blocks(graph, starts)).graph)
    assert len(found) > 20
    best = min(found, key=lambda k: found[k])
    assert 5 <= best <= 11
    law = {k: k + 64 / k for k in found}
    x, y = sum(law.values()) / len(law), sum(found.values()) / len(found)
    slope = sum((law[k] - x) * (found[k] - y) for k in found) / sum((law[k] - x) ** 2 for k in found)
    rest = sum((found[k] - y - slope * (law[k] - x)) ** 2 for k in found)
    assert 1 - rest / sum((value - y) ** 2 for value in found.values()) > 0.95


@pytest.mark.parametrize("count", [4, 9, 16, 40])
def test_blocks_of_a_chain_need_less(count: int) -> None:
    graph = chain(count)
    starts = block_starts(graph)
    assert starts[0] == 0
    assert list(starts) == sorted(set(starts))
    assert peak(recomputed(graph, whole_blocks(graph, starts)).graph) < peak(graph)


def test_products_are_not_cheap() -> None:
    graph = chain(8)
    assert cheap(graph, block_starts(graph)) == frozenset()


def test_backward_is_charged_for_what_it_computes_again() -> None:
    graph, machines = chain(16), cluster_of(1)
    costs = priced(graph, machines, (8,))
    seconds, memory = {}, {}
    for how in ("none", "full"):
        program = program_by(f"single(recompute={how})", graph, machines)
        acts = [i.act for i in program.roles[0].instructions]
        seconds[how] = sum(demand_of(costs, program, act).core for act in acts)
        memory[how] = peak(program.graph_of(-1, graph))
    step = program.graph_of(-1, graph)
    again = [o.name.split("@")[0] for o in step.operators if o.name.endswith(AGAIN)]
    assert again
    assert seconds["full"] - seconds["none"] == pytest.approx(sum(costs.prices(8)[name] for name in again))
    assert memory["full"] < memory["none"]


CUBE = Tensor((Affine(1), 4, 4), "float32")


def op(name: str, target: str, *arguments: Argument, several: bool = False, phase: Phase = Phase.FORWARD) -> Operator:
    """Texts that are names of values are read."""
    given = tuple(Ref(a) if isinstance(a, str) else a for a in arguments)
    return Operator(name, target, given, (), (CUBE, CUBE) if several else (CUBE,), several, phase)


def by_hand(*operators: Operator, changes: tuple[tuple[str, str], ...] = ()) -> Graph:
    """A step of these, with a weight `w`, buffers `mean` and `table`, and the loss `loss`."""
    (weight, *_) = layers(1).parameters
    return replace(
        layers(1), operators=operators, gradients=(), loss=Ref("loss"), inputs=(("input.0", CUBE),),
        parameters=(replace(weight, name="w", tensor=Tensor((4, 4), "float32")),),
        buffers=(Buffer("mean", CUBE), Buffer("table", CUBE)), mutations=tuple((b, Ref(new)) for b, new in changes),
    )  # fmt: skip


def test_what_reads_a_buffer_that_changes_is_kept() -> None:
    """Also through a view of it; a buffer's new value, which is there already, may be computed again."""
    graph = by_hand(
        op("a", "aten.relu.default", "input.0"), op("b", "aten.mul.Tensor", "a", "table"),
        op("c", "aten.sub.Tensor", "b", "mean"), op("seen", "aten.view.default", "mean", (4, 4)),
        op("d", "aten.sub.Tensor", "c", "seen"), op("new", "aten.relu.default", "d"),
        op("all", "partita.opaque_forward", "d"), op("loss", "aten.sum.default", "all"), changes=(("mean", "new"),),
    )  # fmt: skip
    assert recomputable(graph) == {"a", "b", "new"}


@pytest.mark.parametrize("trains", [True, False])
def test_a_norm_is_computed_again_where_it_does_not_look_at_running_statistics(trains: bool) -> None:
    norm = op("norm", BATCH_NORM, "a", None, None, "mean", "table", trains, 0.1, 1e-5)
    graph = by_hand(
        op("a", "aten.relu.default", "input.0"), norm, op("new", "aten.neg.default", "mean"),
        op("loss", "aten.sum.default", "norm"), changes=(("mean", "new"),),
    )  # fmt: skip
    assert ("norm" in recomputable(graph)) is trains


def test_what_draws_is_told_to_draw_the_same_again() -> None:
    """Both where it draws and where it draws again; not what is kept. The last place is the end of the step."""
    back = Phase.BACKWARD
    graph = by_hand(
        op("a", "aten.relu.default", "input.0"), op("one", "partita.random", 0, "aten.rand_like.default", "a"),
        op("two", "partita.random", 1, "aten.rand_like.default", "one"), op("loss", "aten.sum.default", "two"),
        op("g2", "aten.mul.Tensor", "two", "tangent", phase=back), op("g1", "aten.mul.Tensor", "one", "g2", phase=back),
    )  # fmt: skip
    made = recomputed(replace(graph, repeats=(Repeat(0, 1, 2),)), ("one",))
    told = {o.name: o.keywords for o in made.graph.operators}
    assert [o.name for o in made.graph.operators] == ["a", "one", "two", "loss", "g2", "one@again", "g1"]
    assert (told["one"], told["one@again"], told["two"]) == ((("kept", True),), (("again", True),), ())
    assert made.places == (0, 1, 2, 3, 4, 5, 7)
    assert made.graph.repeats == ()


def test_products_of_activations_are_cheap_and_those_of_weights_are_not() -> None:
    """Attention's scores of what is kept; what reads a product that is not kept would have to compute it."""
    back = Phase.BACKWARD
    graph = by_hand(
        op("wide", "aten.expand.default", "w", (Affine(1), 4, 4)), op("a", "aten.bmm.default", "input.0", "wide"),
        op("b", "aten.relu.default", "a"), op("scores", "aten.bmm.default", "b", "b"),
        op("out", "aten.bmm.default", "scores", "wide"), op("lost", "aten.relu.default", "out"),
        op("odd", "aten.no_such.default", "b"), op("loss", "aten.sum.default", "lost"),
        op("g", "aten.mul.Tensor", "a", "tangent", phase=back),
    )  # fmt: skip
    assert cheap(graph, (0,)) == {"wide", "b", "scores"}
    kept = replace(graph, operators=(*graph.operators, op("h", "aten.mul.Tensor", "out", "g", phase=back)))
    assert cheap(kept, (0,)) == {"wide", "b", "scores", "lost"}
    assert cheap(kept, (0, 3)) == {"lost"}  # what a later block reads stays, and is not made for its own sake


def test_the_memory_of_what_a_later_block_reads_is_kept() -> None:
    graph = by_hand(
        op("a", "aten.relu.default", "input.0"), op("seen", "aten.view.default", "a", (Affine(1), 4, 4)),
        op("b", "aten.neg.default", "seen"), op("loss", "aten.sum.default", "b"),
    )  # fmt: skip
    assert whole_blocks(graph, (0, 2)) == {"b"}
    assert whole_blocks(graph, (0,)) == {"a", "seen", "b"}


def test_operators_that_are_named_are_computed_again_and_no_others() -> None:
    graph, machines = chain(8), cluster_of(1)
    plan = Plan("named", memory=Memory(recompute=Recompute.AUTO, recomputed=("f1", "f3")))
    step = last_program(graph, plan, machines).graph_of(-1, graph)
    assert [o.name for o in step.operators if o.name.endswith(AGAIN)] == ["f3@again", "f1@again"]
    wrong = Plan("wrong", memory=Memory(recompute=Recompute.AUTO, recomputed=("f99",)))
    with pytest.raises(PlanError, match="'f99' again, which is no forward operator or module"):
        lower(graph, wrong, machines)
    silent = Plan("silent", memory=Memory(recomputed=("f1",)))
    with pytest.raises(PlanError, match="recompute=none"):
        lower(graph, silent, machines)
