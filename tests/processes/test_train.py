"""Real processes in the lab end where a plain PyTorch loop ends that knows only the documented data order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import default_collate

from partita import api
from partita.graph.cuts import legal_cuts
from partita.plan.mesh import Mesh, Stage
from partita.plan.plan import Plan
from partita.plan.schedule import Order, Schedule
from partita.plan.sync import Sync
from partita.recipes.catalogue import call
from partita.report.record import read_record
from partita.runtime.run import train_in_process
from partita.task import Task


def plain_loop(task: Task, steps: int, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    batch = task.batch_size
    for step in range(steps):
        epoch, k = divmod(step, len(task.data) // batch)
        order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(seed + epoch))
        samples = [task.data[int(i)] for i in order[k * batch : (k + 1) * batch]]
        optimizer.zero_grad()
        loss = task.loss(model, default_collate(samples))
        (loss[0] / loss[1] if isinstance(loss, tuple) else loss).backward()
        if task.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip_norm)
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


PIPELINES = ["one_f_one_b(stages=3,microbatches=2)", "zero_bubble(stages=3,microbatches=4,recompute=full)"]


@pytest.mark.parametrize("plan", ["single", "ddp(recompute=selective)", "ps_sync", *PIPELINES])
@pytest.mark.parametrize("place", ["local:3", pytest.param("lab-4x1g", marks=pytest.mark.lab)])
def test_weights_equal_a_plain_loop(plan: str, place: str, tmp_path: Path) -> None:
    train_and_compare("digits-cnn", plan, place, tmp_path)


@pytest.mark.parametrize("plan", ["ddp(microbatches=2)", "ps_sync(servers=2,own=false)"])
def test_parts_that_weigh_unequally(plan: str, tmp_path: Path) -> None:
    train_and_compare("tests/runtime/padded.py:padded", plan, "local:3", tmp_path)


def test_collectives_of_our_own(tmp_path: Path) -> None:
    """CO-06 in real processes: 3 = 2 + 1 ranks, message by message."""
    train_and_compare("digits-cnn", "ddp(collective=blocks)", "local:3", tmp_path)


@pytest.mark.slow
def test_servers_in_two_tiers(tmp_path: Path) -> None:
    """DP-08 in real processes: two workers, each under a server of its own, and a root."""
    train_and_compare("digits-cnn", "ps_hierarchical(fan=2,bucket_bytes=20000)", "local:5", tmp_path)


@pytest.mark.slow
def test_servers_with_copies(tmp_path: Path) -> None:
    """FT-02 in real processes, where nobody is lost: a server and two copies."""
    train_and_compare("digits-cnn", "ps_replicated(replicas=3,bucket_bytes=20000)", "local:5", tmp_path)


def test_stages_of_unequal_replicas(tmp_path: Path) -> None:
    """PP-05, a weighted loss and a bounded norm: all three are agreed on over stages."""
    task = "tests/runtime/padded.py:bounded"
    graph = api.graph_of(task)
    first = [cut.position for cut in legal_cuts(graph)][1]
    stages = (Stage("", (0, 1)), Stage(graph.operators[first].name, (2,)))
    plan = Plan("unequal", Mesh((("pipe", 2),)), stages, schedule=Schedule(Order.ONE_F_ONE_B, 4), sync=(Sync(),))
    train_and_compare(task, plan, "local:3", tmp_path)


SLOW_CODECS = (
    "dgc(ratio=0.01,clip=1),ramp=1", "powersgd", "fixed", "dettmers8", "qsgd", "dorefa", "adaptive", "inceptionn",
    "adacomp", "topk(ratio=0.05),collective=sparse_doubling", "topk(ratio=0.05)+q8,collective=sparse_split_dense",
    "topk(ratio=0.05),collective=kylix",
)  # fmt: skip

SERVED_CODECS = ("ps_sync(codec=dgc(ratio=0.1,clip=0.5)+q8(where=server),ramp=1)",)


@pytest.mark.slow
def test_schedules_chosen_by_the_clock(tmp_path: Path) -> None:
    """collective=auto in real processes."""
    train_and_compare("digits-cnn", "ddp(collective=auto)", "local:3", tmp_path)


@pytest.mark.parametrize(
    "plan",
    [
        "ddp(codec=q8)", "ddp(codec=threshold(threshold=0.001))", "ddp(codec=topk(ratio=0.05),collective=sparse_split)",
        *(pytest.param(f"ddp(codec={codec})", marks=pytest.mark.slow) for codec in SLOW_CODECS),
        *(pytest.param(plan, marks=pytest.mark.slow) for plan in SERVED_CODECS),
    ],
)  # fmt: skip
def test_codecs_in_processes(plan: str, tmp_path: Path) -> None:
    """QU-15 per hop, SP-01 with messages of varying length, CO-09, and slowly CO-08, QU-02, QU-04, QU-07, QU-11, QU-13,
    QU-14, SP-03, SP-04, EX-02, also at servers (QU-05, QU-06): real processes end where all ranks in one process do,
    which computes with one thread as they do: a codec makes a whole level of a last bit."""
    task, machines = api.load("digits-cnn"), api.cluster_of("local:3")
    done = api.train("digits-cnn", plan, machines, steps=4, seed=3, out=str(tmp_path))
    assert done is not None
    graph = api.graph_of("digits-cnn")
    with one_thread():
        states, _ = train_in_process(task, graph, call(plan, graph, machines), machines, 4, seed=3)
    for name, weight in load_file(done.weights_path).items():
        assert torch.allclose(weight, states[0].leaves[name], rtol=1e-4, atol=1e-6), name


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_and_compare(task: str, plan: str | Plan, place: str, out: Path) -> None:
    done = api.train(task, plan, api.cluster_of(place), steps=5, seed=3, out=str(out))
    assert done is not None
    assert read_record(out).rows[0].final_loss == done.final_loss
    ours, theirs = load_file(done.weights_path), plain_loop(api.load(task), 5, 3)
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert torch.allclose(ours[name], weight, rtol=1e-4, atol=1e-6), name
