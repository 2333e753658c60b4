"""Laws of what data sheets say that a kernel takes, and of what its host takes to launch it."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cluster.cluster import Cluster, Device
from partita.cluster.parts import parts
from partita.cluster.text import shipped_device
from partita.cost.costs import Costs
from partita.cost.datasheet import LAUNCH, VIEW, datasheet_costs, operator_seconds, passes_of, roofline
from partita.cost.kernels import (
    BANDWIDTH,
    ISSUE,
    KERNEL,
    LASTING,
    MEMORY,
    RAMP,
    UNSTATED,
    bandwidth_of,
    exponentials,
    issue_of,
    multiplying,
    peak_of,
    rate_of,
    streaming,
)  # fmt: skip
from partita.cost.launching import joined, sides, slower
from partita.cost.touch import Touch
from partita.cost.winograd import filtering, minimal_filtering
from partita.graph.contraction import Contraction, contractions_of
from partita.graph.graph import Graph, Optimizer, Parameter
from partita.graph.operator import Operator, Ref, Symbol
from partita.graph.tensor import Tensor
from partita.lowering.lower import last_program
from partita.recipes.catalogue import call
from partita.simulator.simulate import simulate, step_seconds
from partita.wire.codec import read_codecs
from tests.programs import program_by
from tests.small import cluster_of, two_layers

CARD = Device(
    "card", "cuda", (("fp32", 14e12), ("tf32", 60e12), ("bf16", 112e12)), memory_bandwidth=900e9, multiprocessors=80
)
ADAM = Optimizer("Adam", (("exp_avg", 1.0, "float32"), ("exp_avg_sq", 1.0, "float32")))
SIZE = st.integers(1, 20_000)
SHAPES = st.builds(Contraction, st.just(1.0), st.integers(1, 64), SIZE, SIZE, SIZE)


def seconds(product: Contraction, dtype: str = "float32") -> float:
    return multiplying(CARD, product, dtype, 4 if dtype == "float32" else 2)


@given(SHAPES, st.sampled_from(["float32", "bfloat16"]))
def test_no_product_is_faster_than_the_peak(product: Contraction, dtype: str) -> None:
    assert seconds(product, dtype) > product.flops / peak_of(CARD, dtype)


@given(SHAPES, st.sampled_from(["parts", "rows", "columns", "depth"]), st.integers(1, 300))
def test_more_of_a_product_never_takes_less(product: Contraction, side: str, more: int) -> None:
    assert seconds(replace(product, **{side: getattr(product, side) + more})) >= seconds(product)


@given(SHAPES, st.floats(1.1, 50))
def test_a_faster_card_is_faster_by_no_more_than_that(product: Contraction, factor: float) -> None:
    flops = tuple((name, factor * speed) for name, speed in CARD.flops)
    fast = replace(CARD, flops=flops, memory_bandwidth=factor * CARD.memory_bandwidth)
    slow, quick = seconds(product), multiplying(fast, product, "float32", 4)
    assert slow / factor * (1 - 1e-9) <= quick <= slow


def test_tiles_at_the_edge_and_waves_at_the_end_are_whole() -> None:
    """64 rows are one tile's; as many tiles as multiprocessors are one wave, and one more is a part of another."""
    at = [seconds(Contraction(1.0, 80, rows, 64, 64)) for rows in (1, 63, 64, 65)]
    assert at[0] == at[1] == at[2] < at[3]
    wave = [seconds(Contraction(1.0, parts, 64, 64, 4096)) for parts in (40, 79, 80, 81)]
    assert wave[1] == wave[2] < 1.1 * wave[2] < wave[3] < 2 * wave[2]
    assert wave[0] < wave[1]  # with half as many the depth is split


def test_large_products_come_near_the_peak_and_small_ones_do_not() -> None:
    def share(size: int) -> float:
        product = Contraction(1.0, 1, size, size, size)
        return product.flops / seconds(product, "bfloat16") / 112e12

    assert LASTING > share(8192) > 0.8 * LASTING > 0.5 > share(512) > share(128)


def test_a_dtype_without_a_peak_goes_at_that_of_fp32() -> None:
    assert peak_of(CARD, "float16") == peak_of(CARD, "float32") == 14e12
    assert peak_of(CARD, "float32", tf32=True) == 60e12
    assert peak_of(Device("bare", "cuda"), "float32") > 0


