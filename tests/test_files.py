from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from partita.files import atomically


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
