from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from partita.files import atomically, write_whole


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a.json"
    with atomically(path, durable=durable) as fresh:
        fresh.write_text("old")
    with suppress(ZeroDivisionError), atomically(path, durable=durable) as fresh:
        fresh.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_writers_left_is_swept_and_not_what_others_write(tmp_path: Path) -> None:
    path, (wait, go), (hear, say) = tmp_path / "a.json", os.pipe(), os.pipe()

    def writer(end: str) -> int:
        """A process that writes half, says so, waits to go on and then writes the rest, or dies."""
        if child := os.fork():
            assert os.read(hear, 1)
            return child
        os.close(go)  # so that a test that fails ends this one too
        with suppress(BaseException), atomically(path) as fresh:
            fresh.write_text("half")
            os.write(say, b".")
            os.read(wait, 1)
            if not end:
                os.kill(os.getpid(), signal.SIGKILL)
            fresh.write_text(end)
        os._exit(0)

    dead = writer("")
    os.write(go, b".")
    os.waitpid(dead, 0)
    other, alive = tmp_path / ".a.json.bak", writer("theirs")
    other.write_text("not a writer's")
    assert {each.name for each in tmp_path.iterdir()} == {".a.json.bak", f".a.json.{alive}"}
    write_whole(path, "ours")
    assert path.read_text() == "ours"
    os.write(go, b".")
    os.waitpid(alive, 0)
    assert path.read_text() == "theirs"
    assert {each.name for each in tmp_path.iterdir()} == {".a.json.bak", "a.json"}
    for each in (wait, go, hear, say):
        os.close(each)


def test_a_link_that_lies_where_a_file_would_be_made_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "a.json", tmp_path / "other"
    other.write_text("mine")
    (tmp_path / f".a.json.{os.getpid()}").symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"), atomically(path) as fresh:
        fresh.write_text("new")
    assert other.read_text() == "mine"
