"""Messages between processes: what breaks is never taken for what has come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from partita.errors import RunError
from partita.runtime.rank import Board
from partita.runtime.waits import Posted
from partita.transport.operations import LinkedMessage, Work
from partita.transport.transport import PeerGone, Tags

CLOSED, LATE = "Connection closed by peer [127.0.0.1]:1", "Timed out waiting 5000ms for recv operation to complete"


@dataclass
class Started:
    """An operation of torch.distributed that fails, or not."""

    why: str = ""

    def wait(self, timeout: timedelta | None = None) -> None:
        if self.why:
            raise RuntimeError(self.why)


def polled(work: Work) -> bool:
    """What it says once its waiter has ended."""
    work.ready()
    assert work.waiter is not None
    work.waiter.join()
    return work.ready()


def test_a_message_over_a_broken_connection_is_not_ready() -> None:
    assert polled(Work(Started()))
    work = Work(Started(CLOSED))
    with pytest.raises(RunError, match=r"a connection to another rank broke \(Connection closed by peer"):
        polled(work)


def test_who_waits_learns_whether_time_is_over_or_the_other_end() -> None:
    """FT-02: only a connection that broke means that the peer is gone."""
    assert Work(Started()).block(5.0)
    assert LinkedMessage(Started(), 1).block(5.0)
    assert not Work(Started(LATE)).block(5.0)
    assert not LinkedMessage(Started(LATE), 1).block(5.0)
    assert not LinkedMessage(Started("Application timeout caused pair closure"), 1).block(5.0)
    with pytest.raises(RunError, match="look at which rank failed first"):
        Work(Started(CLOSED)).block(5.0)
    with pytest.raises(PeerGone, match="rank 1 is gone"):
        LinkedMessage(Started(CLOSED), 1).block(5.0)


def test_who_waits_for_what_somebody_polls_does_not_wait_beside() -> None:
    """Of two that wait for one operation of gloo, one may never end."""

    class Once(Started):
        waits = 0

        def wait(self, timeout: timedelta | None = None) -> None:
            self.waits += 1
            super().wait(timeout)

    work = Work(Once())
    assert polled(work)
    assert work.block(5.0)
    assert work.work.waits == 1
    broken = Work(Once(CLOSED))
    with pytest.raises(RunError, match="look at which rank failed first"):
        polled(broken)
    with pytest.raises(RunError, match="look at which rank failed first"):
        broken.block(5.0)


def test_a_message_whose_connection_another_closed_has_not_come() -> None:
    """gloo closes the connection of two ranks when one message on it is late."""
    for why in ("", LATE):
        posted = Posted(Work(Started(why)), Board())
        posted.wait()
        assert bool(posted.arrived) == (not why)


def test_two_messages_of_a_pair_never_have_one_tag() -> None:
    """These two words have the same checksum. Messages to different ranks cannot be taken for each other."""
    tags = Tags()
    assert tags.of("plumless", 1) == tags.of("plumless", 1) == tags.of("buckeroo", 2) < 2**31
    with pytest.raises(RunError, match="messages plumless and buckeroo to or from rank 1 have the same tag"):
        tags.of("buckeroo", 1)
