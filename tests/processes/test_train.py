"""Real processes in the lab end where a plain PyTorch loop ends that knows only the documented data order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import default_collate

from partita import api
from partita.checkpoints.checkpoint import SavePolicy
from partita.graph.cuts import legal_cuts
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program
from partita.oracles.check import gathered
from partita.plan.mesh import Mesh, Stage
from partita.plan.plan import Plan
from partita.plan.schedule import Order, Schedule
from partita.plan.sync import Sync
from partita.recipes.catalogue import call
from partita.report.record import read_record
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from tests.processes.crews import SEED, Crews

STEPS = 5


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
        loss = task.loss(model, (task.collate or default_collate)(samples))
        (loss[0] / loss[1] if isinstance(loss, tuple) else loss).backward()
        if task.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip_norm)
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


PIPELINES = ["one_f_one_b(stages=3,microbatches=2)", "zero_bubble(stages=3,microbatches=4,recompute=full)"]


@pytest.mark.parametrize("plan", ["single", "ddp(recompute=selective)", "ps_sync", *PIPELINES])
@pytest.mark.parametrize("place", ["local:3", pytest.param("lab-4x1g", marks=pytest.mark.lab)])
def test_weights_equal_a_plain_loop(crews: Crews, plan: str, place: str, tmp_path: Path) -> None:
    train_and_compare(crews("digits-cnn", place), plan, tmp_path)


@pytest.mark.parametrize("plan", ["ddp(microbatches=2)", "ps_sync(servers=2,own=false)"])
def test_parts_that_weigh_unequally(crews: Crews, plan: str, tmp_path: Path) -> None:
    train_and_compare(crews("tests/runtime/padded.py:padded", "local:3"), plan, tmp_path)


@pytest.mark.parametrize("plan", ["ddp(microbatches=2)", "zero3", "ps_sync(servers=2,own=false)"])
def test_a_model_that_is_one_operator(crews: Crews, plan: str, tmp_path: Path) -> None:
    """Samples of unequal lengths, batches with plain numbers: nothing of the step was traced."""
    train_and_compare(crews("tests/runtime/branching.py:ragged", "local:3"), plan, tmp_path)


def test_collectives_of_our_own(crews: Crews, tmp_path: Path) -> None:
    """CO-06 in real processes: 3 = 2 + 1 ranks, message by message."""
    train_and_compare(crews("digits-cnn", "local:3"), "ddp(collective=blocks)", tmp_path)


@pytest.mark.slow
def test_servers_in_two_tiers(crews: Crews, tmp_path: Path) -> None:
    """DP-08 in real processes: two workers, each under a server of its own, and a root."""
    train_and_compare(crews("digits-cnn", "local:5"), "ps_hierarchical(fan=2,bucket_bytes=20000)", tmp_path)


@pytest.mark.slow
def test_servers_with_copies(crews: Crews, tmp_path: Path) -> None:
    """FT-02 in real processes, where nobody is lost: a server and two copies."""
    train_and_compare(crews("digits-cnn", "local:5"), "ps_replicated(replicas=3,bucket_bytes=20000)", tmp_path)


def test_stages_of_unequal_replicas(crews: Crews, tmp_path: Path) -> None:
    """PP-05, a weighted loss and a bounded norm: all three are agreed on over stages."""
    crew = crews("tests/runtime/padded.py:bounded", "local:3")
    graph = crew.graph
    first = [cut.position for cut in legal_cuts(graph)][1]
    stages = (Stage("", (0, 1)), Stage(graph.operators[first].name, (2,)))
    plan = Plan("unequal", Mesh((("pipe", 2),)), stages, schedule=Schedule(Order.ONE_F_ONE_B, 4), sync=(Sync(),))
    train_and_compare(crew, plan, tmp_path)


SLOW_CODECS = (
    "dgc(ratio=0.01,clip=1),ramp=1", "powersgd", "fixed", "dettmers8", "qsgd", "dorefa", "adaptive", "inceptionn",
    "adacomp", "topk(ratio=0.05),collective=sparse_doubling", "topk(ratio=0.05)+q8,collective=sparse_split_dense",
    "topk(ratio=0.05),collective=kylix",
)  # fmt: skip

SERVED_CODECS = (
    "ps_sync(codec=dgc(ratio=0.1,clip=0.5)+q8(where=server),ramp=1)",
    "ps_sync(codec=topk(ratio=0.05,difference=1),own=false)",
)  # fmt: skip


@pytest.mark.slow
def test_schedules_chosen_by_the_clock(crews: Crews, tmp_path: Path) -> None:
    """collective=auto in real processes."""
    train_and_compare(crews("digits-cnn", "local:3"), "ddp(collective=auto)", tmp_path)


@pytest.mark.parametrize(
    "plan",
    [
        "ddp(codec=q8)", "ddp(codec=threshold(threshold=0.001))", "ddp(codec=topk(ratio=0.05),collective=sparse_split)",
        "zero2(codec=onebit,bucket_bytes=9000,microbatches=2)", "ef21(codec=topk(ratio=0.05))",
        *(pytest.param(f"zero1(codec={codec})", marks=pytest.mark.slow) for codec in ("q8", "bf16", "threshold")),
        *(pytest.param(f"ddp(codec={codec})", marks=pytest.mark.slow) for codec in SLOW_CODECS),
        *(pytest.param(plan, marks=pytest.mark.slow) for plan in (*SERVED_CODECS, "diana(bucket_bytes=9000)")),
    ],
)  # fmt: skip
def test_codecs_in_processes(crews: Crews, plan: str, tmp_path: Path) -> None:
    """QU-15 per hop, SP-01 with messages of varying length, CO-09, and slowly CO-08, QU-02, QU-04, QU-07, QU-11, QU-13,
    QU-14, SP-03, SP-04, EX-02, EX-10, EX-11, also at servers (QU-05, QU-06): real processes end where all ranks in one
    process do, which computes with one thread as they do: a codec makes a whole level of a last bit."""
    train_and_compare_with_one_process(crews("digits-cnn", "local:3"), plan, tmp_path)


@pytest.mark.parametrize(
    "wire", ["codec=onebit", "collective=halving", pytest.param("codec=q8,collective=tree", marks=pytest.mark.slow)]
)
def test_sums_of_stages_in_processes(crews: Crews, wire: str, tmp_path: Path) -> None:
    """Two stages of two ranks each, which sum up their own buckets."""
    plan = f"one_f_one_b(stages=2,data=2,microbatches=2,bucket_bytes=9000,{wire})"
    train_and_compare_with_one_process(crews("digits-cnn", "local:4"), plan, tmp_path)


def train_and_compare_with_one_process(crew: Rehearsal, text: str, out: Path) -> None:
    made = call(text, crew.graph, crew.cluster)
    done = crew.train(made, steps=4, keep=SavePolicy(str(out)))
    states, _ = train_in_process(Workload(api.load(crew.task), crew.graph, seed=crew.seed), made, crew.cluster, 4)
    ours = gathered(last_program(crew.graph, made, crew.cluster), states)
    for name, weight in load_file(done.weights).items():
        assert torch.allclose(weight, ours[name], rtol=1e-4, atol=1e-6), name


def test_a_training_is_kept_as_a_run(tmp_path: Path) -> None:
    """By the verb, which starts its own workers and writes what a report reads."""
    done = api.train("digits-cnn", "ddp", api.cluster_of("local:2"), steps=STEPS, seed=SEED, out=str(tmp_path))
    assert done is not None
    assert read_record(tmp_path).rows[0].final_loss == done.final_loss
    assert read_record(tmp_path).rows[0].semantics == "exact"
    kept = (tmp_path / "report.json").read_bytes()
    order: dict[str, Any] = {"steps": STEPS, "seed": SEED, "out": str(tmp_path)}
    again = api.train("digits-cnn", "ddp", api.cluster_of("local:2"), resume=True, **order)
    assert again is not None
    assert again.final_loss == done.final_loss
    assert (tmp_path / "report.json").read_bytes() == kept  # with its spans, of which the result keeps none
    assert_as_a_plain_loop(done.weights_path, api.load("digits-cnn"))


def train_and_compare(crew: Rehearsal, plan: str | Plan, out: Path) -> None:
    """Five steps of a plan by a crew end where a plain loop ends."""
    made = api.plan_of(plan, crew.graph, crew.cluster)
    done = crew.train(made, steps=STEPS, keep=SavePolicy(str(out)))
    assert_as_a_plain_loop(done.weights, api.load(crew.task))


def assert_as_a_plain_loop(path: str, task: Task) -> None:
    ours, theirs = load_file(path), plain_loop(task, STEPS, SEED)
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert torch.allclose(ours[name], weight, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("plan", ["ddp", "zero1", "ddp(recompute=full)"])
def test_each_rank_drops_numbers_of_its_own(crews: Crews, plan: str, tmp_path: Path) -> None:
    """A weight that one of two samples drops moves half as far as one that none does."""
    crew = crews("tests/processes/masks.py:masks", "local:2")
    done = crew.train(call(plan, crew.graph, crew.cluster), steps=1, keep=SavePolicy(str(tmp_path)))
    moved = -load_file(done.weights)["weight"]
    assert set(moved.tolist()) == {0.0, 1.0, 2.0}
    torch.manual_seed(SEED)
    alone = nn.Dropout(0.5)(torch.ones(1, len(moved)))
    assert (moved[alone[0] > 0] >= 1.0).all()  # the first rank's are a plain loop's
