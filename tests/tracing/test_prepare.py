"""Samples become batches, and what a forward pass changes shows, as every rank prepares them."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from partita.tracing.prepare import build_batch, read_batch, standing
from tests.small import perceptron


class Samples:
    """Three numbers, which may be read one by one, many at once or as a batch."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index), dtype=torch.float64)


class Many(Samples):
    def __getitems__(self, positions: Sequence[int]) -> list[torch.Tensor]:
        return [torch.tensor(10.0 * position) for position in positions]


class Collated(Many):
    def collated(self, positions: Sequence[int]) -> torch.Tensor:
        return torch.tensor([100.0 * position for position in positions])


def test_samples_are_read_in_the_widest_way_that_a_task_leaves_to_its_data() -> None:
    task = perceptron()
    assert [read_batch(task, data, [2, 1]).tolist() for data in (Samples(), Many(), Collated())] == [
        [2.0, 1.0], [20.0, 10.0], [200.0, 100.0],
    ]  # fmt: skip
    own = replace(task, collate=lambda samples: torch.stack(samples) + 1)
    assert read_batch(own, Collated(), [2, 1]).tolist() == [21.0, 11.0]


def test_a_mapping_of_any_kind_is_a_dict_and_floats_are_in_the_precision() -> None:
    def collate(samples: list[Any]) -> Any:
        return UserDict(x=torch.stack(samples), y=torch.arange(len(samples)))

    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        batch = build_batch(replace(perceptron(), data=Samples(), collate=collate, batch_size=2), [0, 1], precision)
        assert type(batch) is dict
        assert (batch["x"].dtype, batch["y"].dtype) == (dtype, torch.int64)


def test_a_tensor_does_not_stand_as_it_did_once_it_is_changed_in_either_way() -> None:
    value = torch.ones(3)
    before = standing(value)
    assert standing(value) == before
    value.add_(1)
    changed = standing(value)
    assert changed != before
    value.data = value.data + 1
    assert standing(value) != changed
