"""partita::lstm_layer and partita::gru_layer compute what torch.lstm and torch.gru compute."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from partita.tracing.fused import Fused
from partita.tracing.recurrent import CELLS, layer_backward, layer_forward


def results(model: Any, value: torch.Tensor, fused: bool) -> list[torch.Tensor]:
    model.zero_grad()
    value = value.clone().requires_grad_()
    if fused:
        with Fused():
            out, ends = model(value)
    else:
        out, ends = model(value)
    h, *c = ends if isinstance(ends, tuple) else (ends,)
    (out.square().mean() + h.sum() * 0.1 + sum(one.square().sum() for one in c) * 0.01).backward()
    return [out, h, *c, value.grad, *(p.grad for p in model.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}, {"batch_first": True}], ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_forward_and_gradients_equal_eager(kind: Any, options: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, value = kind(7, 11, 2, **options).to(dtype), torch.randn(5, 3, 7).to(dtype)
    for ours, theirs in zip(results(model, value, True), results(model, value, False), strict=True):
        if dtype is not torch.float64 and not _same_kernel(kind, dtype):  # torch adds up in another order
            atol = 1e-5 if dtype is torch.float32 else torch.finfo(dtype).eps
            torch.testing.assert_close(ours, theirs, rtol=1.6e-2 if dtype is torch.bfloat16 else 1e-5, atol=atol)
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-13 if dtype is torch.float64 else 1e-6, atol=1e-13)


def _same_kernel(kind: Any, dtype: torch.dtype) -> bool:
    """Whether what stays whole runs what torch runs: oneDNN has LSTMs, those in bf16 not on every processor."""
    return kind is nn.LSTM and (dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_short_dtype_without_a_kernel_is_wide_inside(kind: Any) -> None:
    """In fp16 what the layer makes in fp32 of the same numbers, rounded, and so are gradients; torch's own LSTM fails
    in oneDNN."""
    torch.manual_seed(0)
    model, value = kind(7, 11).half(), torch.randn(5, 3, 7).half()
    short = [each.clone() for each in results(model, value, True)]
    for ours, exact in zip(short, results(model.float(), value.float(), True), strict=True):
        assert ours.dtype is torch.float16
        torch.testing.assert_close(ours.float(), exact, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
def test_gradients_are_of_the_dtype_of_what_they_are_of(cell: Any, short: torch.dtype) -> None:
    gates = {"lstm": 4, "gru": 3}[cell.name]
    shapes = [(5, 3, 7), (gates * 11, 7), (gates * 11, 11), (gates * 11,), (gates * 11,), *[(3, 11)] * cell.states]
    leaves = [torch.randn(shape).to(short) for shape in shapes]
    *ends, space = layer_forward(cell, *leaves, reverse=False)
    found = layer_backward(cell, *leaves, *ends, space, *map(torch.ones_like, ends), reverse=False)
    assert {each.dtype for each in (*ends, *found)} == {short}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences_are_left_to_torch(kind: Any, layers: int) -> None:
    torch.manual_seed(0)
    model, value = kind(7, 11, layers), torch.nn.utils.rnn.pack_padded_sequence(torch.randn(5, 3, 7), [5, 4, 3])
    with Fused():
        ours, _ = model(value)
    assert torch.equal(ours.data, model(value)[0].data)


def test_what_is_no_plain_lstm_is_left_to_torch() -> None:
    torch.manual_seed(0)
    model, value = nn.LSTM(7, 11, proj_size=4), torch.randn(5, 3, 7)
    for ours, theirs in zip(results(model, value, True), results(model, value, False), strict=True):
        assert torch.equal(ours, theirs)


QUERY, KEY = torch.linspace(-1, 1, 240).view(2, 4, 5, 6), torch.linspace(1, -1, 120).view(2, 2, 5, 6)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0.3}, {"is_causal": True}, {"attn_mask": torch.eye(5, dtype=torch.bool)}, {"dropout_p": 1.0},
        {"dropout_p": 1.0, "scale": 0.3},
    ],
    ids=str,
)  # fmt: skip
def test_attention_without_chance_is_torchs(options: Any) -> None:
    attention = partial(nn.functional.scaled_dot_product_attention, QUERY, KEY, KEY.cos(), enable_gqa=True, **options)
    with Fused():
        ours = attention()
    assert torch.equal(ours, attention())


def test_attention_that_torch_refuses_is_refused() -> None:
    mask, half = torch.zeros(5, 5), QUERY.double()
    for given in ((QUERY, QUERY, QUERY, mask, 0.5, True), (QUERY, half, half, None, 0.5)):
        with Fused(), pytest.raises(RuntimeError, match=r"is_causal|dtype"):
            nn.functional.scaled_dot_product_attention(*given)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (1.0, True), (0.5, False)])
@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_without_chance_is_torchs(p: float, training: bool, inplace: bool) -> None:
    ours, theirs = QUERY.clone(), QUERY.clone()
    with Fused():
        made = nn.functional.dropout(ours, p, training, inplace)
    assert torch.equal(made, nn.functional.dropout(theirs, p, training, inplace))
    assert torch.equal(ours, theirs)


def test_dropout_in_place_changes_what_it_is_given() -> None:
    given = QUERY.clone()
    with Fused():
        made = nn.functional.dropout(given, 0.5, True, True)
    assert torch.equal(made, given)
    assert not torch.equal(given, QUERY)
