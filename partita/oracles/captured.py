"""Gradients of a captured step as a whole, in one process: where a model in half precision is not what was captured.

A model may look at dtypes itself: a Llama's norm casts to fp32 and back, which does nothing where it is captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from partita.graph.batch import substitute
from partita.graph.graph import TANGENT, Graph
from partita.oracles.reference import Reference
from partita.runtime.draws import DRAWS
from partita.runtime.feed import default_floats
from partita.runtime.segment import compile_segment, key
from partita.runtime.state import constant_of
from partita.tracing.draws import Draws
from partita.tracing.prepare import DTYPES, parted_leaves

Code = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


@dataclass
class Captured:
    """The step `graph` on the model of a reference, whose weights have its dtypes."""

    graph: Graph
    own: Reference
    code: dict[int, tuple[Graph, list[Code]]] = field(default_factory=dict)

    def backward(self, step: int, start: int, count: int, share: float, scale: float = 1.0) -> float:
        """What `Reference.backward` does, for weights whose `grad` is None."""
        if count not in self.code:
            concrete = substitute(self.graph, count)
            edges = (0, concrete.forward_length, len(concrete.operators))
            self.code[count] = concrete, [compile_segment(concrete, *part, "cpu") for part in pairwise(edges)]
        graph, (forward, backward) = self.code[count]
        floating = DTYPES[self.own.precision]
        positions = self.own.feed.positions(step, start, count)
        environment: dict[str, Any] = {DRAWS: Draws(self.own.seed, step, tuple(positions))}
        environment |= {f"input.{i}": x for i, x in enumerate(self.own.feed.leaves(positions, "cpu", floating))}
        factor = scale if graph.weight is not None else share * scale
        environment[TANGENT] = torch.tensor(factor, dtype=torch.promote_types(floating, torch.float32))
        parameters, buffers = parted_leaves(self.own.model, {name for name, _ in graph.mutations})
        leaves = {c.name: constant_of(c, "cpu") for c in graph.constants if c.name != TANGENT}
        with torch.no_grad(), default_floats(floating):
            leaves |= {name: leaf.detach() for name, leaf in (parameters | buffers).items()}
            forward(environment, leaves)
            weight = float(environment[key(graph.weight)]) if graph.weight is not None else 0.0
            for name, ref in graph.mutations:
                buffers[name].copy_(environment[key(ref)])
            backward(environment, leaves)
        for name, ref in graph.gradients:
            parameters[name].grad = environment[key(ref)].clone()
        return weight

    def differs(self, count: int) -> bool:
        """Whether the model itself, on the first samples, has other gradients than the step, in any bit, or none: some
        operators have no short numbers, which a step has in wide ones."""
        try:
            own = self._given(self.own.backward, count)
        except RuntimeError:
            return True
        return any(
            mine is not theirs if mine is None or theirs is None else not torch.equal(mine, theirs)
            for mine, theirs in zip(own, self._given(self.backward, count), strict=True)
        )

    def _given(self, backward: Callable[[int, int, int, float], float], count: int) -> list[torch.Tensor | None]:
        """The gradients of a pass over the first samples, which changes no buffers."""
        model = self.own.model
        kept = self.own.kept()
        for p in model.parameters():
            p.grad = None
        try:
            backward(0, 0, count, 1.0)
        finally:
            self.own.load(kept)
        return [p.grad for p in model.parameters()]
