"""What travels together, who takes which samples, and what is refused."""

from __future__ import annotations

import operator
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partita import api
from partita.errors import LoweringError, PartitaError, PlanError
from partita.graph.batch import of_minibatch
from partita.graph.graph import Graph, Parameter
from partita.graph.tensor import Tensor
from partita.lowering.layout import bucket_ends, buckets_of, completion, slices, urgent_from
from partita.lowering.lower import last_program, lower
from partita.lowering.samples import replica_groups
from partita.plan.memory import Memory, Precision, Shard
from partita.plan.mesh import Mesh, Split, Stage
from partita.plan.plan import Correction, Kernel, Phase, Plan, Update
from partita.plan.schedule import Order, Schedule, Versions
from partita.plan.sync import Consistency, Frequency, Gossip, Neighbours, Outer, Payload, Servers, Sync
from partita.plan.wire import Codec, Priority, Wire
from partita.program.instruction import Load
from partita.program.program import Program
from partita.recipes.catalogue import RECIPES, call
from tests.priced import machines_for
from tests.programs import program_by
from tests.small import cluster_of, layers, two_layers

TOTAL = (4 * 6 + 6 * 2) * 4
FOUR = Mesh((("data", 4),))
sizes = st.integers(0, 200)


def wires() -> st.SearchStrategy[Wire]:
    return st.builds(Wire, bucket_bytes=sizes, first_bucket_bytes=sizes, slice_bytes=sizes)


def rows_of(graph: Graph, parameter: str) -> int:
    return int(next(p for p in graph.parameters if p.name == parameter).tensor.at(1).shape[0])  # type: ignore[arg-type]


@given(wires())
@example(Wire(bucket_bytes=1, slice_bytes=1))
def test_pieces_cover_every_trainable_parameter_once(wire: Wire) -> None:
    graph = two_layers()
    covered: dict[str, list[int]] = {}
    for bucket in buckets_of(graph, wire):
        for piece in bucket.pieces:
            rows = rows_of(graph, piece.parameter)
            stop = rows if piece.stop < 0 else piece.stop
            covered.setdefault(piece.parameter, []).extend(range(piece.start, stop))
            assert piece.last == (stop == rows)
    assert covered == {p.name: list(range(rows_of(graph, p.name))) for p in graph.trainable[::-1]}
    assert sum(bucket.size for bucket in buckets_of(graph, wire)) == TOTAL


@given(wires())
@example(Wire(bucket_bytes=72, first_bucket_bytes=1, slice_bytes=1))
def test_a_bucket_closes_once_it_is_full(wire: Wire) -> None:
    """CS-02: at most ceil(n / B) messages, one more if the first bucket is smaller."""
    buckets = buckets_of(two_layers(), wire)
    if not wire.bucket_bytes:
        assert all(len(bucket.pieces) == 1 for bucket in buckets)
        return
    smaller = 0 < wire.first_bucket_bytes < wire.bucket_bytes
    assert len(buckets) <= ceil(TOTAL / wire.bucket_bytes) + smaller
    assert all(bucket.size >= wire.bucket_bytes for bucket in buckets[smaller:-1])
    assert len(buckets) == 1 or buckets[0].size >= (wire.first_bucket_bytes if smaller else wire.bucket_bytes)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2000))
def test_a_parameter_is_sliced_by_rows(rows: int, columns: int, limit: int) -> None:
    """As many runs of rows as the limit asks for, none without a row, even but for one row."""
    parts = list(slices(Parameter("w", Tensor((rows, columns), "float32")), limit))
    size = 4 * rows * columns
    assert len(parts) == (min(rows, max(ceil(size / limit), 1)) if limit else 1)
    if len(parts) > 1:
        heights = [part.stop - part.start for part in parts]
        assert sum(heights) == rows
        assert 1 <= min(heights) <= max(heights) <= min(heights) + 1
        assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]


