"""Where answers go: streams that are closed, full or not read to their end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from partita.errors import OptionError
from partita.report.answer import KINDLY, open_streams, speaks
from partita.report.files import check_folder, check_writable

STREAMS = {
    "recipes ddp >&-": (0, ""),
    "recipes ddp --json >&-": (0, ""),
    "recipes dpd 2>&-": (2, ""),
    "recipes dpd --json <&- >&- 2>&-": (2, ""),
    "recipes dpd 2> /dev/full": (2, ""),
    "recipes ddp > /dev/full": (3, "partita: the answer cannot be written to stdout (No space left on device); "),
    "recipes --json > /dev/full": (3, "partita: the answer cannot be written to stdout (No space left on device); "),
    "recipes > >(true)": (0, ""),
    "cluster show $'\\xff.toml'": (2, r"partita: \udcff.toml cannot be read (No such file or directory)"),
}


@pytest.mark.parametrize("words", STREAMS)
def test_a_stream_that_takes_nothing_is_no_traceback(words: str) -> None:
    code, sentence = STREAMS[words]
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m partita {words}"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr[: len(sentence)]) == (code, sentence)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("locale", ["LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0", "PYTHONIOENCODING=ascii"])
def test_letters_that_the_encoding_lacks_are_question_marks(locale: str) -> None:
    """A locale of ASCII alone has Python escape bytes of names, and refuse all other letters."""
    done = subprocess.run(
        ["bash", "-c", f"{locale} {sys.executable} -m partita cluster show lab-2x2"],
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[1].startswith(b"?? node0 and 1 more alike")


def test_a_name_keeps_the_bytes_that_are_no_letters() -> None:
    open_streams()
    assert "\udcff\u2514.toml".encode("ascii", KINDLY) == b"\xff?.toml"
    assert "\udcff\ud800\u2514".encode("utf-8", KINDLY) == b"\xff?\xe2\x94\x94"


@pytest.mark.parametrize(("rank", "first"), [("", True), ("0", True), ("1", False), ("x", True), ("-1", True)])
def test_all_ranks_but_the_first_are_silent(rank: str, first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is no rank silences nobody."""
    monkeypatch.setenv("RANK", rank)
    assert speaks() is first


def test_files_that_could_not_be_written_later_are_refused_now(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for path in (tmp_path, Path("/proc/page.html"), file / "page.html"):
        with pytest.raises(OptionError, match="cannot be written"):
            check_writable(path)
    for folder in (file, file / "run", Path("/proc/run")):
        with pytest.raises(OptionError, match="give a folder that can be"):
            check_folder(folder)
    check_writable(file, tmp_path / "new", Path("/dev/null"), None)
    check_folder(tmp_path / "a" / "b")
    check_folder(None)
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_text() == "kept"
