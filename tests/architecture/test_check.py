"""What `make check` promises: passed tests are not run again, failed ones are, and all stand on record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.check import Check, digest, table

pytest_plugins = ["pytester"]

TESTS = """
import pathlib

def test_good(record_property):
    record_property("gap", 0.25)
    with open("ran", "a") as file:
        file.write("good ")

def test_bad():
    with open("ran", "a") as file:
        file.write("bad ")
    assert pathlib.Path("mended").exists()
"""


def test_a_check_goes_on_where_it_stopped(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    record, ran = pytester.path / "runs", pytester.path / "ran"

    def check() -> int:
        return int(pytester.inline_run("-p", "no:cacheprovider", plugins=[Check(record, "tree")]).ret)

    assert check() == pytest.ExitCode.TESTS_FAILED
    with (record / "tree.jsonl").open("a") as file:
        file.write('{"test": "cut sho\n')
    (pytester.path / "mended").touch()
    assert check() == pytest.ExitCode.OK
    assert check() == pytest.ExitCode.OK
    assert ran.read_text() == "good bad bad "
    lines = [json.loads(line) for line in (record / "tree.jsonl").read_text().splitlines() if line.endswith("}")]
    assert [line["outcome"] for line in lines] == ["passed", "failed", "passed"]
    assert lines[0]["figures"] == {"gap": 0.25}
    assert all({"commit", "cpu", "cores", "date", "seconds"} <= set(line) for line in lines)
    assert list(table(lines))[-1].startswith("2 passed in ")


def test_other_sources_are_another_tree(tmp_path: Path) -> None:
    (tmp_path / "partita").mkdir()
    source = tmp_path / "partita" / "a.py"
    source.write_text("one")
    before = digest(tmp_path)
    (tmp_path / "README.md").write_text("not a source")
    assert digest(tmp_path) == before
    source.write_text("two")
    assert digest(tmp_path) != before