@pytest.mark.parametrize(
    ("peak", "watts", "share"),
    [(312e12, 400, 0.869), (989e12, 700, 0.803), (989e12, 900, 0.838), (2250e12, 1000, 0.776)],
)
def test_half_precision_goes_by_the_power_that_it_has(peak: float, watts: float, share: float) -> None:
    """The best products that were published of an A100, an H100, a GH200 and a B200; fp32 has power enough."""
    card = replace(CARD, flops=(("fp32", 14e12), ("bf16", peak)), power=watts)
    assert issue_of(card, "bf16") == pytest.approx(share, rel=0.02)
    assert issue_of(card, "bf16") <= ISSUE == issue_of(card, "fp32") == issue_of(CARD, "bf16")
    assert issue_of(replace(card, power=watts / 2), "bf16") < issue_of(card, "bf16")


@pytest.mark.parametrize(
    ("part", "best"),
    [("rtx3090", 24.7), ("a6000", 23.9), ("h100-sxm", 52.0), ("h100-pcie", 37.0), ("rtx5090", 67.6), ("a100-sxm", 19.1),
     ("v100-sxm2", 14.1), ("p40", 10.1), ("gtx1080ti", 10.1)],
)  # fmt: skip
def test_lanes_of_fp32_are_not_all_fed_where_there_are_many(part: str, best: float) -> None:
    """The best products that were published, by the rule alone: 0.70 of the peak of a 3090 and 0.98 of an A100's."""
    bare = replace(shipped_device(part), sustained=())
    assert rate_of(bare, "float32") == pytest.approx(best * 1e12, rel=0.14)


def test_what_is_known_to_last_goes_before_the_rule() -> None:
    """A T4 has 70 W; what it does not name goes at the speed of fp32, and another format by its own."""
    card = replace(CARD, sustained=(("fp32", 3e12), ("tf32", 20e12)))
    assert rate_of(card, "float32") == rate_of(card, "float16") == 3e12
    assert rate_of(card, "float32", tf32=True) == 20e12
    assert rate_of(card, "bfloat16") == rate_of(CARD, "bfloat16") > rate_of(CARD, "float32") > 3e12
    product = Contraction(1.0, 1, 8192, 8192, 8192)
    assert multiplying(card, product, "float32", 4) > product.flops / 3e12 > seconds(product)


@pytest.mark.parametrize(
    ("peak", "many", "ticks"),
    [(15.7e12, 80, 1.53e9), (19.5e12, 108, 1.41e9), (67e12, 132, 1.98e9), (10.6e12, 56, 1.48e9)],
)
def test_exponentials_are_sixteen_at_a_tick(peak: float, many: int, ticks: float) -> None:
    """Of V100, A100, H100 and P100, whose clocks are published and whose lanes are 64, 64, 128 and 64."""
    card = replace(CARD, flops=(("fp32", peak),), multiprocessors=many)
    assert exponentials(card, 16 * many * ticks) == pytest.approx(1, rel=0.01)
    assert exponentials(card, 0.0) == 0


def convolved(image: tuple[int, ...], weight: tuple[int, ...], *, stride: int = 1, dilation: int = 1) -> Graph:
    """Two layers, the first read as an image by a convolution; as a graph of that operator alone."""
    graph, side = two_layers(), (image[2] + 2 - dilation * (weight[2] - 1) - 1) // stride + 1
    read, kernel = Ref("input.0"), Ref("p")
    one = (stride,) * 2, (1, 1), (dilation,) * 2, False, (0, 0), image[1] // weight[1]
    made = Tensor((image[0], weight[0], side, side), "float32")
    return replace(
        graph, inputs=(("input.0", Tensor(image, "float32")),), parameters=(Parameter("p", Tensor(weight, "float32")),),
        operators=(Operator("conv", "aten.convolution.default", (read, kernel, None, *one), outputs=(made,)),),
    )  # fmt: skip


FP32 = replace(CARD, flops=(("fp32", 14e12),))


