"""The file of measured times."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from unittest.mock import Mock

import pytest

from partita.cost.cache import cache_folder, read_cache, write_cache


def test_times_are_kept_relative_to_the_reference(tmp_path: Path) -> None:
    place = tmp_path / "made" / "times.json"
    write_cache(place, {"mm": 3.0, "partita.opaque(a model)": 1.0}, 2.0)
    write_cache(place, {"add": 1.0}, 2.0)
    assert read_cache(place) == {"mm": 1.5, "add": 0.5}


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"mm": "soon"}', '{"mm": null}', '{"mm": [1]}', '{"mm": NaN}', '{"mm": -1.0}', '{"mm": 1.5}',
     '{"mm": 1%s}' % ("0" * 400), "[" * 100_000],
    ids=range(10),
)  # fmt: skip
def test_a_file_of_anything_else_is_empty(tmp_path: Path, text: str) -> None:
    """Also one that could be read: it says nothing of who measured it."""
    place = tmp_path / "times.json"
    place.write_text(text)
    assert read_cache(place) == {}


def test_a_file_in_which_a_digit_has_changed_is_empty(tmp_path: Path) -> None:
    place = tmp_path / "times.json"
    write_cache(place, {"mm": 3.0}, 2.0)
    place.write_text(place.read_text().replace("1.5", "7.5"))
    assert read_cache(place) == {}


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "times.json")
    assert read_cache(tmp_path / "times.json") == {}


@pytest.mark.parametrize("given", ["", "cache"])
def test_only_a_path_from_the_root_is_taken_for_the_place_of_caches(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files would lie about in whatever folder a command was started in."""
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/partita"


def test_a_user_without_a_home_keeps_nothing_or_what_is_where_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_cache(cache_folder() / "times.json", {"mm": 3.0}, 2.0)
    assert read_cache(tmp_path / "partita/times.json") == {"mm": 1.5}
    monkeypatch.delenv("XDG_CACHE_HOME")
    write_cache(cache_folder() / "times.json", {"mm": 3.0}, 2.0)
    assert read_cache(cache_folder() / "times.json") == {}


def test_what_could_not_be_written_whole_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would leave a file of its own."""

    def full(path: Path, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    write_cache(tmp_path / "times.json", {"mm": 3.0}, 2.0)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    """Minutes of timing are not lost with it."""
    (tmp_path / "file").touch()
    write_cache(tmp_path / "file" / "times.json", {"mm": 3.0}, 2.0)
    assert read_cache(tmp_path / "file" / "times.json") == {}
