"""The optimizer that a plan makes of the task's: its rule, its state and its learning rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from partita.graph.graph import Graph, Optimizer
from partita.plan.plan import Rule, Update

OPTIMIZERS: Final = {
    rule: Optimizer(rule.upper(), tuple((name, 1.0, "float32") for name in state), elementwise=False, joins=False)
    for rule, state in ((Rule.LARS, ("momentum_buffer",)), (Rule.LAMB, ("exp_avg", "exp_avg_sq")))
}


def momentum_ahead(update: Update) -> tuple[float, bool]:
    """(factor, whether it is Nesterov's) of the momentum that each worker applies before it encodes gradients (SP-03),
    instead of the momentum of the task's optimizer; factor 0 if the plan has none."""
    found = next((dict(c.settings) for c in update.corrections if c.name == "momentum"), {})
    return found.get("factor", 0.0), bool(found.get("nesterov", 0.0))


def ruled(graph: Graph, update: Update) -> Graph:
    """The graph with the optimizer that the plan's rule stands for. LARS and LAMB take norms of whole tensors (EX-06),
    so their tensors are never cut. The task's own optimizer keeps no momentum that goes ahead of a codec, but that of
    weight decay."""
    if update.rule is not Rule.TASK:
        return replace(graph, optimizer=OPTIMIZERS[update.rule])
    if not momentum_ahead(update)[0] or graph.optimizer.decays:
        return graph
    kept = tuple(one for one in graph.optimizer.state if one[0] != "momentum_buffer")
    return replace(graph, optimizer=replace(graph.optimizer, state=kept))


def rate_factor(update: Update, step: int) -> float:
    """What the task's rate is multiplied by at update `step` (from 0): `scale`, after a warm-up that rises to it in
    equal steps, from the task's rate where `scale` is above 1 (LB-01; Goyal et al. 2017), from nothing where it is not.

        scale 4, warmup 3:  1 2 3 4 4 4 ...          scale 1, warmup 3:  1/3 2/3 1 1 ...
    """
    if step >= update.warmup:
        return update.scale
    if update.scale > 1:
        return 1 + (update.scale - 1) * step / update.warmup
    return update.scale * (step + 1) / update.warmup
