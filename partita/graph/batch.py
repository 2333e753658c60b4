"""A graph that holds for any number of samples, made into one for a given number."""

from __future__ import annotations

from dataclasses import replace

from partita.errors import InputError
from partita.graph.graph import Graph
from partita.graph.operator import Argument, Operator
from partita.graph.tensor import Affine, Ratio, Tensor


def substitute(graph: Graph, batch: int) -> Graph:
    """The same step on `batch` samples, every Affine and Ratio replaced by its number.

    Raises InputError for a graph that was captured for another batch only.
    """
    if batch < 1:
        raise InputError(f"a batch of {batch} samples was asked of {graph.name!r}; ask for 1 or more")
    if not graph.symbolic:
        if graph.batch != batch:
            raise InputError(
                f"the graph of {graph.name!r} holds for {graph.batch} samples only, {batch} were asked; "
                f"capture it at {batch}"
            )
        return graph
    tensors = {tensor for _, tensor in graph.inputs}.union(
        out for operator in graph.operators for out in operator.outputs if out is not None
    )
    made = {tensor: tensor.at(batch) for tensor in tensors}
    return replace(
        graph,
        batch=batch,
        symbolic=False,
        operators=tuple(_operator_at(operator, batch, made) for operator in graph.operators),
        inputs=tuple((name, made[tensor]) for name, tensor in graph.inputs),
    )


def _operator_at(given: Operator, batch: int, made: dict[Tensor, Tensor]) -> Operator:
    """An operator for `batch` samples, whose outputs are `made` already."""
    return replace(
        given,
        arguments=tuple(argument_at(argument, batch) for argument in given.arguments),
        keywords=tuple((name, argument_at(value, batch)) for name, value in given.keywords),
        outputs=tuple(None if out is None else made[out] for out in given.outputs),
    )


def of_minibatch(graph: Graph, size: int) -> Graph:
    """The same step for minibatches of `size` samples; what is known about it stays known."""
    known, found = graph.known, replace(graph, global_batch=size)
    vars(found).update({name: each for name, each in vars(graph).items() if name not in vars(found)})
    assert found.known is known
    return found


def argument_at(argument: Argument, batch: int) -> Argument:
    """An argument for `batch` samples."""
    if isinstance(argument, Affine | Ratio):
        return argument.at(batch)
    if isinstance(argument, tuple):
        return tuple(argument_at(part, batch) for part in argument)
    return argument
