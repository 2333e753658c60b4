"""Whether a plan fits: peaks by the clock, how far off they may be, and the change that makes it fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from partita.cluster.cluster import Cluster, Group
from partita.cost.datasheet import datasheet_costs
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.plan import Phase, Plan
from partita.recipes.balance import blocks_of
from partita.recipes.catalogue import call
from partita.report.answers import bound_words
from partita.searches.fit import Way, fit, fit_of
from partita.searches.memory_bound import memory_bound_of
from partita.searches.peaks import ERROR, shortened
from partita.searches.shortlist import Listed, shortlist_of
from partita.simulator.simulate import simulate
from tests.captures import capture
from tests.priced import batches_of
from tests.searches.accelerators import deep, machines
from tests.small import frozen, layers, perceptron


def clocked(plan: Plan, graph: Graph, cluster: Cluster, pace: float = 1.0) -> tuple[int, ...]:
    """Peaks by the clock, of the whole plan, on operators that take `pace` times what data sheets say."""
    program = last_program(graph, plan, cluster)
    costs = datasheet_costs(graph, cluster, batches_of(program))
    paced = replace(costs, operators={key: pace * seconds for key, seconds in costs.operators.items()})
    return simulate(program, paced).memory


PIPES = ("gpipe", "one_f_one_b", "zero_bubble", "interleaved")


@st.composite
def calls(draw: st.DrawFn) -> str:
    shard = draw(st.sampled_from(["none", "optimizer", "gradients", "parameters"]))
    name, bucket = draw(st.sampled_from(["ddp", *PIPES])), draw(st.sampled_from([200, 4096]))
    stages, data = draw(st.sampled_from([(2, 1), (2, 2), (3, 1), (4, 1)])) if name in PIPES else (1, 4)
    m = draw(st.sampled_from([stages, 2 * stages, 4 * stages, 16 if stages != 3 else 12]))
    knobs = f"microbatches={m},data={data},bucket_bytes={bucket}"
    knobs += f",stages={stages}" if stages > 1 else ""
    return f"{name}({knobs})" if data == 1 else f"{name}({knobs},shard={shard})"


@given(calls(), st.sampled_from([1e4, 1e5, 1e6, 1e8]), st.sampled_from([0.2, 0.5, 2.0, 5.0]))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_no_peak_is_below_the_clock_s(text: str, bandwidth: float, pace: float) -> None:
    """What fit says is never below what the simulator says of the whole plan, and never further above it than the error
    that is told; where computing is quicker or slower beside the messages than data sheets say, the error covers it."""
    graph, cluster = replace(deep(16), global_batch=96), machines(4, bandwidth, 10**6)
    plan = call(text, graph, cluster)
    found = fit_of(plan, graph, cluster)
    assert memory_bound_of(graph, cluster).bytes <= max(found.used)
    for said, true in zip(found.used, clocked(plan, graph, cluster), strict=True):
        assert true <= said <= true + found.error
    assert max(clocked(plan, graph, cluster, pace)) <= max(found.used) + found.error


@given(calls(), st.sampled_from([1e4, 1e6]))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_fewer_microbatches_are_of_the_same_size(text: str, bandwidth: float) -> None:
    graph, cluster = replace(deep(16), global_batch=192), machines(4, bandwidth, 1)
    plan = call(text, graph, cluster)
    less, smaller, cut = shortened(plan, graph)
    assert less.schedule.microbatches == plan.schedule.microbatches - cut
    assert smaller.global_batch * plan.schedule.microbatches == 192 * less.schedule.microbatches


@pytest.mark.parametrize("bandwidth", [1e5, 1e6])
def test_microbatches_pile_up_behind_a_stage_that_runs_ahead(bandwidth: float) -> None:
    """Nothing comes back to the first stage, of frozen layers: the more microbatches, the more wait behind it."""
    graph = replace(frozen(layers(8), "a", "b", "0", "1", "2", "3"), global_batch=96)
    cluster = machines(4, bandwidth, 10**6)
    plan = call("one_f_one_b(stages=4,microbatches=16)", graph, cluster)
    assert fit_of(plan, graph, cluster).used == clocked(plan, graph, cluster)


@pytest.mark.parametrize("microbatches", [3, 6])
def test_gradients_pile_up_behind_two_that_owners_still_get(microbatches: int) -> None:
    """Where messages take longer than computing, what a third microbatch makes lies beside two packed buckets."""
    alike = machines(2, 4.25e3, 10**6)
    unlike = tuple(replace(alike.devices[0], flops=(("fp32", 1e6),), memory_bandwidth=1e7, speed=s) for s in (2.0, 1.0))
    cluster = replace(alike, root=replace(alike.root, members=unlike))
    graph = layers(8, batch=12)
    plan = call(f"ddp(microbatches={microbatches},bucket_bytes=262144,shard=gradients)", graph, cluster)
    assert max(fit_of(plan, graph, cluster).used) >= max(clocked(plan, graph, cluster))


def test_a_model_that_does_not_fit_gets_the_change_that_costs_least() -> None:
    graph, roomy = deep(16), machines(4, 1e8, 10**6)
    plan = call("ddp", graph, roomy)
    easy = fit(graph, roomy, plan)
    assert easy.fits
    assert not easy.change
    assert sum(easy.parts.values()) == max(easy.used)
    assert easy.error == round(ERROR * max(easy.used))
    peak = max(easy.used)
    tight = machines(4, 1e8, int(peak * 0.8))
    found = fit(graph, tight, call("ddp", graph, tight))
    assert not found.fits
    assert found.margin == int(peak * 0.8) - peak
    assert found.slower >= 1.0
    text = found.change.split("'")[1]
    assert fit_of(call(text, graph, tight), graph, tight).fits


def test_close_calls_are_said_to_be_close() -> None:
    graph = deep(16)
    peak = max(fit_of(call("ddp", graph, machines(4, 1e8, 1)), graph, machines(4, 1e8, 1)).used)
    near = machines(4, 1e8, int(peak * 1.02))
    found = fit_of(call("ddp", graph, near), graph, near)
    assert (found.fits, found.unsure, found.margin > 0) == (False, True, True)


def test_the_fullest_device_is_the_one_with_least_left() -> None:
    """The rank that holds most has the most memory: what is missing is missing on the other one."""
    graph, alike = deep(16), machines(2, 1e8, 10**6)
    used = fit_of(call("gpipe(stages=2)", graph, alike), graph, alike).used
    less = used.index(min(used))
    assert used[less] < used[1 - less]
    devices = [replace(alike.devices[0], memory=10**6)] * 2
    devices[less] = replace(devices[less], memory=used[less] - 100)
    unlike = replace(alike, root=replace(alike.root, members=tuple(devices)))
    found = fit_of(call("gpipe(stages=2)", graph, alike), graph, unlike)
    assert not found.fits
    assert found.margin == unlike.devices[less].memory - found.used[less] < 0
    assert sum(found.parts.values()) == found.used[less]


def test_a_plan_needs_what_its_fullest_phase_does() -> None:
    graph, cluster = deep(16), machines(4, 1e8, 10**6)
    late, plain = (call(text, graph, cluster) for text in ("pipe_sgd", "ddp(bucket_bytes=1048576)"))
    alone = [fit_of(plan, graph, cluster).used for plan in (late, plain)]
    assert min(alone[0]) > max(alone[1])
    for first, last in ((late, plain), (plain, late)):
        both = fit_of(replace(last, before=(Phase(2, first),)), graph, cluster)
        assert both.used == alone[0]
        assert sum(both.parts.values()) == max(alone[0])


def test_too_large_for_any_plan_asks_for_a_smaller_minibatch() -> None:
    graph = deep(16)
    least = min(
        max(fit_of(call(text, replace(graph, global_batch=4), machines(2, 1e8, 1)), replace(graph, global_batch=4),
                   machines(2, 1e8, 1)).used)
        for text in ("ddp", "one_f_one_b(stages=2,microbatches=4)")
    )  # fmt: skip
    tight = machines(2, 1e8, int(least * 1.1))
    found = fit(graph, tight, call("ddp", graph, tight))
    assert not found.fits
    assert found.change.startswith(("train with a minibatch of", "use --plan"))


def test_where_nothing_fits_it_says_what_would() -> None:
    """How much memory, or how many devices, and what no plan needs less than: 12 bytes a parameter over two devices."""
    graph, small = deep(16), machines(2, 1e8, 64)
    found = fit(graph, small, call("ddp", graph, small))
    assert found.bound
    assert found.bound.each == 12
    assert found.bound.bytes > 64
    words, text, *_ = found.change.split("'")
    assert words.startswith("give each device ")
    amount, unit = words.split()[3:5]
    roomy = machines(2, 1e8, int(float(amount) * {"B": 1, "KiB": 1024}[unit]))
    assert fit_of(call(text, graph, roomy), graph, roomy).fits


def test_more_devices_are_asked_for_where_they_help() -> None:
    """Two devices cannot hold the state alone, whatever the minibatch; as many as are named can, with that plan."""
    graph, memory = deep(16), 800
    found = fit(graph, machines(2, 1e8, memory), None)
    assert found.bound
    assert found.bound.state > memory
    count, text = int(found.change.split(" or take ")[1].split()[0]), found.change.split("'")[3]
    more = machines(count, 1e8, memory)
    assert count > 2
    assert fit_of(call(text, graph, more), graph, more).fits


def test_half_precision_is_asked_of_plans_that_have_it() -> None:
    """Servers have none: nothing is said of their plan as it is."""
    graph, cluster = deep(16), machines(2, 1e8)
    served, summed = (Listed(call(text, graph, cluster), 1.0, 2.0) for text in ("ps_sync", "ddp"))
    short = Way("compute in half precision and ", graph, (served, summed), 1.0).in_half_precision(cluster)
    assert short.listed == (replace(summed, plan=call("ddp(precision=bf16)", graph, cluster)),)


def test_no_more_devices_are_asked_for_where_there_is_no_switch_for_them() -> None:
    """Of devices that are wired to each other: how more of them would be is not known."""
    wired = replace(machines(2, 1e8, 800), root=replace(machines(2, 1e8, 800).root, mesh=((0, 1), (1, 0))))
    change = fit(deep(16), wired, None).change
    assert change.startswith("give each device ")
    assert "or take" not in change


def test_frozen_weights_are_held_and_not_summed() -> None:
    """A model of which one layer is trained, as with adapters."""

    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(6, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 3))
        made[2].requires_grad_(False)
        return made

    graph, cluster = capture(replace(perceptron(), name="adapted", model=model)), machines(4, 1e6, 10**6)
    found, frozen = blocks_of(graph, cluster, None, 4), 4 * (512 + 1) * 64
    assert (sum(found.frozen), graph.frozen_bytes) == (frozen, frozen)
    assert sum(found.state) == graph.trained_bytes == 4 * (7 * 512 + 65 * 3)
    bound = memory_bound_of(graph, cluster)
    assert frozen / 4 < bound.state < max(fit_of(call("zero3", graph, cluster), graph, cluster).used)
    assert "of others are" in bound_words(bound)
    two = call("gpipe(stages=2,balance=memory)", graph, cluster)
    assert two.stages


@pytest.mark.parametrize("extra", [0, 2])
def test_a_device_that_is_too_small_for_a_minibatch_takes_it_in_parts(extra: int) -> None:
    """Parts of it and nothing computed again, also where other devices have no room at all: a plan of one device needs
    that of the first."""
    graph, alone = deep(64), machines(1, 1e8, 1)
    whole, parts = (
        max(fit_of(call(text, graph, alone), graph, alone).used) for text in ("single", "single(microbatches=4)")
    )
    assert parts < 0.8 * whole
    first, other = (machines(1, 1e8, memory).devices[0] for memory in (int(1.1 * parts), 64))
    members, ports = (first, *[other] * extra), machines(1 + extra, 1e8).root.ports
    tight = Cluster("mixed", Group("root", members, ports))
    found = fit(graph, tight, call("ddp", graph, tight))
    assert not found.fits
    assert found.bound is None
    text = found.change.split("'")[1]
    assert text.startswith("single(microbatches=")
    assert "recompute" not in text
    assert fit_of(call(text, graph, tight), graph, tight).fits
    assert shortlist_of(graph, tight).fitting > 0


def test_of_one_device_it_is_said_as_of_one() -> None:
    assert " on the one device, and " in bound_words(memory_bound_of(deep(16), machines(1, 1e8, 64)))
