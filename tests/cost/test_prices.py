"""What comes right behind a short act of its lane, or one of the same bucket, finds it in the caches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cost.costs import Costs
from partita.cost.naive import naive
from partita.cost.passes import passes_of
from partita.cost.prices import SHORT, Prices
from partita.cost.touch import NEAR, Calls, Touch
from partita.cost.wiring import RARELY, Post
from partita.program.instruction import Apply, Collective, Compute, Load, Mix, Pack, Receive, Send, Update
from partita.program.program import Policy, Program
from partita.simulator.simulate import step_seconds
from tests.priced import FREE, batches_of, priced, whole_cores
from tests.programs import program_by
from tests.small import two_layers

COLD, WARM = 1e-4, 1e-5


def given(recipe: str, *, operator: float) -> tuple[Program, Costs]:
    graph, machines = two_layers(), whole_cores(3 if recipe.startswith("ps") else 2, 1e8)
    program = program_by(recipe, graph, machines)
    costs = priced(graph, machines, batches_of(program), operator=operator)
    return program, replace(costs, instruction=COLD, again=Calls(WARM, FREE, FREE, FREE))


@pytest.mark.parametrize(("operator", "own"), [(1e-7, WARM), (SHORT, COLD)])
def test_an_act_behind_a_short_one_is_cheaper(operator: float, own: float) -> None:
    program, costs = given("ddp", operator=operator)
    role = program.roles[0]
    lane = role.on(role.leading)
    prices = dict(zip((i.name for i in role.instructions), Prices(costs, program).of_role(role), strict=True))
    packs = [i for i in lane if isinstance(i.act, Pack)]
    assert packs
    assert {prices[i.name].core for i in packs} == {own}


def test_who_waits_for_another_lane_begins_anew() -> None:
    program, costs = given("ddp", operator=1e-7)
    role = program.roles[0]
    prices = dict(zip((i.name for i in role.instructions), Prices(costs, program).of_role(role), strict=True))
    lane = role.on(role.leading)
    inside = {i.name for i in lane}
    waiting = [i for i in lane if any(after.name not in inside for after in i.after)]
    assert {type(i.act) for i in waiting} == {Compute, Update}
    assert all(prices[i.name].core >= COLD for i in waiting)


def test_an_update_finds_nothing_that_a_mix_has_left() -> None:
    """Its rule's code and state are its own: behind a mix of the same bucket it took three times what was predicted."""
    program, costs = given("d_psgd", operator=1e-3)
    cold, warm = Touch(0.0, 0.0, COLD), Touch(0.0, 0.0, WARM)
    costs = replace(costs, update=cold, again=Calls(WARM, FREE, FREE, warm))
    for role in program.roles:
        lane = role.on(role.leading)
        found = dict(zip((i.name for i in role.instructions), Prices(costs, program).of_role(role), strict=True))
        (update,) = (k for k, i in enumerate(lane) if isinstance(i.act, Update))
        assert isinstance(lane[update - 1].act, Mix)
        assert found[lane[update].name].core == pytest.approx(2 * COLD)


def test_what_was_made_a_moment_ago_is_warm() -> None:
    program, costs = given("d_psgd", operator=1e-3)
    costs = replace(costs, copy=Touch(0.0, 0.0, COLD), warm=Touch(0.0, 0.0, WARM))
    (mix,) = (i for i in program.roles[0].instructions if isinstance(i.act, Mix))
    assert isinstance(mix.act, Mix)
    prices, passes = Prices(costs, program), passes_of(mix.act)
    assert prices.of(mix.act).core == pytest.approx(COLD + passes * WARM)
    assert Prices(replace(costs, warm=None), program).of(mix.act).core == pytest.approx(COLD + passes * COLD)


def test_none_is_dearer_than_without_what_was_timed_behind_others() -> None:
    program, costs = given("ps_sync", operator=1e-7)
    for role in program.roles:
        found = Prices(costs, program).of_role(role)
        plain = Prices(replace(costs, again=None), program).of_role(role)
        assert all(one.core <= other.core for one, other in zip(found, plain, strict=True))


def test_what_a_cache_does_not_hold_is_as_far_away_as_ever() -> None:
    near = Touch(0.0, 1e-10, 0.0, far=2e-10)
    assert near.of(NEAR) == pytest.approx(NEAR * 1e-10)
    assert near.of(3 * NEAR) == pytest.approx(NEAR * 1e-10 + 2 * NEAR * 3e-10)