def test_narrow_windows_are_filtered_where_that_is_faster() -> None:
    """3 x 3 at every place in fp32, of enough channels: with fewer products than the peak allows for all, never fewer
    than a quarter."""
    graph = convolved((32, 256, 28, 28), (256, 256, 3, 3))
    direct = contractions_of(graph.operators[0], graph, 1)[0].flops / 14e12
    found = operator_seconds(FP32, graph.operators[0], graph, 1)
    assert direct / 4 < found < 0.8 * direct
    assert found == pytest.approx(filtering(FP32, 32, 256, 256, 28, 28) + KERNEL)
    assert minimal_filtering(CARD, graph.operators[0], graph, 1) == inf  # on tensor cores


@pytest.mark.parametrize(
    "graph",
    [
        convolved((32, 256, 28, 28), (256, 256, 5, 5)), convolved((32, 256, 28, 28), (256, 256, 3, 3), stride=2),
        convolved((32, 256, 28, 28), (256, 256, 3, 3), dilation=2), convolved((32, 256, 28, 28), (256, 128, 3, 3)),
    ],
    ids=["wider", "in strides", "dilated", "in groups"],
)  # fmt: skip
def test_other_windows_are_not_filtered(graph: Graph) -> None:
    assert minimal_filtering(FP32, graph.operators[0], graph, 1) == inf


def test_few_channels_have_tiles_of_their_own() -> None:
    """A convolution to 16 channels does not compute 64."""
    product = Contraction(1.0, 1, 100_000, 16, 2304)
    narrow, wide = (multiplying(FP32, product, "float32", 4, convolution=each) for each in (True, False))
    assert narrow < 0.6 * wide


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_what_streams_takes_its_bytes(moved: float, more: float) -> None:
    assert streaming(CARD, moved + more) >= streaming(CARD, moved) >= moved / CARD.memory_bandwidth
    assert streaming(CARD, 1e9) == pytest.approx(1e9 / (MEMORY * 900e9))


def carded(size: int, device: Device = CARD) -> Cluster:
    plain = cluster_of(size)
    return replace(plain, root=replace(plain.root, members=(device,) * size))


@pytest.mark.parametrize(
    "part", ["k80", "p100-sxm2", "v100-sxm2", "t4", "a100-sxm", "l4", "rtx4090", "h100-sxm", "b200-sxm"]
)
def test_a_card_that_does_not_say_how_fast_its_memory_is_has_an_accelerators(part: str) -> None:
    """Not a processor's core's: its step is within a factor of three of what its sheet says with it."""
    graph, known = two_layers(2000), shipped_device(part)
    silent = replace(known, memory_bandwidth=0.0)
    times = [sum(operator_seconds(each, o, graph, 2**16) for o in graph.operators) for each in (known, silent)]
    assert 1 / 3 < times[1] / times[0] < 3
    assert 1 / 3 < bandwidth_of(silent) / known.memory_bandwidth < 3
    assert bandwidth_of(replace(silent, backend="cpu")) == BANDWIDTH
    mute = replace(known, flops=(), sustained=())
    short = max(dict(known.flops).get(name, 0.0) for name in ("bf16", "fp16"))
    assert not short or 1 / 3 < peak_of(mute, "bfloat16") / short < 3
    assert 1 / 6 < peak_of(mute, "float32") / peak_of(known, "float32") < 6
    assert bandwidth_of(replace(mute, memory_bandwidth=0.0)) == UNSTATED


def test_a_card_that_states_neither_is_no_processors_core() -> None:
    """It took 90 times as long as any: its memory and its products are those of the median of the parts that ship."""
    nothing, known = Device("bare", "cuda"), [shipped_device(part) for part in parts()]
    assert {each.backend for each in known} == {"cuda"}
    assert bandwidth_of(nothing) == UNSTATED == median(each.memory_bandwidth for each in known)
    assert bandwidth_of(Device("bare", "cpu")) == BANDWIDTH
    middle = median(peak_of(each, "bfloat16") for each in known if {"bf16", "fp16"} & dict(each.flops).keys())
    assert 1 / 2 < peak_of(nothing, "bfloat16") / middle < 2
    graph = two_layers(2000)
    times = [sum(operator_seconds(each, o, graph, 2**16) for o in graph.operators) for each in (nothing, *known)]
    assert min(times[1:]) < times[0] < max(times[1:])


