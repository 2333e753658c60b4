"""Who has other weights than the rest, and how often ranks say which they have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from partita.runs import checksums
from partita.runs.checksums import COMPARISON_INTERVAL, COMPARISON_SHARE, FIRST, ChecksumReporter
from partita.runs.divergence import divergence_of
from partita.runtime.rank import Rank
from tests.program.test_verify import program_of


@pytest.mark.parametrize(
    ("sums", "rank", "words"),
    [
        ((7, 7, 7, 7), None, ""),
        ((7, 7, 9, 7), 2, "rank 2 differ from those of 0, 1, 3,"),
        ((7, 9, 9, 9), 0, "rank 0 differ from those of 1, 2, 3,"),
        ((7, 7, 9, 9), 3, "ranks 2, 3 differ from those of 0, 1 (or the other way round: there is no majority),"),
        ((7, 7, 8, 9), 3, "ranks 2, 3 differ from those of 0, 1 (or the other way round: there is no majority),"),
        ((7, None, 9, 7), 2, "rank 2 differ from those of 0, 3,"),
        ((None, 7, None, None), None, ""),
    ],
)
def test_those_who_are_fewer_are_named(sums: tuple[int | None, ...], rank: int | None, words: str) -> None:
    """The last of them, and among those that have said what they have."""
    program = program_of("ddp", size=4)
    (bucket,) = (bucket.name for bucket in program.trained)
    found = divergence_of(program, 5, [{} if each is None else {bucket: each} for each in sums])
    assert (found and found.rank) == rank
    assert found is None or (f"the weights of {words}" in found.sentence and "at step 5" in found.sentence)


def told(
    monkeypatch: pytest.MonkeyPatch, each: float, takes: float, rounds: int, spare: frozenset[int] = frozenset()
) -> list[int]:
    """After which steps a rank says what it has, whose rounds take `each` and whose sums `takes` seconds."""
    clock, said = [1.0], list[Any]()

    def digests(rank: Rank, among: object) -> dict[str, int]:
        clock[0] += takes
        return {"b0": 7}

    monkeypatch.setattr(checksums, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(checksums, "digests", digests)
    rank = Mock(spec=Rank, spare=spare)
    rank.step = lambda round, at: round
    reporter = ChecksumReporter(rank, said.append)
    vars(reporter)["steady"] = frozenset({"b0"})
    for round in range(rounds):
        clock[0] += each
        reporter(round)
    assert all(one["weights"] == {"b0": 7} for one in said)
    return [one["after"] for one in said]


def test_weights_are_compared_every_few_seconds_and_take_a_small_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """128 rounds of 0.12 s are the first power of two that takes 15 s; of sums that take 0.3 s, 100 s."""
    assert COMPARISON_INTERVAL == 15.0
    assert told(monkeypatch, 0.12, 0.0, 400) == [FIRST, 2 * FIRST, 128, 256, 384]
    assert COMPARISON_SHARE == 0.003
    assert told(monkeypatch, 0.5, 0.3, 800) == [FIRST, 2 * FIRST, 256, 512, 768]
    assert told(monkeypatch, 0.5, 0.0, 100, spare=frozenset({1})) == []
