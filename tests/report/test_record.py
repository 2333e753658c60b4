from __future__ import annotations

import json
import random
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from partita.cost.datasheet import datasheet_costs
from partita.errors import OptionError
from partita.report.comparison import Comparison, Row, verdict
from partita.report.environment import command_line, commit_of, environment
from partita.report.page import comparison_page
from partita.report.record import read_record, write_record, write_run
from partita.simulator.simulate import simulate
from tests.places import changed, places
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
        ("", "is not a run's record (it is no JSON object: Expecting value"),
        ("{}", "is not a run's record (schema: "),
        ('{"rows": 3}', "is not a run's record"),
        ("[1, 2]", "is not a run's record (it is no JSON object)"),
        ('{"schema": 1, "rows": [], "task": Infinity, "sha256": "x"}', "it has Infinity, which is no number of JSON"),
        ('{"schema": 1, "rows": [], "schema": 1}', "it says 'schema' twice"),
        ('{"schema": 1, "rows": [1e999]}', "it has the number 1e999, beyond what a float holds"),
        ('{"schema": 1, "rows": [18446744073709551616]}', "it has a number of 65 bits"),
        ("[" * 100_000, "its brackets are nested too deep"),
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


Place = tuple[str | int, ...]
RAGGED: list[tuple[Place, Any, str]] = [  # of the fifth row of `nine`: what stands there instead, and what is said
    (("predicted", "memory_parts", 1, 5), [1, 2], "memory_parts.1.5: it has 2 parts, and not 7"),
    (("predicted", "memory_parts", 1), [], "memory_parts.1: it has 0 moments, memory_over_time 80"),
    (("predicted", "memory_parts"), [[]], "memory_parts: it is of 1 ranks, memory_over_time of 4"),
    (("predicted", "memory_over_time", 0, 3, 1), 2**63, "memory_over_time.0.3: 9223372036854775808 is not from"),
    (("measured", "spans", 2, "kind"), "Comptue", "spans.2.kind: there is no instruction of kind 'Comptue'"),
    (("measured", "spans", 2, "end"), "NaN", "measured.spans.2: it lasts from "),
    (("measured", "spans", 2, "rank"), -1, "spans.2.rank: -1 is not from 0"),
    (("measured", "step_seconds"), 0, "measured.step_seconds: a step of 0 s is none"),
    (("measured", "step_seconds"), 1e-300, "measured.step_seconds: 1e-300 is not from"),
    (("measured", "high"), 0, "is above high, 0"),
    (("measured", "origin"), "guessed", "origin: it is 'guessed', and not simulated or measured"),
    (("measured", "breakdown", "idle"), "Infinity", "breakdown.idle: inf is not from"),
    (("predicted", "traffic", 0, 1), -4, "traffic.0: -4 is not from 0"),
    (("naive", "sum"), -1.0, "naive.sum: -1 is not from"),
    (("over",), [[0.0, 1.0]], "over.0: 0 is none that a link or a step has"),
]


@pytest.mark.parametrize(("place", "value", "said"), RAGGED)
def test_what_no_comparison_has_is_named(tmp_path: Path, place: Place, value: Any, said: str) -> None:
    write_run(nine(), tmp_path)
    record = json.loads((tmp_path / "report.json").read_text())
    del record["sha256"]
    inner, last = record["rows"][4], place[-1]
    for key in place[:-1]:
        inner = inner[key]
    inner[last] = value
    (tmp_path / "report.json").write_text(json.dumps(record))
    with pytest.raises(OptionError) as caught:
        read_record(tmp_path)
    assert f"report.json is not a run's record (rows.4.{place[0]}" in str(caught.value)
    assert said in str(caught.value)


VALUES: tuple[Any, ...] = (
    None, -1, 0, 2**62, 1.5, 1e300, 5e-324, "NaN", "-Infinity", "x", "\x1b[2J", [], {}, [[]], [1, 2], [0, 0, 0],
)  # fmt: skip


def test_a_record_with_any_value_in_any_place_is_refused_or_drawn(tmp_path: Path) -> None:
    write_run(nine(repeats=2, rounds=1, instructions=1), tmp_path)
    record, draw, drawn = json.loads((tmp_path / "report.json").read_text()), random.Random(1), 0
    del record["sha256"]
    record["rows"] = record["rows"][4:7]
    for side in ("predicted", "measured"):
        for name in ("spans", "memory_over_time", "memory_parts"):
            record["rows"][0][side][name] = record["rows"][0][side][name][:3]
    by_kind = dict[tuple[Any, ...], list[Any]]()  # so that many spans are no more than one name
    for place in places(record):
        by_kind.setdefault(tuple(0 if isinstance(key, int) else key for key in place), []).append(place)
    for _ in range(60):
        place = draw.choice(by_kind[draw.choice(list(by_kind))])
        (tmp_path / "report.json").write_text(json.dumps(changed(record, place, draw, VALUES)))
        with suppress(OptionError):
            found = read_record(tmp_path)
            comparison_page(found)
            verdict(found)
            drawn += 1
    assert 8 < drawn < 40


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
