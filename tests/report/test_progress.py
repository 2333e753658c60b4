from __future__ import annotations

import pytest

from partita.report.progress import lines, telling


def test_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.0, 1.0, 2.9, 3.0, 5.0])
    tell = lines(3.0, lambda: next(times))
    for word in "abcde":
        tell(word)
    assert capsys.readouterr() == ("", "partita: a\npartita: d\n")


def test_only_the_first_rank_talks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with telling() as tell:
        tell("working")
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with telling() as tell:
        tell("working")
    assert capsys.readouterr() == ("", "partita: working\n")