@given(wires())
def test_backward_is_cut_where_a_bucket_is_complete(wire: Wire) -> None:
    graph = two_layers()
    buckets = buckets_of(graph, wire)
    edges, at = bucket_ends(graph, buckets), completion(graph)
    assert len(edges) == len(buckets)
    assert list(edges) == sorted(edges)
    assert graph.forward_length <= edges[0]
    assert edges[-1] == len(graph.operators)
    for bucket, edge in zip(buckets, edges, strict=True):
        assert all(at[piece.parameter] <= edge for piece in bucket.pieces)


def test_who_stand_apart_do_not_part_the_others() -> None:
    """Of a model of layers with biases, the biases fill one bucket while each weight has one, as backward goes on."""
    graph = api.graph_of("digits-cnn")
    weights = [p.name for p in graph.parameters if len(p.tensor.shape) > 1]
    buckets, at = buckets_of(graph, Wire(first_bucket_bytes=2**20), weights), completion(graph)
    several = [bucket for bucket in buckets if len(bucket.pieces) > 1]
    found = [piece.parameter for bucket in several for piece in bucket.pieces]
    assert sorted(found, key=at.__getitem__) == [n for n in at if n not in weights]
    assert len(buckets) == len(weights) + 1
    ends = [max(at[piece.parameter] for piece in bucket.pieces) for bucket in buckets]
    assert ends == sorted(ends)


def test_dtypes_do_not_share_a_bucket() -> None:
    graph = two_layers()
    a, b = graph.parameters
    mixed = replace(graph, parameters=(replace(a, tensor=replace(a.tensor, dtype="bfloat16")), b))
    assert [(b.dtype, b.size) for b in buckets_of(mixed, Wire())] == [("float32", 48), ("bfloat16", 48)]


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4))
def test_parts_cover_the_minibatch(batch: int, workers: int, microbatches: int) -> None:
    if batch < workers * microbatches:
        with pytest.raises(PlanError, match="cannot be divided"):
            replica_groups(batch, workers, microbatches)
        return
    groups = replica_groups(batch, workers, microbatches)
    assert sorted(rank for group in groups for rank in group.ranks) == list(range(workers))
    taken = [s for group in groups for start in group.starts for s in range(start, start + group.count)]
    assert sorted(taken) == list(range(batch))
    counts = [group.count for group in groups]
    assert max(counts) - min(counts) <= 1


def loads(program: Program) -> list[tuple[int, int, float]]:
    """(start, count, weight) of every Load on every rank of the first minibatch of a round."""
    return [
        (role.mine(i.act.start, rank), i.act.count, i.act.weight)
        for role, i in program.instructions()
        for rank in role.ranks
        if isinstance(i.act, Load) and i.act.step == 0
    ]


@pytest.mark.parametrize(
    "text",
    ["single(microbatches=3)", "ddp", "ddp(microbatches=2)", "ps_sync", "ps_sync(servers=2,own=false)", "pipe_sgd"],
)
@pytest.mark.parametrize("size", [3, 5])
def test_every_sample_is_loaded_once_and_weighs_the_same(text: str, size: int) -> None:
    graph, machines = replace(two_layers(), global_batch=11), cluster_of(size)
    found = loads(program_by(text, graph, machines))
    assert sorted(s for start, count, _ in found for s in range(start, start + count)) == list(range(11))
    assert [weight for _, _, weight in found] == pytest.approx([count / 11 for _, count, _ in found])


def test_phases_become_programs_in_order() -> None:
    graph, machines = two_layers(), cluster_of(4)
    stretches = lower(graph, call("pipe_sgd(staleness=2,warmup=3)", graph, machines), machines)
    assert [(s.steps, s.program.slots, s.program.semantics) for s in stretches] == [(3, 1, "exact"), (0, 3, "delayed")]


def plan(**parts: object) -> Plan:
    return replace(Plan("mine", FOUR, sync=(Sync(),)), **parts)  # type: ignore[arg-type]


ALTERNATING = Schedule(Order.ONE_F_ONE_B)
BF16 = Memory(precision=Precision.BF16)
CLIPPED = Codec("dgc", settings=(("clip", 1.0),))
AHEAD = Correction("momentum", (("factor", 0.9),))
LATE = Correction("delay", (("strength", 0.1),))