def test_a_server_does_not_compute_and_has_all_messages() -> None:
    program, costs = given("ps_sync(servers=1)", operator=1e-3)
    assert {Prices(costs, program).post(role) for role in program.roles} == {RARELY}
    prices = Prices(replace(costs, wiring=replace(costs.wiring, starts=((1e-3, 1e-4),))), program)
    posts = {role.name: prices.post(role) for role in program.roles}
    sends = {role.name: sum(isinstance(i.act, Send) for i in role.instructions) for role in program.roles}
    idle = [name for name, post in posts.items() if post.apart is not None]
    assert len(idle) == 1
    assert posts[idle[0]].many * posts[idle[0]].together == 2 * sends[idle[0]]
    assert posts[idle[0]].apart == pytest.approx(max(prices.computing.values()) / (2 * sends[idle[0]]))


def test_what_one_thing_releases_is_posted_at_once() -> None:
    """Two neighbours' messages of the perceptron took 0.25 core-ms each for 0.35: one wake-up does for both."""
    graph, machines = two_layers(), whole_cores(4, 1e8)
    program = program_by("d_psgd", graph, machines)
    costs = priced(graph, machines, batches_of(program))
    wiring = replace(costs.wiring, starts=((1.0, 1e-4), (8.0, 1e-4), (24.0, 5e-5)), joint=((1.0, 1.0), (3.0, 0.5)))
    prices = Prices(replace(costs, wiring=wiring), program)
    assert {prices.post(role) for role in program.roles} == {Post(2.0, 2.0)}
    assert wiring.starting(4, Post(2.0, 2.0)) < 0.8 * wiring.starting(4, Post(4.0, 1.0))


def test_a_server_wakes_up_for_a_gradient_and_finds_all_else_in_its_caches() -> None:
    program, costs = given("ps_async(servers=1)", operator=1e-3)
    far = Touch(0.0, 0.0, COLD)
    prices = Prices(replace(costs, add=far, copy=far, update=far), program)
    role = next(role for role in program.roles if not prices.computing[role.name])
    lane = {i.name for i in role.on(role.leading)}
    found = dict(zip((i.name for i in role.instructions), prices.of_role(role), strict=True))
    applies = [i for i in role.instructions if isinstance(i.act, Apply)]
    assert applies
    assert all(any(after.name not in lane for after in i.after) for i in applies)
    assert [found[i.name].core for i in applies] == pytest.approx([COLD] * len(applies))
    assert all(prices.of(i.act).core > 1.5 * COLD for i in applies)


@pytest.mark.parametrize("recipe", ["ddp", "p3", "ps_async(servers=1)", "ad_psgd", "single", "d_psgd"])
def test_a_thread_wakes_up_for_what_another_lane_lets_begin(recipe: str) -> None:
    """p3's server of digits-cnn took 0.15 core-ms an act for 0.08: each gradient wakes the lane that serves."""
    program, costs = given(recipe, operator=1e-3)
    dear, woken = replace(costs, waking=1.0, choosing=100.0), set[Policy]()
    for role in program.roles:
        plain, found = (Prices(each, program).of_role(role) for each in (costs, dear))
        more = {i.name: b.core - a.core for i, a, b in zip(role.instructions, plain, found, strict=True)}
        policies = {lane.name: lane.policy for lane in role.lanes}
        serves = not any(isinstance(i.act, Compute) for i in role.instructions)
        for i in role.instructions:
            others = [role.on_name[after.name] for after in i.after if role.on_name[after.name].lane != i.lane]
            moves = isinstance(i.act, Send | Receive | Collective)
            beside = i.lane != role.leading or serves
            wakes = beside and others and not moves and not any(isinstance(o.act, Collective) for o in others)
            if not wakes or isinstance(i.act, Load):
                assert more[i.name] == 0
                continue
            price = 1.0 if policies[i.lane] is Policy.ORDER else 100.0
            assert more[i.name] in (pytest.approx(price), 0)  # 0: released together with the one before
            woken |= {policies[i.lane]} if more[i.name] else set()
    assert (woken - {Policy.ORDER} != set()) == (recipe in ("p3", "ps_async(servers=1)", "ad_psgd"))


def test_one_rank_alone_touches_all_at_its_own_intervals() -> None:
    """U of bytes-gpt took 6.1 core-ms under `single` for 3.6: its passes were timed as old as those of several ranks,
    whose steps are four times as quick."""
    graph, machines = two_layers(), whole_cores(2, 1e8)
    programs = [program_by(recipe, graph, machines) for recipe in ("single", "ddp")]
    costs = priced(graph, machines, sorted({s.batch for program in programs for s in program.segments}))
    old = Touch(0.0, 0.0, COLD)
    lone = replace(costs, alone=Calls(WARM, FREE, FREE, old, old, load=old))
    (alone, several), (before, same) = ([step_seconds(program, one) for program in programs] for one in (lone, costs))
    assert several == same
    instructions = programs[0].roles[0].instructions
    touched = sum(isinstance(i.act, Load | Update) for i in instructions)
    assert touched >= 2
    assert alone == pytest.approx(before + len(instructions) * WARM + touched * COLD)
    assert naive(programs[0], lone)["sum"] > naive(programs[0], costs)["sum"]
