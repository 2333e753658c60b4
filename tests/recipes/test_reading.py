from __future__ import annotations

from pathlib import Path

import pytest

from partita import recipes
from partita.errors import PlanError
from partita.plan.text import write_plan
from partita.recipes.catalogue import RECIPES, Call
from partita.recipes.reading import read_text
from tests.small import cluster_of, two_layers


def test_a_plan_is_asked_for_in_three_ways(tmp_path: Path) -> None:
    plan = recipes.ddp(two_layers(), cluster_of(4), bucket_bytes=64)
    path = tmp_path / "plan.toml"
    path.write_text(write_plan(plan))
    assert read_text(str(path)) == plan
    assert read_text("auto") is None
    asked = read_text("ddp( bucket_bytes = 64 )")
    assert isinstance(asked, Call)
    assert (asked.name, asked.knobs) == ("ddp(bucket_bytes=64)", {"bucket_bytes": 64})
    assert asked.plan(two_layers(), cluster_of(4)).sync == plan.sync


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("absent.toml", None, "there is no plan file"),
        ("a.toml", "schema = 1\nname = 3", "str"),
        ("a.toml", "=", "TOML"),
    ],
)
def test_a_plan_file_that_cannot_be_read_is_refused(name: str, text: str | None, words: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(PlanError, match=words):
        read_text(str(tmp_path / name))


def test_a_knob_is_given_once() -> None:
    with pytest.raises(PlanError, match="gives bucket_bytes 2 times"):
        read_text("ddp(bucket_bytes=1,bucket_bytes=2)")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_function_of_its_room(name: str) -> None:
    assert getattr(recipes, name) is RECIPES[name].make


def test_a_recipe_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="no recipe 'warp'; there are single, ddp"):
        _ = recipes.warp
