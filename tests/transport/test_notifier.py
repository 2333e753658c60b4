"""Who waits at a Bell is woken once its wait is over, and not before."""

from __future__ import annotations

import threading
import time

import pytest

from partita.runtime.rank import Board
from partita.runtime.waits import Posted
from partita.transport.notifier import Notifier


def test_only_whose_wait_is_over_is_woken() -> None:
    notifier, done, woken = Notifier(), set[str](), list[str]()

    def wait(name: str) -> None:
        asked_by = threading.get_ident()
        times = [0]

        def over() -> bool:
            times[0] += threading.get_ident() == asked_by
            return name in done

        with notifier:
            assert notifier.wait_for(over, 5.0)
        woken.append(f"{name} looked {times[0]} times")

    threads = [threading.Thread(target=wait, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    while len(notifier.asleep) < 2:  # both are asleep
        pass
    for name in ("nothing", "b", "nothing else", "a"):
        with notifier:
            done.add(name)
            notifier.notify_all()
        if name in ("a", "b"):
            threads["ab".index(name)].join(5.0)
    assert [w.split(" looked")[0] for w in woken] == ["b", "a"]
    assert all(w.endswith("looked 2 times") for w in woken)  # before it sleeps and when it is woken


def test_who_says_what_it_waits_for_is_asked_when_that_changes() -> None:
    notifier, asked = Notifier(), list[str]()
    names: dict[str, tuple[str, ...] | None] = {"of a and b": ("a", "b"), "of c": ("c",), "of all": None}
    over = dict.fromkeys(names, False)

    def wait(who: str) -> None:
        def ask() -> bool:
            asked.append(who)
            return over[who]

        with notifier:
            assert notifier.wait_for(ask, 5.0, names[who])

    threads = [threading.Thread(target=wait, args=(who,)) for who in names]
    for n, thread in enumerate(threads):
        thread.start()
        while len(notifier.asleep) <= n:
            pass
    found = []
    for name in ("b", "c", "d", ""):
        asked.clear()
        with notifier:
            notifier.notify_all(name)
        found.append(tuple(asked))
    assert found == [("of a and b", "of all"), ("of c", "of all"), ("of all",), ("of a and b", "of c", "of all")]
    with notifier:
        over = dict.fromkeys(names, True)
        notifier.notify_all()
    for thread in threads:
        thread.join(5.0)
        assert not thread.is_alive()


def test_what_fails_to_be_asked_fails_where_it_waits() -> None:
    notifier, failed = Notifier(), list[str]()
    broken = threading.Event()

    def over() -> bool:
        if broken.is_set():
            raise ValueError("asked too much")
        return False

    def wait() -> None:
        with notifier, pytest.raises(ValueError, match="asked too much"):
            notifier.wait_for(over, 5.0)
        failed.append("yes")

    thread = threading.Thread(target=wait)
    thread.start()
    while not notifier.asleep:
        pass
    broken.set()
    with notifier:
        notifier.notify_all()
    thread.join(5.0)
    assert failed == ["yes"]


def test_a_message_that_comes_wakes_whoever_waits_for_it() -> None:
    """It is there by the time that lanes are told: nothing else may happen after it that would wake them."""

    class Late:
        def __init__(self) -> None:
            self.come = threading.Event()

        def ready(self) -> bool:
            return False

        def block(self, timeout: float) -> bool:
            return self.come.wait(timeout)

    board, message = Board(), Late()
    posted = Posted(message, board)
    posted.watch()
    found: list[bool] = []

    def wait() -> None:
        with board.changed:
            found.append(board.changed.wait_for(lambda: posted.arrived > 0, 5.0))

    thread = threading.Thread(target=wait)
    begun = time.monotonic()
    thread.start()
    while not board.changed.asleep:
        pass
    message.come.set()
    thread.join(10.0)
    assert found == [True]
    assert time.monotonic() - begun < 4.0
    assert posted.arrived == board.moment == 1


def test_a_wait_ends_with_its_time() -> None:
    notifier = Notifier()
    with notifier:
        assert not notifier.wait_for(lambda: False, 0.01)
