"""Messages whose other end is lost and played by another: what that has is not sent again, what it lacks is."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import torch

from partita.errors import RunError
from partita.recipes.catalogue import call
from partita.runs.failover import Failover
from partita.runs.session import Session
from partita.runtime.leg import legs
from partita.transport.channel import Channel
from partita.transport.ways import Ways
from tests.captures import capture
from tests.small import cluster_of, perceptron

KEY, PATIENCE = "b0.up", 5.0


@dataclass
class Sent:
    """A message of a link: it is over, breaks, or takes longer than anybody waits."""

    how: str
    waited: list[timedelta] = field(default_factory=list)

    def wait(self, timeout: timedelta) -> None:
        self.waited.append(timeout)
        if self.how == "breaks":
            raise RuntimeError("Connection closed by peer")


@dataclass
class Group:
    """A link on which each message ends as `how` says; `came` is what was sent on it."""

    how: str = "ends"
    came: list[float] = field(default_factory=list)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Sent:
        if self.how == "refuses":
            raise RuntimeError("Connection closed by peer")
        self.came.append(tensors[0].item())
        return Sent(self.how)


def led(channel: Channel, route: tuple[int, int], group: Any, there: dict[str, int]) -> Group:
    channel.turn(route)
    channel.hear(route, there)
    channel.open(route, Ways(group, group), PATIENCE)
    return group


@pytest.mark.parametrize(("has", "again"), [(0, [3.0]), (1, [3.0]), (3, [3.0]), (4, [])])
def test_what_the_new_end_lacks_is_sent_again_and_nothing_else(has: int, again: list[float]) -> None:
    """FT-02: of what was sent last, since nobody was answered for it."""
    channel = Channel(0, 3, lambda process: None)
    first = led(channel, (0, 3), Group(), {})
    for round in range(4):
        assert channel.start("send", torch.tensor(float(round)), KEY, round).block(PATIENCE)
    assert first.came == [0.0, 1.0, 2.0, 3.0]
    assert led(channel, (0, 4), Group(), {KEY: has}).came == again
    assert channel.crossed == {KEY: 4}


@pytest.mark.parametrize("how", ["breaks", "refuses"])
@pytest.mark.parametrize(("has", "again"), [(0, [7.0]), (1, [])])
def test_a_message_on_its_way_goes_on_by_the_new_way(how: str, has: int, again: list[float]) -> None:
    """It tells whose process is gone, and is begun anew, unless the new end has what it brings."""
    gone, fresh = list[int](), Group()

    def dies(process: int) -> None:
        gone.append(process)
        led(channel, (0, 4), fresh, {KEY: has})

    channel = Channel(0, 3, dies)
    led(channel, (0, 3), Group(how), {})
    assert channel.start("send", torch.tensor(7.0), KEY, 0).block(PATIENCE)
    assert gone == [3]
    assert fresh.came == again
    assert channel.crossed == {KEY: 1}


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(("has", "sent"), [(0, [7.0]), (1, [])])
def test_what_is_begun_is_sent_once_somebody_is_there_who_lacks_it(linked: bool, has: int, sent: list[float]) -> None:
    """Before the first link or after it: one who has taken over may be behind the other end."""
    channel, group, begun = Channel(0, 3, lambda process: None), Group(), list[Any]()

    def begin() -> None:
        begun.append(channel.start("send", torch.tensor(7.0), KEY, 0))

    channel.turn((0, 3))
    if not linked:
        begin()
    channel.hear((0, 3), {KEY: has})
    channel.open((0, 3), Ways(group, group), PATIENCE)  # type: ignore[arg-type]
    if linked:
        begin()
    assert begun[0].block(PATIENCE)
    assert group.came == sent
    assert channel.crossed == {KEY: 1}


def test_nothing_crosses_while_nobody_plays_the_other_part() -> None:
    channel = Channel(0, 3, lambda process: None)
    led(channel, (0, 3), Group("breaks"), {})
    assert not channel.start("send", torch.tensor(7.0), KEY, 0).block(0.01)
    assert channel.crossed == {}


def test_what_ends_on_a_way_that_is_none_any_more_does_not_count() -> None:
    """The other end has said by then that it lacks it."""
    channel = Channel(0, 3, lambda process: None)
    led(channel, (0, 3), Group(), {})
    message = channel.start("send", torch.tensor(7.0), KEY, 0)
    assert channel.turn((0, 4)) == {}
    assert not message.block(0.01)
    fresh = Group()
    channel.hear((0, 4), {KEY: 0})
    channel.open((0, 4), Ways(fresh, fresh), PATIENCE)
    assert message.block(PATIENCE)
    assert fresh.came == [7.0]


@pytest.mark.parametrize("left", [4e-4, -4e-4])
def test_the_last_fraction_of_a_millisecond_is_a_limit_too(left: float) -> None:
    """torch.distributed counts whole milliseconds, and takes none for no limit: it would wait for its own."""
    channel = Channel(1, 0, lambda process: None)
    led(channel, (1, 0), Group(), {})
    message = channel.start("send", torch.tensor([7.0]), KEY, 0)
    assert message.block(left)
    assert message.work.waited == [timedelta(milliseconds=1)]


def test_who_takes_over_waits_no_longer_than_its_run() -> None:
    """What never comes ends as any message that never comes."""
    task, machines = perceptron(), cluster_of(1)
    graph = capture(task)
    (leg,) = legs(graph, call("single", graph, machines), machines, 3)
    failover = Failover(Session(task, graph, machines, 0, 0, 1, 0.02), frozenset(), leg, 0)
    failover.until(lambda: True, "nothing")
    with pytest.raises(RunError, match=r"rank 0 still waited after 0\.02 s for its own part to begin"):
        failover.until(lambda: False, "its own part to begin")
    failover.done.set()
    with pytest.raises(RunError, match="rank 0 still waited when its run was over for its own part to begin"):
        failover.until(lambda: False, "its own part to begin")


def test_rounds_that_end_in_another_order_are_counted_by_the_last() -> None:
    channel = Channel(0, 3, lambda process: None)
    led(channel, (0, 3), Group(), {})
    messages = [channel.start("send", torch.tensor(float(round)), KEY, round) for round in range(2)]
    assert all(message.block(PATIENCE) for message in reversed(messages))
    assert channel.crossed == {KEY: 2}


def test_what_the_new_end_does_not_name_it_does_not_want() -> None:
    """One that has left names nothing."""
    channel = Channel(0, 3, lambda process: None)
    led(channel, (0, 3), Group(), {})
    assert channel.start("send", torch.tensor(7.0), KEY, 0).block(PATIENCE)
    assert led(channel, (0, 4), Group(), {}).came == []


def test_nothing_goes_by_a_route_that_is_none_any_more_nor_before_both_ends_have_met() -> None:
    """What was said for another route is no word for this one; a link that was made too late is none."""
    channel, group = Channel(0, 3, lambda process: None), Group()
    ways = Ways(group, group)
    led(channel, (0, 3), Group(), {KEY: 0})
    channel.turn((0, 4))
    channel.open((0, 4), ways, PATIENCE)
    channel.hear((0, 3), {KEY: 0})
    channel.open((0, 4), ways, PATIENCE)
    channel.hear((0, 4), {KEY: 0})
    channel.open((0, 3), ways, PATIENCE)
    message = channel.start("send", torch.tensor(7.0), KEY, 0)
    assert not message.block(0.01)
    assert group.came == []
    channel.open((0, 4), ways, PATIENCE)
    assert message.block(PATIENCE)
    assert group.came == [7.0]


def test_a_loss_that_is_noticed_twice_takes_one_process_and_a_way_is_kept_for_those_on_it() -> None:
    gone = list[int]()
    channel = Channel(0, 3, gone.append)
    first = led(channel, (0, 3), Group(), {})
    epoch = channel.epoch
    channel.lose(epoch)
    channel.lose(epoch)
    assert gone == [3]
    assert [ways.up for ways in channel.spent] == [first]
    second = led(channel, (0, 4), Group(), {})
    channel.lose(epoch)
    assert gone == [3]
    assert channel.start("send", torch.tensor(7.0), KEY, 0).block(PATIENCE)
    assert second.came == [7.0]


@dataclass
class Turning(Group):
    """A link whose messages end once the route has changed, or take longer than anybody waits."""

    turn: Any = None

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Sent:
        sent = super().send(tensors, to, tag)
        sent.wait = lambda timeout: self.turn(timeout)  # type: ignore[method-assign]
        return sent


def test_what_ends_while_the_way_changes_is_sent_by_the_next() -> None:
    """The other end may have told already that it lacks it."""
    channel, fresh = Channel(0, 3, lambda process: None), Group()
    led(channel, (0, 3), Turning(turn=lambda timeout: led(channel, (0, 4), fresh, {KEY: 0})), {})
    assert channel.start("send", torch.tensor(7.0), KEY, 0).block(PATIENCE)
    assert fresh.came == [7.0]


def test_who_is_late_is_not_gone() -> None:
    gone = list[int]()

    def late(timeout: timedelta) -> None:
        time.sleep(timeout.total_seconds())
        raise RuntimeError("Timed out waiting 1ms for send operation to complete")

    channel = Channel(0, 3, gone.append)
    led(channel, (0, 3), Turning(turn=late), {})
    assert not channel.start("send", torch.tensor(7.0), KEY, 0).block(0.02)
    assert gone == []


def test_who_waits_for_a_way_is_woken_when_there_is_one() -> None:
    channel, group, over = Channel(0, 3, lambda process: None), Group(), list[bool]()
    channel.turn((0, 3))
    message = channel.start("send", torch.tensor(7.0), KEY, 0)
    thread = threading.Thread(target=lambda: over.append(message.block(600.0)), daemon=True)
    thread.start()
    time.sleep(0.1)  # it is asleep by then
    channel.hear((0, 3), {KEY: 0})
    time.sleep(0.1)  # that has woken it, too soon
    channel.open((0, 3), Ways(group, group), PATIENCE)
    thread.join(30.0)
    assert over == [True]
