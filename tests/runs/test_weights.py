"""The first weights of a run, as a launcher writes them and its workers map them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from partita.checkpoints import shard
from partita.errors import TaskError
from partita.runs.assembly import initial
from partita.runs.weights import first_weights, load_weights, map_first, save_weights, write_first
from partita.task import Task
from partita.zoo.tasks import classify


class Tied(nn.Module):
    """A tied weight, a buffer that is not kept with the weights, two buffers that share their memory."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.norm = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)
        self.other.weight = self.one.weight
        self.register_buffer("mask", torch.ones(1).expand(4), persistent=False)
        self.register_buffer("again", self.mask)
        self.register_buffer("flags", torch.ones(2, dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.other(self.one(x))) * self.mask
        return found


def tied() -> Task:
    samples = [(torch.zeros(4), 0)] * 4
    return Task("tied", Tied, classify, samples, partial(torch.optim.SGD, lr=0.1), batch_size=2)


def test_workers_begin_where_a_process_by_itself_would(tmp_path: Path) -> None:
    """With the same weights and buffers, and the same random numbers to come; who writes keeps its own."""
    before = torch.get_rng_state()
    write_first(tied(), 7, "", tmp_path / "first")
    assert torch.equal(torch.get_rng_state(), before)
    found, state = map_first(tmp_path / "first")
    _, values = initial(tied(), 7)
    assert found.keys() == values.keys()
    assert all(torch.equal(found[name], values[name]) for name in values)
    assert torch.equal(state, torch.get_rng_state())


def test_weights_of_a_file_take_the_place_of_the_seeds(tmp_path: Path) -> None:
    model, values = initial(tied(), 1)
    save_weights(model, tmp_path / "one")
    write_first(tied(), 2, str(tmp_path / "one"), tmp_path / "first")
    for found in (map_first(tmp_path / "first")[0], first_weights(tied(), 3, str(tmp_path / "one"))):
        assert all(torch.equal(found[name], values[name]) for name in values)


def test_files_of_another_model_are_refused(tmp_path: Path) -> None:
    save_weights(nn.Linear(4, 4), tmp_path / "other")
    with pytest.raises(TaskError, match=r"lacks flags, .*; it belongs to another model"):
        load_weights(Tied(), tmp_path / "other")
    with pytest.raises(TaskError, match="holds no weights"):
        load_weights(Tied(), tmp_path / "absent")
    save_file({"one.weight": torch.ones(4, 4), "one.bias": torch.ones(4)}, tmp_path / "part")
    with pytest.raises(TaskError, match=r"lacks flags, norm\.bias, norm\.num_batches_tracked, norm\.running_mean"):
        load_weights(Tied(), tmp_path / "part")


@pytest.mark.parametrize(
    ("name", "dtype", "kept"),
    [
        ("one.weight", torch.int64, False),
        ("one.weight", torch.complex64, False),
        ("norm.num_batches_tracked", torch.float32, False),
        ("norm.num_batches_tracked", torch.int32, True),
        ("flags", torch.int64, False),
        ("flags", torch.bool, True),
        ("one.weight", torch.float64, True),
        ("one.weight", torch.bfloat16, True),
    ],
)
def test_a_dtype_that_loses_values_is_refused(name: str, dtype: torch.dtype, kept: bool, tmp_path: Path) -> None:
    model = Tied()
    save_weights(model, tmp_path / "one")
    found = load_file(tmp_path / "one")
    save_file(found | {name: found[name].to(dtype)}, tmp_path / "other")
    if kept:
        load_weights(Tied(), tmp_path / "other")
        return
    with pytest.raises(
        TaskError, match=rf"other has {name} in {str(dtype)[6:]} instead of \w+, in which values are lost"
    ):
        load_weights(Tied(), tmp_path / "other")


def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors writes under a name that nobody knows; as large as the model, it would stay for good."""

    class Killed(BaseException):
        pass

    def begun(tensors: object, path: Path, words: object) -> None:
        (path.parent / ".tmpAb3dEf").write_text("half of it")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shard, "save_file", begun)
        with pytest.raises(Killed):
            save_weights(Tied(), tmp_path / "model.safetensors")
    save_weights(Tied(), tmp_path / "model.safetensors")
    assert [path.name for path in tmp_path.rglob("*")] == ["model.safetensors"]
