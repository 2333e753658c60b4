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
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # as some editors begin a file
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ddp(microbatches=-1)", r"ddp\(microbatches=-1\) is negative; 0 or more is allowed"),
        ("ddp(budget=1e400)", r"ddp\(budget=inf\) is too large"),
        (f"ddp(bucket_bytes={10**30})", r"ddp\(bucket_bytes=10{19}\) is too large; less than \d+ is allowed"),
        (f"ddp(budget=1{'0' * 400})", "is too large"),
        (f"ddp(budget={'-' * 100_000}1)", "is no recipe call"),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        read_text(text)


def test_a_plan_file_by_another_name_is_told_from_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "plan.txt"
    path.write_text(write_plan(recipes.ddp(two_layers(), cluster_of(4))))
    with pytest.raises(PlanError, match=r"plan\.txt is a file, and plan files end in \.toml; rename it"):
        read_text(str(path))


def test_a_knob_is_given_once() -> None:
    with pytest.raises(PlanError, match="gives bucket_bytes 2 times"):
        read_text("ddp(bucket_bytes=1,bucket_bytes=2)")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_function_of_its_room(name: str) -> None:
    assert getattr(recipes, name) is RECIPES[name].make


def test_a_recipe_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="no recipe 'warp'; there are single, ddp"):
        _ = recipes.warp


def test_what_no_recipe_divides_is_said() -> None:
    with pytest.raises(PlanError, match="'tp'; no recipe divides tensors, sequences or experts; there are single, ddp"):
        read_text("tp")


@pytest.mark.parametrize("text", ["ddp,zero1", "ddp, zero1(microbatches=2)", "ddp,plan.toml", "./a.toml,b-c.toml"])
def test_one_plan_is_meant(text: str) -> None:
    with pytest.raises(PlanError, match="is 2 plans where one is meant; give one of them, or all to compare"):
        read_text(text)


def test_a_plan_file_may_have_a_comma_in_its_name(tmp_path: Path) -> None:
    plan = recipes.ddp(two_layers(), cluster_of(4))
    (tmp_path / "a,b.toml").write_text(write_plan(plan))
    assert read_text(str(tmp_path / "a,b.toml")) == plan


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("AUTO", "the plan auto, in small letters and without knobs, is the best that a search finds"),
        ("auto(data=2)", "the plan auto, in small letters and without knobs"),
        ("Zero_1", "did you mean 'zero1'"),
        ("ddp(CODEC=q8)", "did you mean 'codec'"),
        ("FSDP", "did you mean 'zero3'"),
    ],
)
def test_what_is_meant_is_found_in_whatever_letters(text: str, hint: str) -> None:
    with pytest.raises(PlanError, match=hint.replace("(", r"\(")):
        read_text(text)
