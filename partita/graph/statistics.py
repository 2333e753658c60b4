"""What a step changes in buffers: running batch statistics, with what they are made of, and what follows from no
sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.graph.repeats import DRAW


@dataclass(frozen=True, slots=True)
class Statistic:
    """A normalisation of `source`, over everything but its channels, with its running `mean` and `variance`, which move
    by `momentum`; `counter` counts how often ("": nothing does)."""

    mean: str
    variance: str
    counter: str
    momentum: float
    source: Ref

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers that it changes."""
        return (self.mean, self.variance, *((self.counter,) if self.counter else ()))

    def samples(self, graph: Graph, batch: int) -> int:
        """Values of each channel that `batch` samples hold."""
        channels = graph.tensor(Ref(self.mean)).elements()
        return graph.tensor(self.source).at(batch).elements() // channels


def statistics_of(graph: Graph) -> Iterator[Statistic]:
    """The normalisations whose running statistics the step changes."""
    changed = {buffer for buffer, _ in graph.mutations}
    for operator in graph.operators[: graph.forward_length]:
        if "batch_norm" not in operator.target or len(operator.arguments) < 7:
            continue
        source, _, _, mean, variance, _, momentum = operator.arguments[:7]
        if isinstance(mean, Ref) and isinstance(variance, Ref) and isinstance(source, Ref) and mean.name in changed:
            counter = f"{mean.name.rpartition('.')[0]}.num_batches_tracked".removeprefix(".")
            counts = counter if counter in changed else ""
            yield Statistic(mean.name, variance.name, counts, float(str(momentum)), source)


def fewest_samples(graph: Graph) -> int:
    """How many samples a part of a minibatch needs, so that each normalisation by statistics of its own has two values
    of each channel or more: PyTorch refuses one, whose variance is none."""
    return graph.once("fewest samples", lambda: 2 if any(_lone(graph)) else 1)


def _lone(graph: Graph) -> Iterator[bool]:
    """Of each normalisation in training whether one sample has one value of each channel."""
    for operator in graph.operators[: graph.forward_length]:
        if "batch_norm" in operator.target and len(operator.arguments) > 5 and operator.arguments[5] is True:
            source = operator.arguments[0]
            if isinstance(source, Ref):
                values, channels = graph.tensor(source).at(1), graph.tensor(source).at(1).shape[1]
                yield values.elements() == channels


def sample_free(graph: Graph) -> tuple[str, ...]:
    """Changed buffers whose new value follows from no sample and no draw, such as counters of steps and the vectors of
    power iterations; what batch normalisations count belongs to their statistics."""
    following = {name for name, _ in graph.inputs}
    before = -1
    while len(following) != before:  # what reads a buffer that follows from samples does so too, the next time
        before = len(following)
        for operator in graph.operators[: graph.forward_length]:
            if operator.target in DRAW or any(ref.name in following for ref in operator.reads()):
                following.add(operator.name)
        following |= {name for name, ref in graph.mutations if ref.name in following}
    counted = {statistic.counter for statistic in statistics_of(graph)}
    return tuple(name for name, _ in graph.mutations if name not in following and name not in counted)
