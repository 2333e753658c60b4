"""What a rank says while it runs, and what is told of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from partita.runs import reporting
from partita.runs.reporting import Progress, Reporter
from partita.runtime.pace import Pace
from partita.runtime.rank import Rank
from partita.telling import Note


def rank_at(step: int, device: str = "cpu") -> Any:
    rank = Mock(spec=Rank, ends=[], losses={}, weights={}, device=device, pace=Pace())
    rank.step = lambda round, at: step + round + at
    return rank


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(reporting, "EVERY", -1.0)
    return []


def test_a_rank_says_the_mean_of_its_part_since_it_said_so_last(said: list[dict[str, Any]]) -> None:
    """Of rounds that have ended; also of what a checkpoint has taken meanwhile."""
    rank, taken = rank_at(100), [(99, 7.0, 0.0)]
    reporter = Reporter(rank, 0, 9, said.append, taken)
    rank.losses[100] = torch.tensor(4.0)
    reporter(0)
    rank.ends += [0, 0]
    rank.losses |= {101: 2.0, 102: 50.0}
    reporter(2)
    taken += [(100, 4.0, 0.0), (101, 2.0, 0.0), (102, 50.0, 0.0)]
    rank.losses, rank.ends = {103: 8.0}, [0, 0, 0, 0]
    reporter(4)
    reporter(4)
    assert [one.get("loss") for one in said] == [None, (3.0, 0.0), (29.0, 0.0), None]


def test_a_rank_without_losses_says_so_and_a_card_says_nothing(said: list[dict[str, Any]]) -> None:
    for rank in (rank_at(0), rank_at(0, device="cuda:0")):
        reporter = Reporter(rank, 0, 9, said.append)
        rank.ends.append(0)
        reporter(1)
    assert [one.get("loss") for one in said] == [(0.0, 0.0), None]


def test_a_loss_is_told_once_all_ranks_have_said_their_part() -> None:
    progress = Progress("ddp", 3000, 2)
    assert progress.hear(0, {"step": 0}, 10.0) == "ddp: step 1 of 3000"
    assert progress.hear(1, {"step": 4, "loss": [1.25, 0.0]}, 10.1) == ""
    assert progress.hear(0, {"step": 50}, 10.5) == "ddp: step 51 of 3000, 10 ms a step, 30 s left"
    told = progress.hear(0, {"step": 100, "loss": [1.0, 0.0]}, 11.0)
    assert told == "ddp: step 101 of 3000, loss 2.25, 10 ms a step, 29 s left"


def test_parts_with_weights_are_a_mean_over_them() -> None:
    progress = Progress("ddp", 9, 2)
    progress.hear(1, {"step": 1, "loss": [30.0, 10.0]}, 0.0)
    assert "loss 2," in progress.hear(0, {"step": 1, "loss": [30.0, 20.0]}, 0.0) + ","


def test_the_time_of_a_step_is_that_of_the_last_seconds() -> None:
    """Not that of the first steps, which compile; and of one step where that takes longer."""
    progress = Progress("ddp", 10**6, 1)
    for now, step in [(0.0, 0), (100.0, 1), (105.0, 41), (111.0, 111)]:
        told = progress.hear(0, {"step": step}, now)
    assert "100 ms a step" in told
    for now, step in [(200.0, 112), (300.0, 113)]:
        told = progress.hear(0, {"step": step}, now)
    assert "1.67 min a step" in told


def test_a_step_that_is_said_twice_is_no_slower() -> None:
    """And the step after the last one is not counted."""
    progress = Progress("ddp", 250, 1)
    for now, step in [(0.0, 0), (0.5, 50), (9.0, 50), (9.5, 50)]:
        told = progress.hear(0, {"step": step}, now)
    assert told == "ddp: step 51 of 250, 10 ms a step, 2 s left"
    assert progress.hear(0, {"step": 250}, 10.0).startswith("ddp: step 250 of 250, ")


def test_parts_and_weights_are_means_over_the_same_steps(said: list[dict[str, Any]]) -> None:
    rank = rank_at(0)
    reporter = Reporter(rank, 0, 9, said.append)
    rank.ends, rank.losses, rank.weights = [0, 0], {0: 30.0, 1: 50.0}, {0: 10.0, 1: 30.0}
    reporter(2)
    assert said[0]["loss"] == (40.0, 20.0)


def test_a_pace_is_taken_over_ten_seconds_and_two_rounds(
    said: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first time on that somebody asks."""
    rank, clock = rank_at(0), [0.0]
    monkeypatch.setattr(reporting, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    reporter = Reporter(rank, 0, 9, said.append)
    for now, round in [(100.0, 1), (111.0, 2), (121.0, 4), (122.0, 9), (132.0, 9), (133.0, 13)]:
        rank.pace.note("Compute", round, "F", float(round))
        clock[0] = now
        reporter(round)
    assert [one.get("pace") for one in said] == [
        None, None, {"round": 7.0, "taken": {"F": 1.0}}, None, {"round": 2.2, "taken": {"F": 4.0}}, None,
    ]  # fmt: skip


def test_a_held_out_loss_is_told_when_it_is_found_and_from_then_on() -> None:
    going = Progress("ddp", 100, 1)
    assert going.hear(0, {"evaluating": 20}, 0.0) == "ddp: computing the held-out loss after step 20"
    found = going.hear(0, {"held_out": [20, 0.51234]}, 1.0)
    assert found == "ddp: held-out loss 0.5123 after step 20"
    assert isinstance(found, Note)  # else a spinner's next word, or a log's few seconds, would swallow it
    assert going.hear(0, {"step": 20}, 2.0) == "ddp: step 21 of 100, held out 0.5123"
