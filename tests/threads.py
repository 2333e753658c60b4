"""Ranks as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


def each_in_a_thread(ranks: Iterable[int], run: Callable[[int], None]) -> None:
    """Calls `run` for every rank at once; fails with what any of them raised."""
    ended: dict[int, bool | BaseException] = {}

    def carry(rank: int) -> None:
        try:
            run(rank)
            ended[rank] = True
        except BaseException as error:
            ended[rank] = error

    threads = {rank: threading.Thread(target=carry, args=(rank,)) for rank in ranks}
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join()
    assert ended == dict.fromkeys(threads, True)
