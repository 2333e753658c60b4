"""What a Plan can say: the twenty-two methods survive the way to TOML and back, and differ from each other."""

from __future__ import annotations

import re

import pytest

from partita.errors import LoweringError, PlanError
from partita.plan.check import check
from partita.plan.plan import Plan
from partita.plan.text import read_plan, write_plan
from tests.plan.space import SPACE, easgd
from tests.small import cluster_of, two_layers


@pytest.mark.parametrize("plan", SPACE, ids=lambda plan: plan.name)
def test_every_method_survives_toml(plan: Plan) -> None:
    assert read_plan(write_plan(plan)) == plan


def test_a_file_with_the_former_keys_of_an_agreement_reads_as_the_same_plan() -> None:
    before = write_plan(easgd).replace("payload", "what").replace("consistency", "tight").replace("frequency", "often")
    assert {"what", "tight", "often"} <= set(re.findall(r"\w+", before))
    assert read_plan(before) == easgd


def test_no_two_methods_are_the_same_point() -> None:
    texts = {write_plan(plan).replace(plan.name, "") for plan in SPACE}
    assert len(texts) == len(SPACE)


@pytest.mark.parametrize("plan", SPACE, ids=lambda plan: plan.name)
def test_a_method_is_lowered_or_refused_with_a_sentence(plan: Plan) -> None:
    from partita.lowering.lower import lower

    try:
        stretches = lower(two_layers(), plan, cluster_of(5))
    except (LoweringError, PlanError) as refusal:
        said = str(refusal)
    else:
        said = f"{plan.name} has {stretches[-1].program.size} ranks"
        assert stretches[-1].program.size >= 1
    assert plan.name in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("schema = 1\n", "name"),
        ("schema = 2\nname = 'x'\n", "schema"),
        ("schema = 1\nname = 'x'\nsinc = []\n", "sync"),
        ("schema = 1\nname = 'x'\n[mesh]\naxes = [['data', 'four']]\n", "four"),
        ("schema = 1\nname = 'x'\n[schedule]\norder = 'backwards'\n", "fill_drain"),
        ("schema = 1\nname = 'x'\n[[sync]]\nthrough = {kind = 'Pigeons'}\n", "AllReduce"),
        ("schema = ", "TOML"),
        ("schema = true\nname = 'x'\n", "has schema True"),
        ("schema = 1\nname = ' '\n", "plan.name is empty"),
        ('schema = 1\nname = "a\\nb"\n', "one line"),
        ('schema = 1\nname = "x"\n[mesh]\naxes = [["a\\u0007", 2]]\n', "one line"),
        (f"schema = 1\nname = 'x'\n[[sync]]\nwire = {{bucket_bytes = {10**30}}}\n", "a number below"),
    ],
)
def test_a_broken_text_is_refused_with_the_place_and_what_is_allowed(text: str, word: str) -> None:
    with pytest.raises(PlanError, match=word):
        read_plan(text)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("[mesh]\naxes = [['data', 2], ['data', 2]]\n", "of its own"),
        ("[mesh]\naxes = [['data', 8]]\n", "larger cluster"),
        ("[[sync]]\ntight = {need = 1, late = 'sometimes'}\n", "drop and keep"),
        ("[[sync]]\noften = {fetch = 0}\n", "fetch 0"),
        ("[[sync]]\noften = {fragments = 0}\n", "0 fragments"),
        ("[[sync]]\nthrough = {kind = 'Servers', levels = 0}\n", "0 levels"),
        ("[[sync]]\nthrough = {kind = 'Servers', count = 0}\n", "0 servers; 1 or more are allowed"),
        ("[[sync]]\nwire = {first_bucket_bytes = -1}\n", "the first -1"),
        ("[[sync]]\nwire = {codecs = [{name = 'fp16', where = 'somewhere'}]}\n", "end, hop, server are allowed"),
        ("[update]\nlocal_state = 'lose'\n", "keep and reset"),
        ("[update]\ncorrections = [{name = 'delay', settings = [['strength', 1.0], ['decay', 4.0]]}]\n", "0 to 1"),
        ("[[sync]]\npayload = 'delta'\nouter = {keep = 1.5}\n", "keep is 1 at most"),
        ("[[sync]]\npayload = 'delta'\nouter = {momentum = -0.5}\n", "none may be negative"),
        ("[[sync]]\nthrough = {kind = 'Servers'}\n[mesh]\naxes = [['data', 0]]\n", "1 device serves: take"),
        ("[memory]\nahead = 0\n", "1 or more"),
        ("[[before]]\nsteps = 0\nplan = {name = 'y'}\n", "lasts 0 steps"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused_with_what_is_allowed(body: str, word: str) -> None:
    plan = read_plan(f"schema = 1\nname = 'x'\n{body}")
    with pytest.raises(PlanError, match=word):
        check(plan, two_layers(), cluster_of(4))
