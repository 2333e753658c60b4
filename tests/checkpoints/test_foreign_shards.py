"""Shards whose digests are right and whose values no run wrote: a run goes on from them, or refuses them in words."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from partita.checkpoints.checkpoint import SavePolicy, place_of
from partita.checkpoints.manifest import read_manifest, write_manifest
from partita.checkpoints.restore import open_checkpoint
from partita.checkpoints.shard import VALUES, write_tensors
from partita.errors import InputError
from tests.checkpoints.test_conversions import trained
from tests.small import perceptron

Parts = list[tuple[dict[str, torch.Tensor], dict[str, Any]]]
OTHERS: tuple[Any, ...] = (
    None, True, 2**70, "x", [[1]], {"tuple": [1, "x"]}, {"dict": [[1, 2]]}, {"tensor": ["int64", [1], [1]]},
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkpoint of two ranks after a step."""
    trained(perceptron(), "ddp", 2, 1, keep=SavePolicy(str(tmp_path), 1))
    return place_of(tmp_path, 1)


def parts_of(place: Path) -> Parts:
    """Tensors and values of each file."""
    found: Parts = []
    for file in read_manifest(place).files:
        shard: Any
        with safe_open(place / file.name, "pt") as shard:
            tensors = {key: shard.get_tensor(key) for key in shard.keys()}  # noqa: SIM118
            found.append((tensors, json.loads(shard.metadata()[VALUES])))
    return found


def write(place: Path, parts: Parts, words: str = "") -> None:
    """The same checkpoint with other contents, as its writer would sign them."""
    files = [
        write_tensors(tensors, place / f"rank-{rank}.safetensors", {VALUES: words or json.dumps(values)})
        for rank, (tensors, values) in enumerate(parts)
    ]
    write_manifest(place, replace(read_manifest(place), files=tuple(files)))


def go_on(place: Path) -> None:
    trained(perceptron(), "ddp", 2, 2, saved=open_checkpoint(place))


@pytest.mark.parametrize(
    ("key", "tensor"),
    [
        ("parameter//-1/0:-1/0.weight", torch.zeros(2, 2, 2)), ("parameter//-1/0:-1/0.weight", torch.zeros(())),
        ("random/torch/0/0:-1/", torch.zeros(3)), ("random/numpy/0/0:-1/", torch.zeros(0, dtype=torch.bool)),
    ],
)  # fmt: skip
def test_a_tensor_of_another_shape_or_kind_is_refused(place: Path, key: str, tensor: torch.Tensor) -> None:
    parts = parts_of(place)
    assert key in parts[0][0]
    parts[0][0][key] = tensor
    write(place, parts)
    with pytest.raises(InputError, match=r"step-1 holds something else|the checkpoint has 0.weight as") as caught:
        go_on(place)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value", [*OTHERS[1:], {"dict": [["lr", "x"]]}, {"dict": [["momentum", {"tuple": []}]]}], ids=str
)
def test_settings_that_are_none_are_refused(place: Path, value: Any) -> None:
    parts = parts_of(place)
    for key in [key for key in parts[0][1] if key.startswith("settings/")]:
        parts[0][1][key] = value
    write(place, parts)
    with pytest.raises(InputError):
        go_on(place)


@pytest.mark.parametrize("words", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', "[" * 9000, "[]", "x"])
def test_words_that_are_no_json_of_ours_are_refused(place: Path, words: str) -> None:
    write(place, parts_of(place), words)
    with pytest.raises(InputError, match="is no shard of a checkpoint"):
        open_checkpoint(place)


def test_shards_with_any_change_are_gone_on_from_or_refused(place: Path) -> None:
    whole, draw, done = parts_of(place), random.Random(3), 0
    for _ in range(12):
        parts: Parts = [(dict(tensors), dict(values)) for tensors, values in whole]
        tensors, values = parts[0]
        key = draw.choice([*tensors, *values])
        other = "/".join(draw.choice((word, word, "x", "-5")) for word in key.split("/"))
        if key in values:
            values[draw.choice((key, other))] = draw.choice(OTHERS)
        else:
            tensor = tensors.pop(key)
            tensors[draw.choice((key, other))] = draw.choice((tensor, tensor.to(torch.bool), tensor.reshape(-1)[:3]))
        write(place, parts)
        with suppress(InputError):
            go_on(place)
            done += 1
    assert 0 < done < 12
