"""A loop of one's own on two real ranks ends where one process ends that knows the same minibatches."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, Sampler

import partita as pt
from partita.errors import OptionError, PlanError
from partita.runs.apply import Slices
from tests.runs.loop_of_ones_own import BATCH, STEPS, loop, made

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks leave behind under two plans."""
    found = tmp_path_factory.mktemp("ranks")
    words = [str(found), "ddp(bucket_bytes=512,first_bucket_bytes=64)", "local_sgd(period=2)"]
    module = [sys.executable, "-m", "tests.runs.loop_of_ones_own", *words]
    done = subprocess.run(module, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return found


def weights(place: Path, number: int) -> list[dict[str, torch.Tensor]]:
    return [torch.load(place / f"{number}.{rank}") for rank in (0, 1)]


def test_all_reduced_gradients_are_those_of_one_process(place: Path) -> None:
    found = weights(place, 0)
    model, optimizer, loader = made(3)
    loop(model, optimizer, loader)
    for name, weight in model.state_dict().items():
        assert torch.equal(found[0][name], found[1][name]), name
        assert torch.allclose(found[0][name], weight, rtol=1e-12, atol=1e-14), name


def test_local_steps_are_those_of_replicas_that_meet(place: Path) -> None:
    found = weights(place, 1)
    replicas = [made(3), made(3)]
    halves = [Slices(loader, rank, 2, 0) for rank, (_, _, loader) in enumerate(replicas)]
    batches = [[batch for _ in range(2) for batch in half][:STEPS] for half in halves]
    for step in range(STEPS):
        for (model, optimizer, _), own in zip(replicas, batches, strict=True):
            loop(model, optimizer, [own[step]], 1)
        if step % 2:
            with torch.no_grad():
                for one, other in zip(replicas[0][0].parameters(), replicas[1][0].parameters(), strict=True):
                    one.copy_((one + other) / 2)
                    other.copy_(one)
    for rank, (model, _, _) in enumerate(replicas):
        for name, weight in model.state_dict().items():
            assert torch.allclose(found[rank][name], weight, rtol=1e-12, atol=1e-14), name


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_every_minibatch_of_an_epoch(world: int) -> None:
    loader: DataLoader[Any] = DataLoader(range(40), batch_size=BATCH, shuffle=True)  # type: ignore[arg-type]
    ranks = [Slices(loader, rank, world, seed=5) for rank in range(world)]
    epochs = []
    for _ in range(2):
        parts = [[(batch.tolist(), each.share) for batch in each] for each in ranks]
        for minibatch in zip(*parts, strict=True):
            assert sum(share for _, share in minibatch) == pytest.approx(1.0)
            size = sum(len(own) for own, _ in minibatch)
            assert all(share == len(own) / size for own, share in minibatch)
        epochs.append([number for minibatch in zip(*parts, strict=True) for own, _ in minibatch for number in own])
    assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 2
    assert epochs[0] != epochs[1]


class Drawn(Sampler[int]):
    """Draws from Python's and NumPy's generators."""

    def __iter__(self) -> Iterator[int]:
        order = random.sample(range(40), 40)
        return iter(order[k] for k in np.random.permutation(40))

    def __len__(self) -> int:
        return 40


def test_ranks_draw_alike_whatever_draws() -> None:
    loader: DataLoader[Any] = DataLoader(range(40), batch_size=8, sampler=Drawn())  # type: ignore[arg-type]
    parts = [[number for batch in Slices(loader, rank, 2, seed=5) for number in batch.tolist()] for rank in (0, 1)]
    assert sorted(parts[0] + parts[1]) == list(range(40))


class WithoutEnd(Sampler[int]):
    """Draws for ever, as minGPT's does for 10^10 samples, from the generator that the loop draws from too."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(torch.randint(40, ()))


def test_minibatches_are_drawn_as_they_are_asked_for() -> None:
    loader: DataLoader[Any] = DataLoader(range(40), batch_size=8, sampler=WithoutEnd())  # type: ignore[arg-type]
    parts, after = [], []
    for rank in (0, 1):
        torch.manual_seed(3)
        whole = Slices(loader, rank, 2, seed=5)
        taken = []
        for batch in itertools.islice(whole, 4):
            taken += batch.tolist()
            torch.rand(rank)  # what the loop draws is its own affair
        parts.append(taken)
        after.append(whole.share)
    torch.manual_seed(5)
    drawn = torch.stack([torch.randint(40, ()) for _ in range(32)]).view(4, 2, 4)
    assert parts == [drawn[:, rank].flatten().tolist() for rank in (0, 1)]
    assert after == [0.5, 0.5]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("size", [1, 2, 11])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_is_as_long_as_the_minibatches_that_it_gives(world: int, size: int, drop_last: bool) -> None:
    loader: DataLoader[Any] = DataLoader(range(23), batch_size=size, drop_last=drop_last)  # type: ignore[arg-type]
    for rank in range(world):
        part = Slices(loader, rank, world, seed=5)
        assert len(part) == len(list(part))


def joined(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is rank 0 of so many that the caller has joined."""
    for name, value in {"is_initialized": True, "get_rank": 0, "get_world_size": world}.items():
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("ps_sync", "more than a loop's backward"),
        ("pipe_sgd", "more than a loop's backward"),
        ("ddp(microbatches=2)", "without microbatches"),
        ("ddp", "is for 1 ranks"),
        ("auto", "needs a captured task"),
        ("dpd", "did you mean 'ddp'?"),
    ],
)
def test_a_plan_that_a_loop_cannot_mean_is_refused(plan: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    joined(2, monkeypatch)
    chosen = pt.recipes.ddp(*bare()) if plan == "ddp" else plan
    with pytest.raises(PlanError, match=words):
        pt.apply(chosen, nn.Linear(2, 2), None, None)


def bare() -> tuple[pt.Graph, pt.Cluster]:
    from tests.small import cluster_of, two_layers

    return two_layers(), cluster_of(1)


class Endless(IterableDataset[int]):
    """Has no samples to divide."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def test_a_loader_that_cannot_be_divided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    joined(2, monkeypatch)
    for loader in ([1, 2], DataLoader(Endless(), batch_size=2)):
        with pytest.raises(OptionError, match="give a DataLoader"):
            pt.apply("ddp", nn.Linear(2, 2), None, loader)
    samples = torch.arange(8)
    divided = DistributedSampler(samples, 2, 0)  # type: ignore[arg-type]
    for loader in (
        DataLoader(samples, batch_size=2, sampler=divided),  # type: ignore[arg-type]
        DataLoader(samples, batch_sampler=BatchSampler(divided, 2, False)),  # type: ignore[arg-type]
    ):
        with pytest.raises(OptionError, match="without a DistributedSampler"):
            pt.apply("ddp", nn.Linear(2, 2), None, loader)


def test_without_ranks_there_is_nothing_to_apply_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(OptionError, match="torchrun"):
        pt.apply("ddp", nn.Linear(2, 2), None, None)


def test_one_rank_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    joined(1, monkeypatch)
    given = made(1)
    assert pt.apply("single", *given) == given
