"""Which returns of others a rank answers, and where it links those who are back."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch.distributed as dist

from partita.recipes.catalogue import call
from partita.runs import rejoin
from partita.runs.admission import Admission, Return, come_back
from partita.runs.rejoin import Rejoin
from partita.runs.session import Session
from partita.runtime.leg import legs
from partita.runtime.rank import Rank
from tests.runtime.dying import GRAPH
from tests.small import cluster_of


class Rejoining(Rejoin):
    """Of four neighbours, with a store and links of its own: `places` has where it has linked rank 2, each with how
    often anybody did there; `admitted` the returns that it has answered."""

    def __init__(self, rank: int, store: Any, away: frozenset[int] = frozenset()) -> None:
        machines = cluster_of(4)
        parts = legs(GRAPH, call("gossip(draws=3)", GRAPH, machines), machines, 12)
        session: Any = Mock(spec=Session, rank=rank, timeout=5.0, transport=Mock(link=self._links))
        self.common, self.places, self.admitted = store, list[int](), list[Return]()
        super().__init__(session, frozenset(range(4)), parts, 1, away={*away})

    def _client(self) -> Any:
        return self.common

    def _links(self, peer: int, place: Any, patience: float) -> None:
        if peer == 2:
            self.places.append(place.add("linked", 1))

    def _admit(self, back: Return) -> None:
        self.admitted.append(back)

    def look(self) -> list[Return]:
        """The returns that one more look finds."""
        self.admitted.clear()
        self._watch()
        return [*self.admitted]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is back is let in by all at once, and threads run before they are started."""
    monkeypatch.setattr(rejoin, "agreed", lambda *given: Admission(0, 5))
    monkeypatch.setattr(rejoin, "changes", lambda *given: iter([None]))
    monkeypatch.setattr(rejoin.threading, "Thread", lambda target, args=(), **more: Mock(start=lambda: target(*args)))
    for name in ("mark_gone", "mark_back"):
        monkeypatch.setattr(rejoin, name, Mock())


def test_each_link_is_made_where_none_was() -> None:
    """Rank 1 is back for the first time, and then rank 2: what is left of their link of before is not taken for that
    of now."""
    store = dist.HashStore()
    rank: Any = Mock(spec=Rank, rank=1)
    first = Rejoining(1, store)
    with first:
        pass
    again = Rejoining(1, store)
    again.enter()
    with again:
        rank: Any = Mock(spec=Rank, rank=1, program=again.legs[0].program)
        again._let_in(store, rank, come_back(store, 2, ()), 7)
    assert first.places + again.places == [1, 1, 1]


def test_a_return_is_answered_by_those_who_were_there() -> None:
    """Not by one that died and is back since, which has linked all that were there itself, nor by one that was away,
    whose own return links the two."""
    store = dist.HashStore()
    come_back(store, 2, ())
    come_back(store, 3, {1})
    one = Rejoining(1, store)
    assert one.enter() == Admission(0, 5)
    assert one.look() == []
    assert come_back(store, 3, {1}).times == 2
    assert one.look() == []
    again = come_back(store, 2, {0})
    assert one.look() == [again]
    assert one.look() == []
    other = Rejoining(0, store, away=frozenset({3}))
    other.enter()
    assert other.look() == [Return(3, 2)]
