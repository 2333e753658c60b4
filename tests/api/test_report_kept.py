"""A run that is called finished has its report, wherever it is killed; if there was no room, after `--resume`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from partita import api
from partita.api import training
from partita.errors import OptionError
from partita.report.record import read_record
from partita.runs import directory

TASK = f"{Path(__file__).parents[1] / 'processes/mortal.py'}:mortal"


class Killed(BaseException):
    """What nothing catches."""


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the rank, as under torchrun."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


def train(out: Path, steps: int, *, resume: bool = False) -> None:
    api.train(TASK, "single", "local:1", steps=steps, out=out, resume=resume, checkpoint_every=2)


def steps_of(out: Path) -> tuple[int, int]:
    """Of what is called finished, and of what is reported: losses, of which there is one a step."""
    (row,) = read_record(out).rows
    return json.loads((out / "result.json").read_text())["steps"], len(row.loss)


def test_a_run_is_called_finished_behind_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two, it goes on, and then has both."""
    train(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(directory, "write_result", raising(Killed()))
        with pytest.raises(Killed):
            train(tmp_path, 4, resume=True)
    train(tmp_path, 4, resume=True)
    assert steps_of(tmp_path) == (4, 4)


def test_a_report_without_room_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody trains once more for it, nor takes that of fewer steps for it."""
    train(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(training, "write_run", raising(OptionError("report.json cannot be written")))
        with pytest.raises(OptionError, match=r"report.json cannot be written"):
            train(tmp_path, 4, resume=True)
        patch.setattr(training, "write_run", raising(Killed()))
        with pytest.raises(Killed):
            train(tmp_path, 4, resume=True)
    written = (tmp_path / "model.safetensors").stat().st_mtime_ns
    train(tmp_path, 4, resume=True)
    assert steps_of(tmp_path) == (4, 4)
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == written


def test_a_rank_refuses_a_directory_before_its_step_is_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, 2)
    monkeypatch.setattr(training, "graph_of", raising(Killed()))
    with pytest.raises(OptionError, match="give --resume to go on with it"):
        train(tmp_path, 4)
    with pytest.raises(OptionError, match="is at step 2 already"):
        train(tmp_path, 1, resume=True)


def raising(error: BaseException) -> Any:
    def act(*arguments: Any, **named: Any) -> None:
        raise error

    return act
