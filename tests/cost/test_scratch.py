"""What an operator takes for itself is what torch's allocator says."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from partita.cost.scratch import CONVOLUTIONS, working_bytes
from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.operator import Operator, Ref
from partita.runtime.segment import resolve
from partita.zoo.convolutional import digits_cnn
from partita.zoo.tasks import on_digits
from tests.captures import capture

BATCH = 16


def taken(operator: Operator, graph: Graph) -> int:
    """Bytes at the peak of a call, less those of its results."""
    call = resolve(operator.target)
    given = [torch.randn(graph.tensor(a).shape) if isinstance(a, Ref) else a for a in operator.arguments]  # type: ignore[arg-type]
    call(*given)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        made = call(*given)
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    results = [each for each in (made if isinstance(made, tuple) else (made,)) if each is not None]
    return peak - sum(each.nbytes for each in results)


def test_convolutions_take_blocked_copies() -> None:
    graph = substitute(capture(on_digits("digits-cnn", digits_cnn, 0.1)), BATCH)
    found = [each for each in graph.operators if each.target.startswith(CONVOLUTIONS)]
    assert len(found) > 3
    for operator in found:
        expected = working_bytes(graph, operator, BATCH)
        assert expected == pytest.approx(taken(operator, graph), rel=0.3, abs=4096), operator.name


def test_other_operators_take_nothing() -> None:
    graph = capture(on_digits("digits-cnn", digits_cnn, 0.1))
    others = [each for each in graph.operators if not each.target.startswith(CONVOLUTIONS)]
    assert not any(working_bytes(graph, each, BATCH) for each in others)