def test_processors_keep_the_roofline() -> None:
    graph, machine = two_layers(), cluster_of(1)
    costs = datasheet_costs(graph, machine, (4,))
    assert costs.launching is None
    first = graph.operators[0]
    assert costs.prices(4)[first.name] == operator_seconds(machine.devices[0], first, graph, 4)
    assert roofline(CARD, "float32", 0.6 * 14e12, 0.0) == pytest.approx(1 + 5e-6)
    double = replace(CARD, flops=(*CARD.flops, ("fp64", 7e12)))
    assert roofline(double, "float64", 0.6 * 14e12, 0.0) == pytest.approx(2 + 5e-6)


@pytest.mark.parametrize("cores", [0.5, 0.25])
def test_a_part_of_a_core_does_what_its_data_sheet_says(cores: float) -> None:
    """Its FLOPs and bytes a second are the part's own: a step takes as long as on a device of such a sheet that has no
    quota, and as many core-seconds as the quota is of that."""
    graph, whole = two_layers(), Device(flops=(("fp32", 1e5),), memory_bandwidth=1e5)
    found = []
    for device in (whole, replace(whole, cores=cores)):
        machine = carded(1, device)
        costs = datasheet_costs(graph, machine, (8,))
        found.append(simulate(program_by("single", graph, machine), costs, rounds=40))
    assert found[1].step_seconds == pytest.approx(found[0].step_seconds, rel=0.01)
    assert found[1].cores[0] == pytest.approx(cores * found[0].cores[0], rel=0.01)


def test_a_small_step_is_what_launching_it_takes_and_a_wide_one_is_not() -> None:
    """A step of launches is as long however fast the card is; a wide one is not held up by its host."""
    machine = carded(1)

    def step(width: int) -> tuple[float, float]:
        graph = two_layers(width)
        costs = datasheet_costs(graph, machine, (64,))
        program = last_program(replace(graph, global_batch=64), call("single", graph, machine), machine)
        assert slower(costs, 64) is (costs.launching if width < 100 else costs)
        assert len(sides(program, costs)) == (2 if width < 100 else 1)
        host = costs.launching
        assert host is not None
        assert set(host.operators.values()) <= {LAUNCH, VIEW}
        both = step_seconds(program, costs)
        assert both == pytest.approx(simulate(program, costs).step_seconds)
        return both, step_seconds(program, replace(costs, launching=None))

    small, wide = step(6), step(1_000_000)
    assert small[0] > small[1] > 10 * (KERNEL - RAMP)
    assert wide[0] == wide[1]


@pytest.mark.parametrize("speeds", [(1.0, 0.9), (0.9, 1.0), (0.9, 8.0)])
def test_hosts_are_alike_whatever_cards_they_launch_on(speeds: tuple[float, ...]) -> None:
    """A step that is all launches takes as long on unlike cards as on equal ones; and a card so quick that it waits for
    its host does so where the sheet's own card would not."""
    graph, plain = two_layers(), carded(2)
    unlike = replace(plain, root=replace(plain.root, members=tuple(replace(CARD, speed=each) for each in speeds)))
    equal, found = (
        step_seconds(program_by("ddp", graph, machine), replace(costs, instruction=0.0))
        for machine in (plain, unlike)
        for costs in [datasheet_costs(graph, machine, (4,))]
    )
    assert found == pytest.approx(equal)
    wide = two_layers(1_000_000)
    for speed, many in ((1.0, 1), (1e4, 2)):
        machine = carded(1, replace(CARD, speed=speed))
        assert len(sides(program_by("single", wide, machine), datasheet_costs(wide, machine, (8,)))) == many


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_sheets_are_calibrated_by_what_was_measured(backend: str) -> None:
    """Operators by as much as those that were measured are off, in the mean of a step, launching them by what that is
    off; all else is as it was measured, but for devices' differences of a moment."""
    graph, cluster = two_layers(), carded(2, CARD) if backend == "cuda" else cluster_of(2)
    sheet, other = (datasheet_costs(graph, cluster, (size,)) for size in (2, 4))

    def times(costs: Costs, factor: float) -> Costs:
        return replace(costs, operators={name: factor * value for name, value in costs.operators.items()}, _sums={})

    host = times(sheet.launching, 5.0) if sheet.launching else None
    wiring = replace(sheet.wiring, message=0.25)
    measured = replace(
        times(sheet, 3.0), wiring=wiring, launching=host, source="measured", slowdowns=(1.0, 1.1), add=Touch(1.0, 2.0)
    )  # fmt: skip
    found = datasheet_costs(graph, cluster, (4,), measured=measured)
    assert found.operators == pytest.approx({name: 3 * value for name, value in other.operators.items()})
    assert (found.sizes, found.source, found.slowdowns) == ((4,), "datasheet", ())
    assert (found.wiring, found.add) == (wiring, Touch(1.0, 2.0))
    if other.launching:
        assert found.launching
        assert found.launching.operators == pytest.approx({n: 5 * v for n, v in other.launching.operators.items()})


