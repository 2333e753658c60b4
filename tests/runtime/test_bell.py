"""Who waits at a Bell is woken once its wait is over, and not before."""

from __future__ import annotations

import threading

import pytest

from partita.runtime.bell import Bell


def test_only_whose_wait_is_over_is_woken() -> None:
    bell, done, woken = Bell(), set[str](), list[str]()

    def wait(name: str) -> None:
        asked_by = threading.get_ident()
        times = [0]

        def over() -> bool:
            times[0] += threading.get_ident() == asked_by
            return name in done

        with bell:
            assert bell.wait_for(over, 5.0)
        woken.append(f"{name} looked {times[0]} times")

    threads = [threading.Thread(target=wait, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    while len(bell._waiting) < 2:  # both are asleep
        pass
    for name in ("nothing", "b", "nothing else", "a"):
        with bell:
            done.add(name)
            bell.notify_all()
        if name in ("a", "b"):
            threads["ab".index(name)].join(5.0)
    assert [w.split(" looked")[0] for w in woken] == ["b", "a"]
    assert all(w.endswith("looked 3 times") for w in woken)  # before it sleeps twice, and once when it is woken


def test_what_fails_to_be_asked_fails_where_it_waits() -> None:
    bell, failed = Bell(), list[str]()
    broken = threading.Event()

    def over() -> bool:
        if broken.is_set():
            raise ValueError("asked too much")
        return False

    def wait() -> None:
        with bell, pytest.raises(ValueError, match="asked too much"):
            bell.wait_for(over, 5.0)
        failed.append("yes")

    thread = threading.Thread(target=wait)
    thread.start()
    while not bell._waiting:
        pass
    broken.set()
    with bell:
        bell.notify_all()
    thread.join(5.0)
    assert failed == ["yes"]


def test_a_wait_ends_with_its_time() -> None:
    bell = Bell()
    with bell:
        assert not bell.wait_for(lambda: False, 0.01)
