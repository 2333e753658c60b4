"""Runs an operator of a Graph on torch tensors, whole or by the parts that its pattern says."""

from __future__ import annotations

from typing import Any

import torch

from partita.graph.graph import Graph
from partita.graph.operator import Operator, Ref, Symbol
from partita.graph.pattern import Monoid, Partial, Pattern, Shard, split
from partita.graph.tensor import Affine, Tensor

BATCH = 4


def value(spec: Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random numbers of that shape, dtype (float64 for floats) and layout."""
    at = spec.at(BATCH)
    dtype = getattr(torch, at.dtype)
    if dtype == torch.bool:
        made = torch.rand(at.shape, generator=generator) > 0.5
    elif not dtype.is_floating_point:
        made = torch.randint(0, 2, at.shape, generator=generator).to(dtype)
    else:
        made = torch.rand(at.shape, generator=generator, dtype=torch.float64) + 0.1
    if not at.strides or 0 in at.strides:
        return made
    return torch.empty_strided(at.shape, at.strides, dtype=made.dtype).copy_(made)


def literal(argument: Any, values: list[torch.Tensor]) -> Any:
    """The argument for torch; Refs take the next of `values`."""
    if isinstance(argument, Ref):
        return values.pop(0)
    if isinstance(argument, tuple):
        return [literal(part, values) for part in argument]
    if isinstance(argument, Affine):
        return argument.at(BATCH)
    if isinstance(argument, Symbol):
        found = {"dtype": argument.value}.get(argument.kind)
        name = "float64" if found == "float32" else found
        return getattr(torch, name) if name else (torch.device("cpu") if argument.kind == "device" else None)
    return argument


def run(operator: Operator, values: list[torch.Tensor], sizes: dict[tuple[int, ...], int]) -> list[Any]:
    """The operator's outputs; `sizes` rewrites literals."""
    namespace, name, overload = operator.target.split(".")
    left = list(values)
    arguments = [literal(argument, left) for argument in operator.arguments]
    for path, size in sizes.items():
        if len(path) == 1:
            arguments[path[0]] = size
        else:
            arguments[path[0]][path[1]] = size
    keywords = {k: literal(v, left) for k, v in operator.keywords if k not in ("layout", "memory_format", "pin_memory")}
    if name in ("view", "_unsafe_view"):
        return [torch.reshape(*arguments)]
    made = getattr(getattr(getattr(torch.ops, namespace), name), overload)(*arguments, **keywords)
    return list(made) if isinstance(made, tuple | list) else [made]


def by_parts(operator: Operator, pattern: Pattern, name: str, whole: list[torch.Tensor], parts: int) -> list[list[Any]]:
    """The outputs of every part of label `name`."""
    placements = split(pattern, name)
    sizes = {
        extent.path: pattern.size(extent.labels, BATCH) // parts for extent in pattern.extents if name in extent.labels
    }
    made = []
    for part in range(parts):
        values = []
        for tensor, placement in zip(whole, placements.inputs, strict=True):
            if isinstance(placement, Shard):
                shard = tensor.chunk(parts, placement.dim)[part]
                values.append(shard.contiguous() if tensor.is_contiguous() else shard)
            elif isinstance(placement, Partial) and part:
                values.append(torch.zeros_like(tensor))
            else:
                values.append(tensor)
        made.append(run(operator, values, sizes))
    return made


def combined(outputs: list[list[Any]], pattern: Pattern, name: str) -> list[Any]:
    """The whole outputs from those of the parts."""
    found: list[Any] = []
    for number, placement in enumerate(split(pattern, name).outputs):
        parts = [output[number] for output in outputs]
        if placement is None or parts[0] is None:
            found.append(None)
        elif isinstance(placement, Shard):
            found.append(torch.cat(parts, placement.dim))
        elif isinstance(placement, Partial) and placement.monoid is Monoid.SOFTMAX:
            weight = torch.softmax(torch.stack([output[1] for output in outputs]), 0)
            found.append((torch.stack(parts) * weight[..., None]).sum(0))
        elif isinstance(placement, Partial):
            found.append(joined(torch.stack(parts), placement.monoid))
        else:
            found.append(parts)
    return found


def joined(parts: torch.Tensor, monoid: Monoid) -> torch.Tensor:
    joins = {Monoid.SUM: torch.sum, Monoid.MEAN: torch.mean, Monoid.MAX: torch.amax, Monoid.MIN: torch.amin,
             Monoid.PRODUCT: torch.prod, Monoid.LOGSUMEXP: torch.logsumexp}  # fmt: skip
    return joins[monoid](parts, 0)


def disagreements(operator: Operator, graph: Graph, pattern: Pattern) -> list[str]:
    """The labels whose parts do not give what the whole gives; those that need more than shards are not tried."""
    generator = torch.Generator().manual_seed(0)
    values = [value(graph.tensor(ref), generator) for ref in operator.reads()]
    whole = run(operator, values, {})
    wrong = []
    for label in pattern.splittable():
        size = pattern.size((label.name,), BATCH)
        parts = next((k for k in (2, 3) if size % k == 0), 0)
        if label.exchange or label.indexed or label.window or not parts:
            continue
        try:
            again = combined(by_parts(operator, pattern, label.name, values, parts), pattern, label.name)
        except (RuntimeError, IndexError) as error:
            wrong.append(f"{operator.target} {label.name}: {str(error)[:200]}")
            continue
        for number, (one, other) in enumerate(zip(whole, again, strict=False)):
            if one is None or other is None:
                continue
            copies = other if isinstance(other, list) else [other]
            if not all(c.shape == one.shape and torch.allclose(c.double(), one.double(), 1e-9, 1e-9) for c in copies):
                wrong.append(f"{operator.target} {label.name} ({label.role}): output {number} differs")
    return wrong
