"""What each act needs, by its own words: so many passes over so many elements in so many tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from partita.cost.costs import Costs
from partita.cost.demand import CASTS, CORRECTING, MERGING, SIFTING, demand_of, hop_cores
from partita.cost.touch import Touch
from partita.cost.wiring import Circle
from partita.graph.graph import Graph, Optimizer
from partita.plan.plan import Correction
from partita.program.instruction import (
    Act,
    Apply,
    Clip,
    Collective,
    Combine,
    Decode,
    Encode,
    Free,
    Norm,
    Receive,
    Update,
)
from partita.program.program import Program
from partita.program.space import Space
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.small import two_layers

OWN = 1e-3
COPY, ADD, UPDATE = Touch(3e-3, 5e-5, 7e-3), Touch(11e-3, 13e-5, 17e-3), Touch(19e-3, 23e-5, 29e-3)
CHECK, AHEAD, BACK = Touch(31e-3, 37e-5, 41e-3), Touch(43e-3, 47e-5, 53e-3), Touch(59e-3, 61e-5, 67e-3)
N, PIECES, RANKS = 4 * 6 + 6 * 2, 2, 3
OWNED, PARTS = N // RANKS, (PIECES + RANKS - 1) / RANKS  # a piece that is cut is a tensor of both owners


def given(text: str, graph: Graph | None = None) -> tuple[Program, Costs]:
    graph, machines = graph or two_layers(), whole_cores(RANKS, 1e8)
    program = program_by(text, graph, machines)
    costs = priced(graph, machines, batches_of(program))
    costs = replace(
        costs, instruction=OWN, copy=COPY, add=ADD, update=UPDATE, check=CHECK, codecs={"topk": (AHEAD, BACK)}
    )
    return program, costs


def whole(touch: Touch) -> float:
    return touch.of(N, PIECES)


def mine(touch: Touch) -> float:
    return touch.of(OWNED, PARTS)


UP = Apply("b0", 1, share=1 / 3, among=3)
CASES: dict[str, tuple[str, Callable[[str], Act], float]] = {
    "each source is added": ("ddp", lambda _: Combine("b0", (0, 1, 2)), 3 * whole(ADD)),
    "a residual is not looked at": ("ddp(codec=topk)", lambda c: Encode("b0", c, Space.RESIDUAL), AHEAD.of(N)),
    "all else that is encoded is": ("ddp(codec=topk)", lambda c: Encode("b0", c), CHECK.of(N) + AHEAD.of(N)),
    "each message is decoded": ("ddp(codec=topk)", lambda c: Decode("b0", c, (0, 1, 2)), BACK.of(3 * N, 3)),
    "a sum of messages is decoded once": ("ddp(codec=topk)", lambda c: Decode("b0", c, ()), BACK.of(N)),
    "each part is encoded": ("zero2(codec=topk)", lambda c: Encode("b0", c), CHECK.of(N) + AHEAD.of(N, RANKS)),
    "the own part is decoded": ("zero2(codec=topk)", lambda c: Decode("b0", c, (0, 1)), BACK.of(2 * OWNED, 2)),
    "the own gradient is kept": ("zero2", lambda _: Free("b0", Space.GRADIENT), COPY.of(OWNED)),
    "or added": ("zero2", lambda _: Free("b0", Space.GRADIENT, add=True), ADD.of(OWNED)),
    "weights go": ("zero3", lambda _: Free("b0"), 0.0),
    "a norm reads": ("zero2", lambda _: Norm(("b0", "b0"), (1, 1)), 2 * mine(COPY)),
    "a bound reads and scales": ("zero2", lambda _: Clip(("b0",), 1.0), 2 * mine(COPY)),
    "one by a norm that is known scales": ("zero2", lambda _: Clip(("b0",), 1.0, by="n"), mine(COPY)),
    "an update is of the own part": ("zero2", lambda _: Update("b0"), mine(UPDATE)),
    "one with what no bucket has looks at it": ("ddp", lambda _: Update("b0", part="p"), whole(UPDATE) + CHECK.of(N)),
    "a part of a step is as much": ("ddp", lambda _: Update("b0", share=0.5), whole(UPDATE)),
    "a contribution steps": ("ddp", lambda _: UP, whole(UPDATE)),
    "one of two is added, and half a step": ("ddp", lambda _: replace(UP, need=2), whole(ADD) + whole(UPDATE) / 2),
    "one of a quorum is added twice": ("ddp", lambda _: replace(UP, drop=True), whole(ADD) + ADD.of(N)),
    "a change is added": ("ddp", lambda _: replace(UP, delta=True, need=2), ADD.of(N)),
    "corrections come before": (
        "ddp", lambda _: replace(UP, corrections=(Correction("delay"), Correction("clock"))),
        whole(UPDATE) + 2 * CORRECTING * ADD.of(N),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_an_act_needs_its_passes(what: str) -> None:
    text, made, passes = CASES[what]
    program, costs = given(text)
    coding = program.codings[0].name if program.codings else ""
    assert demand_of(costs, program, made(coding)).core == pytest.approx(OWN + passes)


def test_a_rule_that_is_not_linear_takes_the_mean_of_what_is_a_part_of_a_step() -> None:
    """Adam of a share's mean, at a server too; of a whole minibatch it has the mean already."""
    graph = replace(two_layers(), optimizer=Optimizer("Adam", (("exp_avg", 1.0, "float32"),)))
    program, costs = given("ddp", graph)

    def core(act: Act) -> float:
        return demand_of(costs, program, act).core - OWN

    assert core(Update("b0", share=0.5)) == pytest.approx(whole(UPDATE) + whole(COPY))
    assert core(Update("b0")) == pytest.approx(whole(UPDATE))
    assert core(replace(UP, need=2)) == pytest.approx(whole(ADD) + (whole(UPDATE) + ADD.of(N)) / 2)