def test_joined_costs_know_both_batches_on_both_sides() -> None:
    graph, machine = two_layers(), carded(1)
    both = joined(datasheet_costs(graph, machine, (4,)), datasheet_costs(graph, machine, (8,)))
    assert both.launching is not None
    for side in (both, both.launching):
        assert 0 < side.segment(0, len(graph.operators), 4) <= side.segment(0, len(graph.operators), 8)


@pytest.mark.parametrize(
    ("rule", "passes"),
    [
        (Optimizer("SGD"), 3),
        (Optimizer("SGD", (("momentum_buffer", 1.0, "float32"),), momentum=0.9), 8),
        (Optimizer("SGD", (("momentum_buffer", 1.0, "float32"),), momentum=0.9, nesterov=True), 11),
        (replace(ADAM, name="AdamW"), 20),
        (ADAM, 18),
        (replace(ADAM, fused=True), 7),
        (Optimizer("SGD", fused=True), 3),
    ],
)
def test_an_update_on_a_card_goes_over_its_numbers_as_often_as_torch_does(rule: Optimizer, passes: int) -> None:
    assert passes_of(rule) == passes
    graph, machine = replace(two_layers(), optimizer=rule), carded(1)
    element = datasheet_costs(graph, machine, (4,)).update.element
    assert element == pytest.approx(passes * 4 / (MEMORY * 900e9))
    assert datasheet_costs(graph, cluster_of(1), (4,)).update.element == pytest.approx(6 * 4 / (0.8 * 10e9))


@pytest.mark.parametrize(("kind", "forward", "backward"), [("_log_softmax", 4, 4), ("_softmax", 4, 5)])
def test_rows_that_do_not_stay_on_the_chip_are_read_again(kind: str, forward: int, backward: int) -> None:
    """Tensors that go over the bus: one in and one out, two in and one out, and what is read again of long rows."""

    def tensors(length: int, *reads: str) -> float:
        spec = Tensor((64, length), "float32")
        ends = (-1, False) if len(reads) == 1 else (-1, Symbol("dtype", "float32"))
        target = f"aten.{kind}{'' if len(reads) == 1 else '_backward_data'}.default"
        operator = Operator("made", target, (*map(Ref, reads), *ends), (), (spec,))
        graph = replace(two_layers(), operators=(operator,), inputs=(("x", spec), ("y", spec)))
        moved = operator_seconds(CARD, operator, graph, 1) - KERNEL
        return moved * MEMORY * 900e9 / spec.size()

    assert tensors(12 * 1024, "x") == pytest.approx(2)
    assert tensors(12 * 1024, "x", "y") == pytest.approx(3)
    assert tensors(12 * 1024 + 1, "x") == pytest.approx(forward)
    assert tensors(12 * 1024 + 1, "x", "y") == pytest.approx(backward)


@pytest.mark.parametrize("codec", ["fp16", "topk", "onebit", "powersgd(rank=1)"])
def test_a_codec_launches_a_kernel_for_each_tensor_on_a_card(codec: str) -> None:
    """It had none, on the card or its host."""
    costs = datasheet_costs(two_layers(64), carded(4), (8,))
    for side in (costs, costs.launching):
        assert side is not None
        for touch in side.codec(read_codecs(codec)[0]):
            assert touch.of(0, 3) >= 3 * touch.of(0, 1) >= 3 * side.copy.of(0, 1) > 0


def test_each_column_that_becomes_orthonormal_is_launched_by_itself() -> None:
    host = datasheet_costs(two_layers(64), carded(4), (8,)).launching
    assert host is not None
    one, four = (host.codec(read_codecs(f"powersgd(rank={rank})")[0])[0].of(1e6) for rank in (1, 4))
    assert four - one == pytest.approx(3 * 4 * LAUNCH)
