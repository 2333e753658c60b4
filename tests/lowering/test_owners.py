"""Keys over servers: balanced by bytes (DP-07)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partita.lowering.owners import owners_of
from partita.lowering.samples import Draft
from partita.plan.plan import Plan
from partita.program.program import Bucket
from tests.small import two_layers


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
