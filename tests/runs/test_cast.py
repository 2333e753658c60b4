"""Who plays which part, and that both ends of a channel meet under one name."""

from __future__ import annotations

import torch.distributed as dist

from partita.runs.cast import NOBODY, Cast
from partita.runs.deaths import crossed_by_other, dead_among, deaths, place_to_link, tell_crossed, tell_death
from partita.transport.channel import Channel
from tests.program.test_verify import program_of

CAST = Cast(program_of("ps_replicated(replicas=2)", size=5), frozenset({3, 4}))


def test_a_part_is_played_by_its_own_process_or_by_the_next_of_its_chain() -> None:
    """As in the drawing of `cast`: first one server is lost, then both, or the other one first."""
    lost, other = CAST.without([3]), CAST.without([4])
    played = [[cast.player(part) for part in range(5)] for cast in (CAST, lost, other, lost.without([4]))]
    assert played == [[0, 1, 2, 3, 4], [0, 1, 2, 4, 4], [0, 1, 2, 3, 3], [0, 1, 2, NOBODY, NOBODY]]
    assert (lost.there, lost.route(0, 3), lost.route(3, 0)) == ({4}, (0, 4), (4, 0))


def test_messages_that_must_survive_a_process_are_those_with_servers_of_a_chain() -> None:
    partners = [CAST.partners(part) for part in range(5)]
    assert {3} <= set(partners[0]) == set(partners[1]) == set(partners[2]) <= {3, 4}
    assert {0, 1, 2, 4} == set(partners[3])
    assert {3} <= set(partners[4])


def test_both_ends_of_a_channel_meet_under_one_name_for_each_route() -> None:
    store = dist.HashStore()
    worker, server = Channel(0, 3, lambda process: None), Channel(3, 0, lambda process: None)
    assert crossed_by_other(store, worker, (0, 4)) is None
    tell_crossed(store, server, (4, 0), {"b0.up": 2})
    assert crossed_by_other(store, worker, (0, 4)) == {"b0.up": 2}
    assert crossed_by_other(store, server, (4, 0)) is None
    assert crossed_by_other(store, worker, (0, 3)) is None
    place_to_link(store, worker, (0, 4)).set("here", "it is")
    assert place_to_link(store, server, (4, 0)).get("here") == b"it is"
    assert not place_to_link(store, server, (3, 0)).check(["here"])


def test_a_death_is_known_to_all_however_often_it_is_noticed() -> None:
    store = dist.HashStore()
    assert (deaths(store), dead_among(store, (3, 4))) == (0, frozenset())
    tell_death(store, 3)
    tell_death(store, 3)
    assert (deaths(store), dead_among(store, (3, 4))) == (2, {3})
