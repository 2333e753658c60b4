"""Real digits for small perceptrons: quick to learn, in any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise

import torch
from torch import nn

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.recipes.catalogue import call
from partita.runtime.run import train_in_process
from partita.task import Task
from partita.tracing.capture import capture
from partita.zoo.data import Samples
from partita.zoo.tasks import built_in
from tests.small import cluster_of


@cache
def halves() -> tuple[Samples, Samples]:
    """Training and validation, 64 pixels of about unit size each."""
    task = built_in("digits-cnn")
    assert task is not None
    first, second = (Samples((part.columns[0].flatten(1), part.columns[1])) for part in (task.data, task.validation))
    return first, second


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


def digits(
    batch: int = 64, width: int = 32, depth: int = 1, *, rate: float = 0.1, momentum: float = 0.0,
    schedule: Callable[[torch.optim.Optimizer], object] | None = None,
) -> Task:  # fmt: skip
    """A perceptron on real digits."""
    training, validation = halves()
    return Task(
        name="digits", model=partial(network, width, depth), data=training, validation=validation, batch_size=batch,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum), schedule=schedule,
    )  # fmt: skip


def learnt(
    task: Task, plan: str, machines: int | Cluster, steps: int, seed: int = 0, graph: Graph | None = None
) -> nn.Module:
    """The model of the first rank after `steps` steps of all ranks in this process."""
    graph, place = graph or capture(task), cluster_of(machines) if isinstance(machines, int) else machines
    states, _ = train_in_process(task, graph, call(plan, graph, place), place, steps, seed=seed)
    model = task.model()
    model.load_state_dict({name: states[0].leaves[name] for name in model.state_dict()})
    return model


def held_out(model: nn.Module) -> tuple[float, float]:
    """(mean loss, share of right answers) on what was not trained on."""
    pixels, labels = halves()[1].columns
    with torch.no_grad():
        said = model(pixels)
        return float(nn.functional.cross_entropy(said, labels)), float((said.argmax(1) == labels).double().mean())


def seen(model: nn.Module) -> float:
    """Mean loss on all that was trained on."""
    pixels, labels = halves()[0].columns
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(pixels), labels))
