"""The file of measured times."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.cost.cache import read_cache, write_cache


def test_times_are_kept_relative_to_the_reference(tmp_path: Path) -> None:
    place = tmp_path / "made" / "times.json"
    write_cache(place, {"mm": 3.0, "partita.opaque(a model)": 1.0}, 2.0)
    write_cache(place, {"add": 1.0}, 2.0)
    assert read_cache(place) == {"mm": 1.5, "add": 0.5}


@pytest.mark.parametrize("text", ["", "[]", '{"mm": "soon"}', '{"mm": null}', '{"mm": [1]}'])
def test_a_file_of_anything_else_is_empty(tmp_path: Path, text: str) -> None:
    place = tmp_path / "times.json"
    place.write_text(text)
    assert read_cache(place) == {}


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
