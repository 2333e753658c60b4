"""What a card's memory holds besides values: workspaces, what libraries keep, what recurrent layers keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch.nn import GRU, LSTM, Module

from partita.cluster.cluster import Cluster
from partita.cost.demand import demand_of
from partita.cost.lifetimes import lifetimes_of
from partita.cost.workspaces import NONE, Workspaces
from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.graph.signature import signature
from partita.program.instruction import Update
from partita.program.timeline import PURPOSES
from partita.simulator.simulate import simulate
from partita.zoo.tasks import on_text
from tests.captures import capture
from tests.priced import priced, signatures, whole_cores
from tests.programs import program_by
from tests.small import perceptron, two_layers

BATCH, WORKSPACE = 8, PURPOSES.index("workspace")


def on_a_card(size: int = 1) -> Cluster:
    return whole_cores(size, 1e9).changed(lambda device: replace(device, backend="cuda"))


def peak(graph: Graph, spaces: Workspaces, cluster: Cluster) -> int:
    costs = replace(priced(graph, cluster, [BATCH]), workspaces=spaces)
    return simulate(program_by("single", graph, cluster), costs).memory[0]


def test_a_card_holds_what_operators_take_while_they_run() -> None:
    """1,000 bytes of every operator are there at any moment of computing, and 70 at all times; none on a processor."""
    graph, card = two_layers(), on_a_card()
    every = Workspaces(dict.fromkeys(signatures(graph, BATCH), 1000), 70)
    assert peak(graph, every, card) == peak(graph, NONE, card) + 1070
    machine = whole_cores(1, 1e9)
    assert peak(graph, replace(every, kept=0), machine) == peak(graph, NONE, machine)


def test_workspaces_go_by_signature() -> None:
    graph = two_layers()
    concrete = substitute(graph, graph.batch)
    names = [signature(operator, concrete) for operator in concrete.operators]
    spaces = Workspaces({names[1]: 7})
    assert spaces.of(graph, graph.batch).tolist() == [7 * (name == names[1]) for name in names]
    assert NONE.of(graph, graph.batch).tolist() == [0] * len(names)


class Recurrent(Module):
    """A layer over a text's numbers."""

    def __init__(self, kind: type[LSTM] | type[GRU]) -> None:
        super().__init__()
        self.layer = kind(1, 12, batch_first=True)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.layer(x.float()[..., None])[0]


@pytest.mark.parametrize(("kind", "kept"), [(LSTM, 5), (GRU, 6)])
def test_cudnn_keeps_so_many_tensors_like_the_output(kind: type[LSTM] | type[GRU], kept: int) -> None:
    """And 256 bytes. A processor keeps what was captured."""
    task = on_text("recurrent", lambda: Recurrent(kind), length=10)
    graph = capture(replace(task, loss=lambda model, batch: model(batch[0]).pow(2).mean(), batch_size=BATCH))
    layer = next(o for o in graph.operators if o.target.startswith(f"partita.{kind.__name__.lower()}_layer."))
    space, out = Ref(layer.name, len(layer.outputs) - 1), Ref(layer.name, 0)
    card, here = lifetimes_of(graph, BATCH, card=True), lifetimes_of(graph, BATCH)
    assert card.size(out) == here.size(out) == 4 * BATCH * 10 * 12
    assert card.size(space) == kept * card.size(out) + 256
    assert here.size(space) == graph.tensor(space).size(BATCH) != card.size(space)


def test_samples_at_hand_are_not_there_ahead() -> None:
    """A minibatch that is read ahead lies beside the one that backward reads."""
    graph, cluster = two_layers(), whole_cores(1, 1e9)
    costs, program = priced(graph, cluster, [BATCH]), program_by("single", graph, cluster)
    ahead, late = (simulate(program, replace(costs, at_hand=each)).memory[0] for each in (False, True))
    assert ahead - late == sum(tensor.size(BATCH) for _, tensor in graph.inputs)


def test_masters_cost_two_casts() -> None:
    graph, cluster = capture(perceptron()), whole_cores(1, 1e9)
    whole, short = (program_by(text, graph, cluster) for text in ("single", "single(precision=bf16)"))
    costs = priced(graph, cluster, [12], copy=replace(priced(graph, cluster, [12]).copy, element=1e-6))
    spent = []
    for program in (whole, short):
        acts = program.roles[0].acts(Update)
        spent.append(sum(demand_of(costs, program, act).core for act in acts))
    elements = sum(p.tensor.elements() for p in graph.parameters)
    assert spent[1] - spent[0] == pytest.approx(1.5e-6 * elements)
