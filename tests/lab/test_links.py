"""Which link is slow or cut is told from what ranks say of their connections; one that is merely busy is not blamed."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping

import pytest

from partita.lab.links import Links
from partita.lab.network_setup import address
from partita.transport.flows import flows_of
from tests.small import cluster_of

RING = ((0, 1), (1, 2), (2, 3), (3, 0))
LINK = 1.25e8


def links(size: int = 4) -> Links:
    return Links(cluster_of(size, LINK), [address(rank) for rank in range(size)])


def say(found: Links, at: float, pairs: Mapping[tuple[int, int], tuple[int, int, int]]) -> list[str]:
    """All ranks say what they see, and the launcher what is slow."""
    for rank in range(found.cluster.size):
        mine = {address(peer): flow for (one, peer), flow in pairs.items() if one == rank}
        found.hear(rank, mine, at)
    return list(found.slow(at))


def rates(full: tuple[tuple[int, int], ...], rate: float, at: int) -> dict[tuple[int, int], tuple[int, int, int]]:
    """A ring in which bytes wait on some links only, and all move as fast as the slowest."""
    return {pair: (int(rate * at), 3 * (pair in full), 0) for pair in RING}


def test_a_slow_link_is_named_by_what_all_full_connections_have_in_common() -> None:
    """FAULTS 19."""
    found, said = links(), list[str]()
    for at in range(12):
        said += say(found, at, rates(((1, 2), (2, 3)), 12_500, at))
    assert said == [
        "the link of rank 2 carries 200 kbit/s and equal-4 says 1 Gbit/s: the run waits for it, and goes on"
    ]
    assert found.cut(11) == (frozenset(), "")


@pytest.mark.parametrize("rate", [LINK / 2, 12_500.0])
def test_no_link_is_blamed_where_all_are_full(rate: float) -> None:
    found = links()
    assert not [sentence for at in range(12) for sentence in say(found, at, rates(RING, rate, at))]


def test_a_link_that_carries_what_it_should_is_not_slow() -> None:
    """A server, to which all send at once."""
    found = links()
    for at in range(12):
        assert not say(found, at, {(rank, 3): (int(at * LINK / 3), 3, 10**6) for rank in range(3)})


def test_a_cut_link_is_named_and_bytes_that_move_are_progress() -> None:
    """FAULTS 21: segments that nobody confirms."""
    found = links()
    moves = [found.hear(0, {address(1): (n, 1, 0)}, n) for n in (5, 6, 6)]
    assert moves == [False, True, False]
    for at in range(12):
        said = say(found, at, {(1, 2): (7, 4, 10**5), (2, 3): (9, 2, 0), (0, 1): (8, 0, 0), (3, 0): (9, 0, 0)})
        assert not said
    ranks, sentence = found.cut(11.5)
    assert ranks == {2}
    assert sentence.startswith("nothing passes between rank 2 and ranks 1, 3 for 11 s: rank 2's link is down")


def test_who_reads_nothing_is_not_cut_off() -> None:
    """A window that is shut: a process that is stopped, or busy; all that was sent is confirmed."""
    found = links()
    for at in range(12):
        say(found, at, {(1, 2): (7, 0, 10**5)})
    assert found.cut(11) == (frozenset(), "")


def test_two_cut_links_are_a_parted_network() -> None:
    found = links()
    for at in range(12):
        say(found, at, {(0, 1): (7, 1, 0), (2, 3): (7, 1, 0)})
    assert "between ranks 0, 1, and between ranks 2, 3 for 11 s" in found.cut(11)[1]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        yield one, other


def test_the_kernel_is_asked_about_connections(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    before = flows_of(0)["127.0.0.1"]
    one.sendall(bytes(1000))
    assert other.recv(1000, socket.MSG_WAITALL) == bytes(1000)
    assert flows_of(0)["127.0.0.1"].moved - before.moved == 2000
    one.setblocking(False)
    while True:
        try:
            one.send(bytes(1 << 16))
        except BlockingIOError:
            break
    assert sum(flows_of(0)["127.0.0.1"][1:]) > 0
    assert "127.0.0.1" not in flows_of(one.getpeername()[1])
