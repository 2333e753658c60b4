from __future__ import annotations

import warnings
from unittest.mock import Mock

import pytest

from partita.report.progress import lines, telling
from partita.telling import Note


def test_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.0, 1.0, 2.9, 3.0, 5.0])
    tell = lines(3.0, lambda: next(times))
    for word in "abcde":
        tell(word)
    assert capsys.readouterr() == ("", "partita: a\npartita: d\n")


def test_lines_become_rarer_as_time_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """A training of ten hours is no log of ten thousand lines."""
    at = [0.0]
    tell = lines(3.0, lambda: at[0])
    for second in range(0, 36_000, 2):
        at[0] = second
        tell(f"step {second}")
    told = capsys.readouterr().err.splitlines()
    assert told[:3] == [f"partita: step {second}" for second in (0, 4, 8)]
    assert 100 < len(told) < 250


def test_a_note_is_told_whatever_was_told_before(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.0, 1.0, 2.0, 3.0])
    tell = lines(3.0, lambda: next(times))
    for sentence in ("step 1", Note("rank 1 is slow"), "step 2", "step 3"):
        tell(sentence)
    assert capsys.readouterr().err == "partita: step 1\npartita: rank 1 is slow\npartita: step 3\n"


def test_a_warning_is_shown_once_however_often_filters_change(capsys: pytest.CaptureFixture[str]) -> None:
    """As in the captures and trainings of one command, each of which makes the model anew."""
    shown = list[str]()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("always")
        patch.setattr(warnings, "showwarning", lambda message, *place: shown.append(str(message)))
        for options, times in (([], 1), (["always"], 3)):
            patch.setattr("sys.warnoptions", options)
            with telling():
                for word in ("nested tensors are slow",) * 3 + ("another",):
                    warnings.warn(word, stacklevel=1)
            assert shown == ["nested tensors are slow"] * times + ["another"]
            shown.clear()


def test_only_the_first_rank_talks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with telling() as tell:
        tell("working")
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with telling() as tell:
        tell("working")
    assert capsys.readouterr() == ("", "partita: working\n")


def test_who_tells_goes_on_where_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Mock(**{"write.side_effect": BrokenPipeError(32, "Broken pipe")}))
    lines(3.0, lambda: 0.0)("working")
