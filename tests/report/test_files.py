"""Files are written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from partita.errors import OptionError
from partita.report.files import write_file


def test_what_stood_there_stays_where_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_file(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_file(path, "half of it " * 99_999 + "\ud800")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["page.html"]
    with pytest.raises(OptionError, match="cannot be written"):
        write_file(tmp_path / "nowhere" / "page.html", "text")


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "page.html")
    write_file(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page.html").read_text() == "text"


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "text")
    reader.join()
    assert read == ["text"]
