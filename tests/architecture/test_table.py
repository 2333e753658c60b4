"""The page of the catalogue says what is so: its tests are there, each entry once, and nothing is passed over."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from partita.recipes.catalogue import RECIPES
from partita.wire.codec import SPECS

ROOT: Final = Path(__file__).parents[2]
ENTRY: Final = re.compile(r"[A-Z]{2}-\d{2}")
NAMED: Final = re.compile(r"`([a-z_]+/test_[a-z0-9_]+::test_[a-z0-9_]+)`")


@dataclass(frozen=True)
class Row:
    entry: str
    where: str
    tests: tuple[str, ...]
    missing: str


def rows_of(page: str) -> list[Row]:
    """The rows of the table, as they stand there."""
    found = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if ENTRY.fullmatch(cells[0]):
            assert len(cells) == 5, f"{cells[0]} has {len(cells)} cells instead of 5"
            found.append(Row(cells[0], cells[2], tuple(NAMED.findall(cells[3])), cells[4]))
    return found


@cache
def names_there() -> frozenset[str]:
    """`folder/file::function` of every test."""
    found = set()
    for path in (ROOT / "tests").glob("*/test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.add(f"{path.parent.name}/{path.stem}::{node.name}")
    return frozenset(found)


def faults(rows: list[Row], there: frozenset[str]) -> list[str]:
    """What a table says that is not so."""
    entries = [row.entry for row in rows]
    found = [
        f"{entry} stands {entries.count(entry)} times" for entry in dict.fromkeys(entries) if entries.count(entry) > 1
    ]
    for row in rows:
        found += [f"{row.entry}: there is no test {name}" for name in row.tests if name not in there]
        if not row.tests and not row.missing:
            found.append(f"{row.entry}: no test, and nothing says what is missing")
    return found


def page() -> list[Row]:
    return rows_of((ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8"))


def test_every_named_test_is_there_and_every_entry_once() -> None:
    assert not faults(page(), names_there())


def test_what_names_an_entry_has_its_row() -> None:
    """Each recipe stands in the row of every entry that it reproduces, each codec in that of its own."""
    rows = {row.entry: row.where for row in page()}
    wanted = [(entry, f"`{name}") for name, recipe in RECIPES.items() for entry in recipe.catalogue]
    wanted += [(spec.entry, f"codec={name}") for name, spec in SPECS.items() if ENTRY.fullmatch(spec.entry)]
    wrong = [
        f"docs/catalogue.md: {name} belongs in the row of {entry}"
        for entry, name in wanted
        if name not in rows.get(entry, "")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("lines", "caught"),
    [
        (("| DP-01 | a | `single` | `oracles/test_oracle::test_fifty_steps_are_the_formulas` | |",), 0),
        (("| DP-01 | a | `single` | `oracles/test_oracle::test_no_such_test` | |",), 1),
        (("| DP-01 | a | `single` | | |",), 1),
        (("| DP-01 | a | `single` | | not built |",), 0),
        (("| DP-01 | a | | | not built |", "| DP-01 | a | | | not built |"), 1),
    ],
)
def test_the_guard_can_fail(lines: tuple[str, ...], caught: int) -> None:
    assert len(faults(rows_of("\n".join(lines)), names_there())) == caught