def test_masters_are_cast_to_and_from() -> None:
    program, costs = given("ddp(precision=bf16)")
    (bucket,) = program.trained
    assert bucket.master
    core = demand_of(costs, program, Update(bucket.name)).core - OWN
    assert core == pytest.approx(whole(UPDATE) + CASTS * whole(COPY))


def test_a_codec_s_code_is_at_hand_from_its_second_hop_on() -> None:
    """A rank of a ring of three encodes two partial sums and its own result, decodes four parts, and adds two; results
    of others it passes on."""
    program, costs = given("ddp(collective=ring,codec=q8)")
    wiring = replace(costs.wiring, sent=2e-6, received=3e-6, reduced=5e-6, first_hop=9e-6)
    costs = replace(costs, codecs={"q8": (AHEAD, BACK)}, wiring=wiring)
    (act,) = (i.act for i in program.roles[0].instructions if isinstance(i.act, Collective))
    coded = N // RANKS + 4
    encoding = AHEAD.call + 3 * AHEAD.tensor + N * AHEAD.element
    decoding = BACK.call + 4 * BACK.tensor + 4 * N / RANKS * BACK.element
    moving = 4 * coded * (wiring.sent + wiring.received) + 2 * 4 * N / RANKS * wiring.reduced
    assert hop_cores(costs, program, act, RANKS) == pytest.approx(
        [encoding + decoding + moving + wiring.first_hop] * RANKS
    )


def test_sparse_hops_search_and_merge() -> None:
    """By doubling among four: each rank looks through its vector once, and merges what comes, 1 - (1 - k / n)^p of it,
    into its own."""
    graph, machines = two_layers(), whole_cores(4, 1e8)
    program = program_by("ddp(codec=topk(ratio=0.25),collective=sparse_doubling)", graph, machines)
    costs = replace(priced(graph, machines, batches_of(program)), copy=COPY)
    (act,) = (i.act for i in program.roles[0].instructions if isinstance(i.act, Collective))
    merged = round(N * 0.25) + round(N * (1 - 0.75**2))
    expected = COPY.element * (SIFTING * N + MERGING * merged)
    assert hop_cores(costs, program, act, 4) == pytest.approx([expected] * 4)


def test_a_ring_of_plain_messages_is_its_formula() -> None:
    """Among p ranks 2 (p - 1) messages each way of a p-th of the bytes, half of which are added; a gather of codings
    has p - 1, and adds nothing."""
    for text, laps in (("ddp(collective=ring)", 2), ("ddp(codec=topk)", 1)):
        program, costs = given(text)
        wiring = replace(costs.wiring, sent=2e-6, received=3e-6, reduced=5e-6, value_start=7e-6, start=7e-6)
        wiring = replace(wiring, first_hop=9e-6)
        costs = replace(costs, wiring=wiring, check=Touch(0.0, 0.0))
        (act,) = (i.act for i in program.roles[0].instructions if isinstance(i.act, Collective))
        elements, item = program.extent(act, RANKS)
        each = (RANKS - 1) * elements * item / RANKS
        core = (
            wiring.first_hop
            + 2 * laps * (RANKS - 1) * wiring.hopping_start
            + each * laps * 5e-6
            + each * 5e-6 * (laps == 2)
        )
        assert wiring.hopping_start > 0
        assert demand_of(costs, program, act, Circle(RANKS, 1, 0.0)).core == pytest.approx(core)


def test_a_value_comes_sooner_than_a_message() -> None:
    program, costs = given("gpipe(stages=3)")
    costs = replace(costs, wiring=replace(costs.wiring, message=3e-3, value=1e-3))
    coming = [i.act for role in program.roles for i in role.instructions if isinstance(i.act, Receive)]
    assert {act.space for act in coming} == {Space.VALUE}
    assert {demand_of(costs, program, act).latency for act in coming} == {1e-3}
    gradient = replace(coming[0], space=Space.INBOX, bucket=program.trained[0].name)
    assert demand_of(costs, program, gradient).latency == 3e-3
