from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from partita.cost.datasheet import datasheet_costs
from partita.errors import OptionError
from partita.report.comparison import Comparison, Row
from partita.report.environment import command_line, commit_of, environment
from partita.report.page import comparison_page
from partita.report.record import read_record, write_record, write_run
from partita.simulator.simulate import simulate
from tests.programs import program_by
from tests.report.nine import nine
from tests.report.timelines import comparison
from tests.small import cluster_of, two_layers


def test_what_is_kept_reads_back_equal(tmp_path: Path) -> None:
    write_run(nine(), tmp_path / "a" / "run")
    assert read_record(tmp_path / "a" / "run") == nine()
    assert read_record(tmp_path / "a" / "run" / "report.json") == nine()


def test_a_simulated_timeline_is_kept(tmp_path: Path) -> None:
    graph, machines = two_layers(), cluster_of(2)
    program = program_by("ddp", graph, machines)
    row = Row("ddp", simulate(program, datasheet_costs(graph, machines, (4,))))
    write_record(Comparison((row,), "two-layers", machines), tmp_path / "r")
    kept = read_record(tmp_path / "r").rows[0].predicted
    assert kept is not None
    assert row.predicted is not None
    assert kept.spans == tuple(row.predicted.spans)


def test_losses_that_are_no_numbers_are_kept(tmp_path: Path) -> None:
    write_record(comparison(), tmp_path / "r")
    assert str(read_record(tmp_path / "r").rows[0].loss[2][2]) == "nan"
    assert comparison_page(read_record(tmp_path / "r")) == comparison_page(comparison())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a run's record (it is no JSON object)"),
        ("{}", "is not a run's record (schema: "),
        ('{"rows": 3}', "is not a run's record"),
        ("[1, 2]", "is not a run's record (it is no JSON object)"),
        ('{"schema": 1, "rows": [], "task": Infinity, "sha256": "x"}', "is not a run's record"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(OptionError) as caught:
        read_record(tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="give a folder that"):
        read_record(tmp_path / "absent")
    with pytest.raises(OptionError, match="cannot be made"):
        write_run(nine(), Path("/dev/null/x"))


def test_another_schema_is_refused(tmp_path: Path) -> None:
    write_run(nine(), tmp_path)
    path = tmp_path / "report.json"
    path.write_text(path.read_text().replace('"schema":1', '"schema":2,"more":[]'))
    with pytest.raises(OptionError, match="has schema 2"):
        read_record(tmp_path)


@pytest.mark.parametrize(("was", "now"), [('"step_seconds":', '"step_seconds":1'), ("ddp", "dpd"), ("sha256", "sha25")])
def test_damage_is_refused(tmp_path: Path, was: str, now: str) -> None:
    write_run(nine(), tmp_path)
    path = tmp_path / "report.json"
    path.write_text(path.read_text().replace(was, now, 1))
    with pytest.raises(OptionError, match=r"is damaged|is not a run's record"):
        read_record(tmp_path)


def test_a_record_by_another_hand_is_read(tmp_path: Path) -> None:
    write_run(nine(), tmp_path)
    path = tmp_path / "report.json"
    record = json.loads(path.read_text())
    assert len(record.pop("sha256")) == 64
    path.write_text(json.dumps(record, indent=2))
    assert read_record(tmp_path) == nine()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["/x/bin/partita", "compare", "t", "--plans", "a,b(c=1)"], "partita compare t --plans 'a,b(c=1)'"),
        (["/x/partita/__main__.py", "compare"], "partita compare"),
        (["examples/demo.py", "lab-2x2"], "python examples/demo.py lab-2x2"),
        ([""], "python -"),
    ],
)
def test_the_command_can_be_typed_again(argv: list[str], said: str) -> None:
    assert command_line(argv) == said


def test_the_environment_names_machine_and_versions() -> None:
    found = environment()
    assert {"python", "partita", "torch"} <= dict(found.versions).keys()
    assert found.date.endswith("UTC")
    assert "cores" in found.machine


def test_the_commit_is_that_of_the_folder_itself(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    assert commit_of(tmp_path) == ""
    git("init", "-q")
    assert commit_of(tmp_path) == ""
    (tmp_path / "inner").mkdir()
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "one")
    clean = commit_of(tmp_path)
    assert len(clean) == 12
    assert commit_of(tmp_path / "inner") == ""
    (tmp_path / "file").write_text("2")
    assert commit_of(tmp_path) == f"{clean}, with changes"
