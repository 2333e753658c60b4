"""Real digits for small perceptrons: quick to learn, in any number of ranks."""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise

import torch
from torch import nn

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from partita.zoo.data import Samples
from partita.zoo.tasks import built_in
from tests.captures import capture
from tests.small import cluster_of


@cache
def pixels() -> Samples:
    """64 pixels in 0..1 and a label each, of what is trained on."""
    task = built_in("digits-cnn")
    assert task is not None
    return Samples((task.data.columns[0].flatten(1), task.data.columns[1]))


def network(width: int, depth: int) -> nn.Sequential:
    """64 - `depth` times `width` - 10, ReLU, He's first weights."""
    sizes = [64, *[width] * depth]
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    layers.append(nn.Linear(sizes[-1], 10))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def digits(batch: int = 64, width: int = 32, depth: int = 1, *, rate: float = 0.1) -> Task:
    """A perceptron on real digits."""
    return Task(
        name="digits", model=partial(network, width, depth), data=pixels(), batch_size=batch,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )  # fmt: skip


def learnt(
    task: Task, plan: str, machines: int | Cluster, steps: int, seed: int = 0, graph: Graph | None = None
) -> nn.Module:
    """The model of the first rank after `steps` steps of all ranks in this process."""
    graph, place = graph or capture(task), cluster_of(machines) if isinstance(machines, int) else machines
    states, _ = train_in_process(Workload(task, graph, seed=seed), call(plan, graph, place), place, steps)
    model = task.model()
    model.load_state_dict({name: states[0].leaves[name] for name in model.state_dict()})
    return model


def seen(model: nn.Module) -> float:
    """Mean loss on all that was trained on."""
    images, labels = pixels().columns
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(images), labels))
