"""Keys over servers: balanced by bytes (DP-07)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import PlanError
from partita.lowering.lower import lower
from partita.lowering.owners import owners_of
from partita.lowering.samples import Draft
from partita.plan.plan import Plan
from partita.program.layout import Bucket
from partita.recipes.catalogue import call
from partita.zoo.tasks import classify
from tests.captures import capture
from tests.small import cluster_of, perceptron, two_layers


def loads(sizes: list[int], servers: int) -> list[int]:
    buckets = tuple(Bucket(f"b{i}", "float32", n, ()) for i, n in enumerate(sizes))
    owners = owners_of(Draft(two_layers(), Plan("ps_async"), buckets, (), (), 8, ()), tuple(range(servers)))
    return [sum(4 * n for n, owner in zip(sizes, owners, strict=True) if owner == k) for k in range(servers)]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60), st.integers(1, 8))
def test_no_server_has_more_than_the_mean_and_a_part_of_the_largest_key(sizes: list[int], servers: int) -> None:
    """DP-07: max - mean <= largest (1 - 1/k)."""
    found = loads(sizes, servers)
    assert sum(found) == 4 * sum(sizes)
    assert max(found) - sum(found) / servers <= 4 * max(sizes) * (1 - 1 / servers) + 1e-6


@given(st.integers(1, 8), st.integers(100, 3000))
def test_thin_slices_balance_within_a_percent(servers: int, slice_size: int) -> None:
    """DP-07: keys of at most 1 % of a server's part: max / mean <= 1.01."""
    found = loads([slice_size] * (100 * servers), servers)
    assert max(found) <= 1.01 * sum(found) / servers


@pytest.mark.parametrize("text", ["ps_sync(servers=2)", "ps_async(servers=3)", "ps_replicated(servers=2)"])
def test_a_server_of_nothing_is_refused(text: str) -> None:
    machines = cluster_of(6)
    with pytest.raises(PlanError, match=r"servers would have nothing to serve, since there is 1 bucket; use fewer"):
        lower(two_layers(), call(text, two_layers(), machines), machines)
    lower(two_layers(), call(f"{text[:-1]},bucket_bytes=40)", two_layers(), machines), machines)


def counted(model: Any, batch: Any) -> Any:
    """A loss with a weight."""
    return classify(model, batch) * len(batch[0]), len(batch[0])


def test_nor_does_one_ask_for_the_weight_of_a_loss() -> None:
    machines, graph = cluster_of(4), capture(replace(perceptron(), loss=counted))
    with pytest.raises(PlanError, match=r"1 of its servers would have nothing to serve"):
        lower(graph, call("ps_sync(servers=2)", graph, machines), machines)
