"""What a card computes is what the processor does. Skipped, and said so, where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from partita import api
from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cluster.text import load_cluster
from partita.kernels import attention, batch_norm, cards, layer_norm
from partita.lowering.lower import last_program
from partita.plan.plan import Plan
from partita.plan.wire import Codec
from partita.program.space import Kind
from partita.runs.assembly import train_in_process
from partita.runs.execution import run
from partita.runs.session import Job, Session
from partita.runs.world import join_world
from partita.runtime.device import backend_of
from partita.runtime.draws import DRAWS, attention_backward, attention_forward
from partita.runtime.workload import Workload
from partita.task import Task
from partita.tracing import dropped_attention
from partita.tracing.capture import capture
from partita.tracing.recurrent import CELLS, layer_backward, layer_forward
from partita.transport.processes import Processes
from tests.kernels.agreement import LENGTHS, disagreements, numbers
from tests.oracles.matrix_models import MODELS
from tests.small import dropping, perceptron

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and this machine has none")
CARD = "cuda:0"
ONE = Cluster("local:card", Group("one", (Device(kind="card", backend="cuda"),), (Link(1e9),)))


MADE: dict[str, Callable[[], Task]] = {
    "plain": perceptron, "drawing": dropping, "recurrent": lambda: replace(MODELS["lstm"](), batch_size=12),
    "convolutions": lambda: replace(MODELS["resnet"](), batch_size=12),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _whole() -> Iterator[None]:
    """In whole fp32: by default cuDNN rounds what it multiplies to TF32."""
    parts = (torch.backends.cudnn.rnn, torch.backends.cudnn.conv)
    before = [part.fp32_precision for part in parts]
    for part in parts:
        part.fp32_precision = "ieee"
    yield
    for part, was in zip(parts, before, strict=True):
        part.fp32_precision = was


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize(
    ("text", "ranks"), [("single", 1), ("ddp", 2), ("zero3", 2), ("gpipe(stages=2,microbatches=2)", 2)]
)
def test_weights_are_those_of_the_processor(name: str, text: str, ranks: int) -> None:
    task = MADE[name]()
    graph, cluster, found = capture(task), load_cluster(f"local:{ranks}"), []
    plan = api.plan_of(text, graph, cluster)
    for device in ("cpu", CARD):
        states, losses = train_in_process(Workload(task, graph, keyed=True, device=device), plan, cluster, 3)
        leaves = {name: leaf.cpu() for state in states.values() for name, leaf in state.leaves.items()}
        found.append([*(leaves[p.name] for p in graph.parameters), torch.tensor([*losses.values()])])
    for mine, theirs in zip(*found, strict=True):
        loose = name == "convolutions"  # statistics of few numbers
        torch.testing.assert_close(mine, theirs, rtol=1e-2 if loose else 1e-4, atol=1e-3 if loose else 1e-5)


def session_of(task: Task) -> tuple[Session, Plan]:
    """A rank on the card that is alone."""
    graph = capture(task)
    session = Session(task, graph, ONE, 0, 0, 1, 60.0, CARD)
    session.open()
    return session, api.plan_of("single", graph, ONE)


def test_a_run_on_a_card_has_spans_in_order_and_a_peak() -> None:
    session, plan = session_of(perceptron())
    reply = run(session, Job(plan, 8), lambda event: None)
    spans = sorted((s for s in reply["spans"] if s["lane"] == "compute"), key=lambda s: (s["round"], s["start"]))
    assert spans
    assert all(a["start"] <= a["end"] <= b["start"] + 1e-6 for a, b in pairwise(spans))
    ends = [end for _, end in reply["ends"]]
    assert ends == sorted(ends)
    watch = session.memory(Job(plan, 0))
    program = last_program(session.graph, plan, ONE)
    assert watch is not None
    assert watch.held >= watch.peak > sum(bucket.size for bucket in program.buckets)


def test_a_group_of_one_moves_nothing_and_ends() -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533", "RANK": "0", "WORLD_SIZE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        join_world(0, 1, 60.0, backend_of(ONE))
        try:
            transport, flat = Processes(0), torch.arange(1000.0, device=CARD)
            transport.join([("wire", (0,))], 60.0, messages=False)
            for kind in Kind:
                assert transport.collective(kind, flat, (0,), "wire", str(kind), 0, (0, 1000)).block(60.0)
                assert flat.cpu().equal(torch.arange(1000.0))
        finally:
            torch.distributed.destroy_process_group()


MASKS = [(False, False), (True, False), (False, True)]  # torch takes one mask


@pytest.mark.parametrize("width", [32, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("causal", "masked"), MASKS)
def test_attention_is_that_of_the_processor(dtype: torch.dtype, causal: bool, masked: bool, width: int) -> None:
    q, k, v, d = (torch.randn(2, 3, 40, width) for _ in range(4))
    mask = torch.randn(40, 40) if masked else None
    aten = torch.ops.aten
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask)
    wanted = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d, q, k, v, out, sums, 0.0, causal, attn_mask=mask
    )
    q, k, v, d = (x.to(CARD, dtype) for x in (q, k, v, d))
    bias = None if mask is None else mask.to(CARD, dtype)
    made, logs = attention.forward(q, k, v, 0.0, causal, attn_mask=bias)
    found = attention.backward(d, q, k, v, made, logs, 0.0, causal, attn_mask=bias)
    wide = 1e-4 if dtype is torch.float32 else 6e-2
    for mine, theirs in zip((made, *found), (out, *wanted), strict=True):
        torch.testing.assert_close(mine.float().cpu(), theirs, rtol=wide, atol=wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("causal", "masked"), MASKS)
def test_attention_that_drops_weights_is_that_of_the_processor(dtype: torch.dtype, causal: bool, masked: bool) -> None:
    """What was kept shows in the output of unit values, and is kept again where the generator begins there again."""
    q, k, v, d = (torch.randn(2, 3, 40, 40).to(dtype) for _ in range(4))
    mask, told = torch.randn(40, 40).to(dtype) if masked else None, (0.25, causal, None)
    env: dict[str, Any] = {DRAWS: None}
    at, key, value, gradient = (x.to(CARD) for x in (q, k, v, d))
    bias, unit = None if mask is None else mask.to(CARD), torch.eye(40).expand(2, 3, 40, 40).to(at)
    torch.manual_seed(4)
    shown, _, _ = attention_forward(env, at, key, unit, bias, *told, 0)
    torch.manual_seed(4)
    made, sums, state = attention_forward(env, at, key, value, bias, *told, 0)
    found = attention_backward(env, gradient, at, key, value, bias, made, sums, state, *told)
    kept = shown.cpu() != 0
    possible = torch.ones(40, 40).tril() if causal else torch.ones(40, 40)
    assert float(kept.sum() / (6 * possible.sum())) == pytest.approx(0.75, abs=0.03)
    source = dropped_attention.keyed(lambda *_: 1.0 - kept.float())
    out, sums, state = dropped_attention.forward(source, torch.zeros(2, dtype=torch.int64), q, k, v, mask, *told)
    wanted = dropped_attention.backward(source, d, q, k, v, mask, out, sums, state, *told)
    wide = {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 6e-2)
    for mine, theirs in zip((made, *found), (out, *wanted), strict=True):
        torch.testing.assert_close(mine.double().cpu(), theirs.double(), rtol=wide, atol=wide)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_norms_of_short_rows_are_those_of_the_processor(dtype: torch.dtype) -> None:
    """Statistics stay fp32, and results are rounded once."""
    x, d, weight, bias = (torch.randn(*size).to(dtype) for size in ((40, 96), (40, 96), (96,), (96,)))
    name, backward, aten = "aten.native_layer_norm.default", "aten.native_layer_norm_backward.default", torch.ops.aten
    out, *kept = layer_norm.TWINS[name](x, [96], weight, bias, 1e-5)
    wanted = layer_norm.TWINS[backward](d, x, [96], *kept, weight, bias, [True, True, True])
    there = [t.to(CARD) for t in (x, d, weight, bias)]
    made, *own = aten.native_layer_norm(there[0], [96], *there[2:], 1e-5)
    found = aten.native_layer_norm_backward(there[1], there[0], [96], *own, *there[2:], [True, True, True])
    assert [t.dtype for t in (*own, made, *found)] == [torch.float32] * 2 + [dtype] * 4
    for mine, theirs in zip((*own, made, *found), (*kept, out, *wanted), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=torch.finfo(theirs.dtype).eps * 2, atol=1e-3)


@pytest.mark.parametrize("shape", [(8, 5, 7, 9), (4, 3, 2, 6, 5), (16, 6)], ids=str)
def test_batch_norm_is_that_of_the_processor(shape: tuple[int, ...]) -> None:
    x, d_out, channels = torch.randn(shape), torch.randn(shape), shape[1]
    weight, bias, mean = (torch.randn(channels) for _ in range(3))
    settings, results = (True, 0.1, 1e-5), []
    for device in ("cpu", CARD):
        given = [each.to(device) for each in (x, weight, bias, mean, mean**2 + 0.5)]
        ahead = batch_norm.forward if device == CARD else torch.ops.aten._native_batch_norm_legit_functional
        back = batch_norm.backward if device == CARD else torch.ops.aten.native_batch_norm_backward
        made = ahead(*given, *settings)
        kept = (given[0], given[1], given[3], given[4], made[1], made[2])
        results.append([*made, *back(d_out.to(device), *kept, True, 1e-5, [True, True, True])])
        assert given[3].cpu().equal(mean)  # the running ones are not written to
    for theirs, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-4)
    if len(shape) == 2:  # cuDNN is not asked
        return
    reserved = torch.ops.aten.cudnn_batch_norm(*(g.to(CARD) for g in (x, weight, bias, mean, mean**2)), True, 0.1, 1e-5)
    assert reserved[3].numel() == 0


@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrent_layers_are_those_of_the_processor(cell: Any, reverse: bool) -> None:
    gates = {"lstm": 4, "gru": 3}[cell.name]
    shapes = [(5, 2, 6), (gates * 8, 6), (gates * 8, 8), (gates * 8,), (gates * 8,), *[(2, 8)] * cell.states]
    leaves, results = [torch.randn(shape) for shape in shapes], []
    ahead = [torch.randn(5, 2, 8), *(torch.randn(2, 8) for _ in range(cell.states))]
    for device in ("cpu", CARD):
        given = [leaf.to(device) for leaf in leaves]
        places = [each.data_ptr() for each in given]
        out, *last, space = layer_forward(cell, *given, reverse=reverse)
        made = layer_backward(cell, *given, out, *last, space, *(d.to(device) for d in ahead), reverse=reverse)
        assert [each.data_ptr() for each in given] == places  # cuDNN's own buffer is no weight's place
        results.append([out, *last, *made])
    for theirs, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", sorted(cards.TRITON))
def test_codecs_say_what_the_processor_says(name: str, dtype: torch.dtype) -> None:
    """Of many lengths, of numbers of all sizes, of a million and one; messages that begin at an odd byte."""
    pair = cards.pair_of(name, torch.ones(1, device=CARD))
    assert pair, "no kernels for this card: it is too old, or Triton is missing"
    many = [numbers(n, dtype) for n in (*LENGTHS, 1_000_001)]
    many += [torch.zeros(100, dtype=dtype), numbers(3000, dtype, 1.0) * 10.0 ** torch.linspace(-30, 30, 3000)]
    assert not [text for v in many for at in (0, 1) for text in disagreements(Codec(name), v, pair, 7, CARD, at)]
