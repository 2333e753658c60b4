"""The smallest reader of a Graph: it carries out the operators one after the other in plain torch."""

from __future__ import annotations

from typing import Any

import torch

import partita.tracing.recurrent  # noqa: F401  (registers partita::lstm_layer)
from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.operator import Ref, Symbol
from partita.graph.repeats import DROPPING
from partita.runtime.segment import mixed, resolve
from partita.tracing.draws import KeyedDraws, keyed_dropout, keyed_random, keyed_uniform
from partita.tracing.prepare import flatten


def interpret(graph: Graph, model: torch.nn.Module, batch: Any, *, seed: int = 0, step: int = 0) -> dict[str, Any]:
    """loss, weight, gradients and mutations of one step on the batch, its samples being 0, 1, 2, ..."""
    inputs, _ = flatten(batch)
    size = len(inputs[0])
    fixed = substitute(graph, size)
    values: dict[str, Any] = {name: t.detach() for name, t in (*model.named_parameters(), *model.named_buffers())}
    values |= {f"input.{i}": t for i, t in enumerate(inputs)}
    for c in graph.constants:
        raw = torch.tensor(bytearray(c.data), dtype=torch.uint8)
        values[c.name] = raw.view(getattr(torch, c.tensor.dtype)).reshape(c.tensor.shape)

    def value(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return values[argument.name] if argument.index < 0 else values[argument.name][argument.index]
        if isinstance(argument, Symbol):
            return torch.device("cpu") if argument.kind == "device" else getattr(torch, argument.value)
        return [value(part) for part in argument] if isinstance(argument, tuple) else argument

    for o in fixed.operators:
        arguments, keywords = [value(a) for a in o.arguments], {k: value(v) for k, v in o.keywords}
        if o.target in ("partita.dropout", "partita.random"):
            key = arguments[2] if o.target == "partita.dropout" else arguments.pop(0)
            along = keywords.pop("along", 0)
            uniform = keyed_uniform(o.outputs[0].shape, seed, step, key, range(size), along=along)
            if o.target == "partita.dropout":
                values[o.name] = keyed_dropout(arguments[0], arguments[1], uniform)
                continue
            empty = torch.empty(o.outputs[0].shape, dtype=getattr(torch, o.outputs[0].dtype))
            values[o.name] = keyed_random(arguments[0], arguments[1:], empty, uniform)
            continue
        function = resolve(o.target, mixed=mixed(fixed, o))
        draws = KeyedDraws(seed, step, range(size))
        if o.target == DROPPING:
            draws.key = arguments.pop()
            draws.dims = {draws.key: keywords.pop("along", 0)}
        with draws:
            values[o.name] = function(*arguments, **keywords)
        made = values[o.name] if o.several else [values[o.name]]
        for spec, tensor in zip(o.outputs, made, strict=True):
            if spec is not None and spec.dtype != "uint8":
                assert spec.shape == tuple(tensor.shape), (o, tensor.shape)
                assert spec.dtype == str(tensor.dtype)[6:], (o, tensor.dtype)
    return {
        "loss": value(graph.loss),
        "weight": None if graph.weight is None else value(graph.weight),
        "gradients": {name: value(ref) for name, ref in graph.gradients},
        "mutations": {name: value(ref) for name, ref in graph.mutations},
    }
