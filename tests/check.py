"""`make check`: the slow tests, resumable and on record.

    python -m pytest -m slow -p tests.check

Every outcome is a line of `runs/check/TREE.jsonl`, TREE being a digest of the sources: the test, passed or failed, its
seconds, the figures that it gave to `record_property`, the commit, the machine and the moment. What has passed for
these sources is not run again, so an interrupted check goes on where it stopped; the table at the end is of them all.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from partita.cost.cache import processor_name

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ("partita", "tests", "benchmarks", "examples", "pyproject.toml", "constraints.txt")
FIGURES: Final = 60  # characters of a line of the table


def pytest_configure(config: pytest.Config) -> None:
    """One process writes; the workers of pytest-xdist leave out what has passed, and report to it."""
    writes = not hasattr(config, "workerinput")
    config.pluginmanager.register(Check(ROOT / "runs" / "check", digest(ROOT), writes), "partita-check")


class Check:
    """The record of the sources whose digest is `tree`, in `folder`, which this process `writes`, or reads only."""

    def __init__(self, folder: Path, tree: str, writes: bool = True) -> None:
        self.path, self.writes = folder / f"{tree}.jsonl", writes
        self.left_out = 0
        self.stamp = {"tree": tree, "commit": commit(ROOT), "cpu": processor_name(), "cores": os.cpu_count() or 1}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what has passed."""
        passed = {line["test"] for line in self.lines() if line["outcome"] == "passed"}
        known = [item for item in items if item.nodeid in passed]
        self.left_out = len(known)
        if known:
            items[:] = [item for item in items if item.nodeid not in passed]
            config.hook.pytest_deselected(items=known)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A check that has nothing left to run has not failed."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.left_out:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a test's line as soon as it is done: when it was called, or when setup or teardown ended it."""
        if not self.writes or (report.when != "call" and report.outcome == "passed"):
            return
        line = {
            "test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3),
            "figures": dict(report.user_properties), **self.stamp,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """A line a test, the newest outcome of each."""
        terminalreporter.section(f"check of {self.stamp['commit'] or self.stamp['tree']}")
        for row in table(self.lines()):
            terminalreporter.write_line(row)
        terminalreporter.write_line(f"record: {self.path}")

    def lines(self) -> list[dict[str, Any]]:
        """What is on record; a line that an interruption cut short does not count."""
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found


def table(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Rows of the newest outcome of each test, failures last, then the sum."""
    newest = {line["test"]: line for line in lines}
    for line in sorted(newest.values(), key=lambda line: (line["outcome"] == "failed", line["test"])):
        figures = ", ".join(f"{name} {value}" for name, value in line["figures"].items())
        yield f"{line['outcome']:8}{line['seconds']:9.1f} s  {line['test']}  {figures[:FIGURES]}".rstrip()
    outcomes = [line["outcome"] for line in newest.values()]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in sorted(set(outcomes))) or "nothing run"
    yield f"{counts} in {sum(line['seconds'] for line in newest.values()):.0f} s"


def digest(root: Path) -> str:
    """Twelve letters for the names and contents of all sources below `root`."""
    found = hashlib.sha256()
    for name in SOURCES:
        place = root / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]


def commit(root: Path) -> str:
    """The commit, with a `+` where the work tree differs from it; empty without git."""
    try:
        head, changes = (
            subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changes else "")
