"""Products in TF32: as fp32 in everything but what cards round that they multiply, and how long that takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import partita as pt
from partita.cluster.cluster import Cluster
from partita.cluster.text import shipped_device
from partita.cost.datasheet import datasheet_costs
from partita.cost.kernels import rate_of
from partita.errors import ClusterError, LoweringError, PlanError
from partita.lab.costing import costs_of
from partita.lowering.lower import last_program
from partita.oracles.check import checked
from partita.recipes.catalogue import call
from partita.runtime import device
from partita.runtime.segment import compile_segment
from partita.searches.fit import fit_of
from partita.simulator.simulate import simulate
from tests.captures import capture
from tests.small import cluster_of, perceptron

PLANS = (
    ("single", 1), ("ddp(microbatches=2)", 2), ("zero3(bucket_bytes=50)", 2), ("gpipe(stages=2,microbatches=2)", 2),
    ("ps_sync", 3), ("pipe_sgd", 2),
)  # fmt: skip


def cards(size: int, part: str = "a100-sxm") -> Cluster:
    return cluster_of(size).changed(lambda _: replace(shipped_device(part), ghost=True))


def in_tf32(text: str) -> str:
    return text.removesuffix(")") + ("," if "(" in text else "(") + "precision=tf32)"


@pytest.mark.parametrize(("text", "size"), PLANS)
def test_it_takes_the_bytes_of_fp32_and_the_products_are_quicker(text: str, size: int) -> None:
    graph, cluster = capture(perceptron()), cards(size)
    plain, rounded = (call(each, graph, cluster) for each in (text, in_tf32(text)))
    costs = costs_of(graph, cluster, [plain, rounded], source="datasheet")
    one, other = (simulate(last_program(graph, plan, cluster), costs) for plan in (plain, rounded))
    assert (one.memory, one.wire_sent) == (other.memory, other.wire_sent)
    assert last_program(graph, rounded, cluster).semantics == "lossy"
    assert fit_of(plain, graph, cluster).used == fit_of(rounded, graph, cluster).used


def test_products_go_at_the_rate_of_tf32_and_all_else_as_before() -> None:
    graph, cluster = capture(perceptron()), cards(1)
    slow = replace(cluster, root=replace(cluster.root, members=(replace(cluster.devices[0], flops=(
        ("fp32", 1e3), ("tf32", 8e3), ("bf16", 16e3))),)))  # fmt: skip
    costs = datasheet_costs(graph, slow, (8,), precisions=("tf32",))
    plain, rounded = costs.prices(8), costs.prices(8, "tf32")
    faster = {graph.operators[graph.index[name]].target for name in plain if rounded[name] < plain[name]}
    assert faster
    assert faster <= {"aten.mm.default", "aten.addmm.default"}
    assert all(rounded[name] == plain[name] for name in plain if "mm" not in name)
    assert rate_of(slow.devices[0], "float32", tf32=True) > 7 * rate_of(slow.devices[0], "float32")


@pytest.mark.parametrize(("text", "size"), PLANS[:4])
def test_on_a_processor_it_is_the_training_in_fp32(text: str, size: int) -> None:
    machines = cards(size)
    found = checked(perceptron(), lambda graph: call(in_tf32(text), graph, machines), machines, steps=2)
    assert (found["equal"], found["semantics"]) == (True, "lossy")
    assert "without TF32's rounding" in found["against"]


@pytest.mark.parametrize("part", ["", "v100-sxm2"])
def test_devices_without_it_are_named(part: str) -> None:
    """Processors, and cards before Ampere."""
    graph, cluster = capture(perceptron()), cards(2, part) if part else cluster_of(2)
    kind = cluster.devices[0].kind
    with pytest.raises(PlanError, match=rf"computes in TF32, which {kind} of .* does not have: .*; use precision=fp32"):
        last_program(graph, call("ddp(precision=tf32)", graph, cluster), cluster)


def test_weights_in_fp64_are_refused_and_verify_is_not() -> None:
    """A task's own; of any other, `verify` captures the step in fp64."""
    task = replace(perceptron(), precision="fp64")
    with pytest.raises(
        LoweringError, match=r"asks for precision=tf32, and the weights of .* are fp64, of which nothing"
    ):
        pt.simulate(capture(task), "ddp(precision=tf32)", cards(2))
    with pytest.raises(LoweringError, match="are fp64"):
        pt.verify(task, "ddp(precision=tf32)", cards(2), steps=1)
    assert pt.verify(perceptron(), "ddp(precision=tf32)", cards(2), steps=1).equal


def test_a_card_multiplies_so_within_a_segment_and_not_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    capable, seen = [(8, 0)], list[str]()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capable[0])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100")

    def code(fails: bool) -> None:
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        seen.append(torch.get_float32_matmul_precision())  # what torch.compile reads
        if fails:
            raise ValueError("fails")

    rounding = device.in_tf32(code, "cuda:0")
    rounding(False)
    with pytest.raises(ValueError, match="fails"):
        rounding(True)
    assert seen == ["tf32", "high"] * 2
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"
    assert torch.get_float32_matmul_precision() == "highest"
    capable[0] = (7, 0)
    with pytest.raises(ClusterError, match=r"Tesla V100 has none: .*; use precision=fp32"):
        device.in_tf32(code, "cuda:0")


def test_what_the_task_has_set_by_itself_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    torch.set_float32_matmul_precision("high")
    try:
        device.in_tf32(lambda: None, "cuda:0")()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_only_segments_on_cards_of_such_a_step_do(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr("partita.runtime.segment.in_tf32", lambda code, where: asked.append(where) or code)
    graph, cluster = capture(perceptron()), cards(1)
    step = last_program(graph, call("single(precision=tf32)", graph, cluster), cluster).graph_of(-1, graph)
    concrete, plain = (replace(each, symbolic=False) for each in (step, graph))
    for each, where in ((concrete, "cuda:1"), (concrete, "cpu"), (plain, "cuda:0")):
        compile_segment(each, 0, 0, where)
    assert asked == ["cuda:1"]