def pipe(schedule: Schedule = ALTERNATING, **parts: object) -> Plan:
    mesh = Mesh((("pipe", 2), ("data", 2)))
    return plan(schedule=schedule, **{"mesh": mesh, "stages": (Stage(), Stage("y")), **parts})


def owned(codec: Codec, **parts: object) -> Plan:
    return plan(sync=(Sync(wire=Wire(codecs=(codec,))),), memory=Memory(shard=Shard.OPTIMIZER), **parts)


def dealt(first: tuple[int, ...], second: tuple[int, ...], m: int) -> Plan:
    return pipe(
        Schedule(Order.ONE_F_ONE_B, m), mesh=Mesh((("pipe", 2),)), stages=(Stage("", first), Stage("y", second))
    )


def ahead(*corrections: Correction, **parts: object) -> Plan:
    """Three workers whose server waits for nobody."""
    sync = Sync(through=Servers(), consistency=Consistency(staleness=-1), **parts)  # type: ignore[arg-type]
    return plan(sync=(sync,), mesh=Mesh((("data", 3),)), update=Update(corrections=corrections))


REFUSED = [
    (pipe(Schedule()), "the order sequential"),
    (pipe(Schedule(Order.MESSAGE)), "the order message"),
    (pipe(Schedule(Order.ONE_F_ONE_B, flush=False)), "without a flush"),
    (pipe(Schedule(Order.ONE_F_ONE_B, in_flight=3)), "passes in flight"),
    (pipe(sync=(Sync(consistency=Consistency(lag=1)),)), "late gradients between stages"),
    (pipe(sync=(Sync(through=Servers(own=False)),)), "stages without all-reduce"),
    (pipe(sync=(Sync(wire=Wire(collective="ring")),), memory=Memory(Shard.OPTIMIZER)), "the collective 'ring'"),
    (pipe(sync=()), "never agree"),
    (plan(mesh=Mesh((("data", 2), ("tensor", 2)))), "the mesh axis 'tensor'"),
    (plan(sync=(Sync(), Sync())), "more than one agreement"),
    (plan(splits=(Split(dim="output"),)), "other dimensions than samples"),
    (plan(sync=(Sync(through=Neighbours()),)), "agreement through Neighbours"),
    (plan(sync=(Sync(through=Servers(own=False), payload=Payload.ELASTIC),)), "agreement on elastic through Servers"),
    (plan(sync=(Sync(payload=Payload.FACTOR),)), "agreement on factor"),
    (plan(sync=(Sync(payload=Payload.ELASTIC, frequency=Frequency(0)),)), "agreement once at the end"),
    (plan(sync=(Sync(consistency=Consistency(staleness=2)),)), "stale or partial"),
    (
        plan(sync=(Sync(payload=Payload.ELASTIC, through=Servers(own=False), consistency=Consistency(staleness=-1)),)),
        "a centre on the devices of workers",
    ),
    (ahead(payload=Payload.PARAMETER), "ahead with parameter"),
    (ahead(payload=Payload.DELTA, frequency=Frequency(2)), "increments pushed now and then"),
    (ahead(AHEAD), "the correction 'momentum'"),
    (plan(sync=(Sync(frequency=Frequency(fetch=2)),)), "weights fetched every 2 steps"),
    (plan(sync=(Sync(frequency=Frequency(0)),)), "agreement once at the end"),
    (plan(sync=(Sync(payload=Payload.PARAMETER, frequency=Frequency(4, fragments=2)),)), "agreement in fragments"),
    (plan(sync=(Sync(frequency=Frequency(4)),)), "gradients agreed on every 4 steps"),
    (plan(sync=(Sync(parameters="layers.*"),)), "the parameters 'layers.*' only"),
    (plan(sync=(Sync(payload=Payload.PARAMETER, consistency=Consistency(lag=1)),)), "lag 1 where"),
    (plan(sync=(Sync(through=Servers(own=False), consistency=Consistency(lag=2)),)), "lag 2 where"),
    (plan(sync=(Sync(through=Servers(own=False), payload=Payload.PARAMETER),)), "agreement on parameter"),
    (plan(sync=(Sync(through=Servers(own=False, levels=2)),)), "servers in levels"),
    (plan(sync=(Sync(through=Servers(own=False, replicas=2)),)), "replicas of servers on the devices"),
    (plan(sync=(Sync(through=Servers(own=False), wire=Wire(negotiate=True)),)), "negotiation where nothing is all-"),
    (plan(sync=(Sync(wire=Wire(credit_bytes=8)),)), "a credit without the order of one"),
    (plan(sync=(Sync(wire=Wire(order=Priority.CREDIT, codecs=(Codec("q8"),))),)), "negotiated sums with stages"),
    (
        plan(sync=(Sync(payload=Payload.FACTOR), Sync(consistency=Consistency(lag=1)))),
        "factors beside anything but lockstep",
    ),
    (plan(sync=(Sync(payload=Payload.FACTOR, through=Servers(own=False)), Sync())), "factors through other servers"),
    (plan(schedule=Schedule(chunks=2)), "the order of passes of a pipeline"),
    (plan(schedule=Schedule(versions=Versions.STASH)), "the order of passes of a pipeline"),
    (plan(splits=(Split(operators="aten.mm*"),)), "some operators or ranks only"),
    (plan(splits=()), "some operators or ranks only"),
    (plan(sync=(Sync(wire=Wire(codecs=(Codec("q8", "server"),))),)), "codecs of servers"),
    (plan(sync=(Sync(wire=Wire(codecs=(Codec("topk"), Codec("q8"))),),)), "several codecs"),
    (plan(sync=(Sync(through=Servers(1, False), wire=Wire(collective="tree")),)), "the collective 'tree' through"),
    (plan(sync=(Sync(wire=Wire(order=Priority.TIC)),)), "message order tic"),
    (
        plan(sync=(Sync(payload=Payload.PARAMETER, frequency=Frequency(4), outer=Outer(momentum=0.9)),)),
        "the outer momentum with payload=parameter",
    ),
    (plan(sync=(Sync(payload=Payload.ELASTIC, outer=Outer(0.2, keep=0.5)),)), "the outer keep with payload=elastic"),
    (plan(sync=(Sync(payload=Payload.DUAL, outer=Outer(0.5, penalty=0.1)),)), "the outer rate with payload=dual"),
    (plan(sync=(Sync(payload=Payload.DELTA, outer=Outer(penalty=0.1)),)), "the outer penalty with payload=delta"),
    (ahead(payload=Payload.ELASTIC, outer=Outer(0.2, momentum=0.9)), "fragments or outer optimizers"),
    (ahead(LATE, payload=Payload.DELTA), "the correction 'delay' with payload=delta"),
    (
        ahead(LATE, payload=Payload.DUAL, outer=Outer(penalty=0.1)),
        "the correction 'delay' with payload=dual",
    ),
    (
        plan(sync=(Sync(payload=Payload.PARAMETER),), memory=Memory(shard=Shard.OPTIMIZER)),
        "sharded state where no gradients",
    ),
    (
        plan(sync=(Sync(consistency=Consistency(lag=1)),), memory=Memory(shard=Shard.GRADIENTS)),
        "sharded state with late gradients",
    ),
    (plan(memory=BF16, sync=(Sync(through=Servers(own=False)),)), "half precision with parameter servers"),
    (
        plan(memory=BF16, sync=(Sync(payload=Payload.PARAMETER, frequency=Frequency(2)),)),
        "half precision where replicas train apart",
    ),
    (plan(memory=BF16, sync=()), "half precision where replicas train apart"),
    (plan(memory=BF16, sync=(Sync(wire=Wire(codecs=(Codec("topk"),))),)), "half precision with codecs"),
    (pipe(sync=(Sync(wire=Wire(codecs=(CLIPPED,))),)), "own gradient ahead of a codec between stages"),
    (owned(CLIPPED), "own gradient ahead of a codec with sharded state"),
    (owned(Codec("powersgd")), "codecs in rounds with sharded state"),
    (owned(Codec("topk"), update=Update(corrections=(AHEAD,))), "momentum ahead of a codec with sharded state"),
    (plan(memory=Memory(tiles=2)), "offloading or tiles"),
    (plan(update=Update(corrections=(LATE,))), "corrections of the update rule"),
    (plan(update=Update(corrections=(Correction("nesterov", (("momentum", 0.9),)),))), "corrections of the update"),
    (plan(kernels=(Kernel("*", "winograd"),)), "kernel choices"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_carried_out_is_refused(asked: Plan, words: str) -> None:
    with pytest.raises(LoweringError) as refusal:
        lower(two_layers(), asked, cluster_of(4))
    one_sentence(refusal.value, asked, words)


CONTRADICTIONS = [
    (plan(mesh=Mesh((("data", 5),))), "needs 5 devices"),
    (plan(mesh=Mesh((("data", 0),))), "length 0"),
    (plan(sync=(Sync(over="pipe"),)), "mesh axis 'pipe'"),
    (plan(schedule=Schedule(microbatches=0)), "0 microbatches"),
    (plan(memory=Memory(loss_scale=8.0)), "use precision=fp16"),
    (plan(memory=Memory(precision=Precision.FP16, loss_scale=1000.0)), "a power of two"),
    (plan(memory=Memory(precision=Precision.FP16, sums=Precision.BF16)), "use sums=fp32"),
    (plan(schedule=Schedule(microbatches=3)), "does not divide"),
    (plan(sync=(Sync(consistency=Consistency(lag=-1)),)), "lag -1"),
    (plan(sync=(Sync(frequency=Frequency(-1)),)), "period -1"),
    (plan(sync=(Sync(wire=Wire(slice_bytes=-1)),)), "0 or more"),
    (plan(sync=(Sync(through=Servers(5, own=False)),)), "5 servers"),
    (pipe(stages=(Stage(), Stage("y", (1, 2)))), "ranks of its own"),
    (pipe(stages=(Stage("", (0, 1)), Stage("y", (1, 2)))), "ranks of its own"),
    (pipe(stages=(Stage("", (0, 1)), Stage("y", (2,)))), "2 replicas on its mesh"),
    (dealt((0, 1, 2), (3,), 2), "2 microbatches out to 3 replicas"),
    (dealt((0, 1, 2), (3, 4), 4), "needs 5 devices"),
    (plan(before=(Phase(0, Plan("first")),)), "0 steps"),
    (plan(sync=(Sync(through=Gossip("around"), payload=Payload.PARAMETER),)), "push, pull, pair"),
    (plan(sync=(Sync(through=Gossip("pull", 0), payload=Payload.PARAMETER),)), "0 partners"),
    (plan(sync=(Sync(through=Neighbours("star"), payload=Payload.PARAMETER),)), "no graph 'star'"),
    (plan(sync=(Sync(payload=Payload.DUAL),)), "a penalty of 0"),
    (plan(sync=(Sync(wire=Wire(collective="doubling", codecs=(Codec("q8", where="hop"),))),)), "unlike sums"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "words"), CONTRADICTIONS, ids=[words for _, words in CONTRADICTIONS])
def test_a_contradiction_is_refused(asked: Plan, words: str) -> None:
    with pytest.raises(PlanError) as refusal:
        lower(two_layers(), asked, cluster_of(4))
    one_sentence(refusal.value, asked, words)


def test_a_graph_of_one_batch_size_is_not_divided() -> None:
    fixed = replace(two_layers(), symbolic=False, blind="it branches on its data")
    with pytest.raises(PlanError, match="it branches on its data"):
        lower(fixed, plan(), cluster_of(4))
    assert last_program(fixed, Plan("single"), cluster_of(4)).size == 1


def one_sentence(error: PartitaError, asked: Plan, words: str) -> None:
    assert asked.name in str(error)
    assert words in str(error)
    assert "\n" not in str(error)
    assert error.exit_code == 2


def test_a_weight_is_updated_just_before_forward_reads_it() -> None:
    graph = two_layers()
    program = lower(graph, call("ddp(bucket_bytes=48,first_bucket_bytes=48)", graph, cluster_of(4)), cluster_of(4))[
        0
    ].program
    assert [{p.parameter for p in b.pieces} for b in program.buckets] == [{"b"}, {"a"}, {"a"}]
    compute = [i.name for i in program.roles[0].on("compute")]
    assert compute[:5] == ["U1", "U2", "F0", "U0", "F1"]


def test_gradients_of_the_first_layers_overtake_where_there_is_more_than_a_bucket() -> None:
    graph = two_layers()
    wire = Wire(bucket_bytes=48, order=Priority.PRIORITY)
    small = Wire(bucket_bytes=10**6, order=Priority.PRIORITY)
    assert urgent_from(graph, buckets_of(graph, small), small) == len(buckets_of(graph, small))
    assert urgent_from(graph, buckets_of(graph, wire), wire) == len(buckets_of(graph, wire)), "a is most of all bytes"
    first = graph.parameters[0]
    thin = replace(graph, parameters=(replace(first, tensor=Tensor((1, 1), "float32")), *graph.parameters[1:]))
    buckets = buckets_of(thin, wire)
    assert [b.pieces[0].parameter for b in buckets[urgent_from(thin, buckets, wire) :]] == ["a"]


def test_plans_that_cut_alike_share_their_stages() -> None:
    """But for those of another minibatch, and those that compute again."""
    graph, machines = two_layers(), cluster_of(2)

    def stages(text: str, minibatch: Graph = graph) -> tuple[Graph, ...]:
        return program_by(text, minibatch, machines).stages

    found = stages("gpipe(stages=2,data=1,microbatches=2)")
    assert all(map(operator.is_, found, stages("one_f_one_b(stages=2,data=1,microbatches=4)")))
    assert not any(map(operator.is_, found, stages("gpipe(stages=2,data=1,microbatches=2,recompute=full)")))
    other = of_minibatch(graph, 4)
    assert [stage.global_batch for stage in stages("gpipe(stages=2,data=1,microbatches=2)", other)] == [4, 4]


def test_a_precision_of_its_own_for_a_step_that_was_not_captured_is_told_where_to_set_it() -> None:
    graph = replace(two_layers(), rung="opaque")
    with pytest.raises(LoweringError) as caught:
        lower(graph, call("ddp(precision=bf16)", graph, cluster_of(2)), cluster_of(2))
    sentence = str(caught.value)
    assert "asks for precision=bf16, and two-layers could not be captured" in sentence
    assert "leave out precision= and set Task(precision=...), one of fp64, fp32, bf16, fp16" in sentence
    assert "partita recipes" not in sentence


def test_the_last_program_is_that_of_the_phase_that_no_other_follows() -> None:
    graph, machines = two_layers(), cluster_of(4)
    late, gossip = (
        plan(),
        Plan(
            "first",
            FOUR,
            sync=(
                Sync(
                    through=Gossip(),
                ),
            ),
        ),
    )
    after = replace(late, before=(Phase(3, replace(late, name="first", sync=())),))
    assert last_program(graph, after, machines) == lower(graph, after, machines)[-1].program
    assert last_program(graph, after, machines) == last_program(graph, late, machines)
    assert lower(graph, after, machines)[0].program != last_program(graph, after, machines)
    with pytest.raises(LoweringError, match="first asks for"):
        last_program(graph, replace(late, before=(Phase(3, gossip),)), machines)


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if "bucket_bytes" in recipe.knobs])
def test_many_buckets_have_names_of_their_own(name: str) -> None:
    """Two numbers in one name need something between them: 1 and 0 are not 10."""
    graph, text = replace(layers(24), global_batch=12), f"{name}(bucket_bytes=24)"
    program = program_by(text, graph, machines_for(text, graph, cluster_of(4)))
    assert len(program.buckets) > 20
