"""Attention that drops weights: its blocks against whole matrices, and what it draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from partita.kernels.dropping import hashed
from partita.runtime.draws import DRAWS, attention_backward, attention_forward
from partita.tracing import dropped_attention
from partita.tracing.draws import Draws, KeyedDraws
from partita.tracing.fused import Fused

P, SHAPE = 0.3, (3, 2, 7, 9)  # samples, heads, queries, keys
HIDDEN = float("-inf")


def tensors(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v and the gradient of what comes out, heads behind places as models lay them."""
    make = torch.Generator().manual_seed(5)
    sizes = ((7, 5), (9, 5), (9, 4), (7, 4))
    return [torch.randn(3, length, 2, width, generator=make).transpose(1, 2).to(dtype) for length, width in sizes]


def masks() -> dict[str, Tensor | None]:
    make = torch.Generator().manual_seed(6)
    padding = torch.zeros(3, 1, 1, 9).double()
    padding[1, ..., 4:], padding[2] = HIDDEN, HIDDEN  # a short sample, and one that is masked altogether
    return {"none": None, "scores": torch.randn(7, 9, generator=make).double(), "padding": padding}


def whole(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, drops: Tensor) -> Tensor:
    """By the definition: all scores at once."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores if mask is None else scores + mask
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), HIDDEN)
    weights: Tensor = torch.ops.aten._safe_softmax(scores, -1) * drops
    return weights @ v


@pytest.mark.parametrize("room", [5, 20, 60, 150, 2**17])
@pytest.mark.parametrize(("causal", "mask"), [(False, "none"), (True, "none"), (False, "scores"), (False, "padding")])
def test_blocks_of_any_size_are_the_whole(room: int, causal: bool, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropped_attention, "ROOM", room)
    q, k, v, gradient = tensors()
    hides, uniform = masks()[mask], torch.rand(SHAPE, generator=torch.Generator().manual_seed(7))
    source = dropped_attention.keyed(lambda shape, key, along: uniform)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    wanted = whole(leaves[0], leaves[1], leaves[2], hides, causal, (uniform.double() < 1 - P).double() / (1 - P))
    torch.autograd.backward(wanted, gradient)
    told = (P, causal, None)
    out, sums, state = dropped_attention.forward(source, torch.zeros(2, dtype=torch.int64), q, k, v, hides, *told)
    found = dropped_attention.backward(source, gradient, q, k, v, hides, out, sums, state, *told)
    torch.testing.assert_close(out, wanted.detach(), rtol=1e-12, atol=1e-14)
    for ours, leaf in zip(found, leaves, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(ours, leaf.grad, rtol=1e-12, atol=1e-14)


def test_scores_far_apart_leave_weights_of_zero_or_one() -> None:
    """Below the lowest number that is exponentiated, where processors are slow."""
    q, k, v, _ = tensors(torch.float32)
    source = dropped_attention.keyed(lambda shape, key, along: torch.zeros(shape))
    out, _, _ = dropped_attention.forward(
        source, torch.zeros(2, dtype=torch.int64), 1e4 * q, k, v, None, P, False, None
    )
    wanted = whole(1e4 * q, k, v, None, False, torch.full(SHAPE, 1 / (1 - P)))
    torch.testing.assert_close(out, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_run_draws_the_same_in_backward_and_keeps_the_mean(dtype: torch.dtype) -> None:
    """The weights that were dropped show in the output where the values are the unit matrix."""
    torch.manual_seed(3)
    q, k = (torch.randn(4, 8, 64, 16).to(dtype) for _ in range(2))
    v = torch.eye(64, dtype=dtype).expand(4, 8, 64, 64)
    env: dict[str, Any] = {DRAWS: None}
    told = (None, P, False, None)
    out, sums, state = attention_forward(env, q, k, v, *told, 0)
    assert 0.69 < float((out != 0).double().mean()) < 0.71
    shares = (out != 0).double().mean(-1).flatten()
    assert float(shares.std()) == pytest.approx((P * (1 - P) / 64) ** 0.5, rel=0.1)  # as of independent draws
    *_, d_v = attention_backward(env, torch.ones_like(out), q, k, v, None, out, sums, state, *told[1:])
    wide = dtype if dtype is torch.float64 else torch.float32
    torch.testing.assert_close(d_v[..., 0].to(wide), out.to(wide).sum(-2), rtol=2e-2, atol=2e-2)
    again, _, _ = attention_forward(env, q, k, v, *told, 0)
    assert not torch.equal(out, again)


def test_a_hash_differs_by_state_and_by_block() -> None:
    weights, block = torch.empty(2, 2, 50, 50), (slice(0), slice(0), slice(0))
    one, other = hashed(torch.tensor([3, 0]), (), P), hashed(torch.tensor([4, 0]), (), P)
    drawn = [one(block, weights), one(block, weights), other(block, weights)]
    shares = [float((a == b).double().mean()) for a in drawn for b in drawn if a is not b]
    assert sorted(shares) == pytest.approx([P**2 + (1 - P) ** 2] * 6, abs=0.02)
    assert drawn[0].unique().tolist() == pytest.approx([0.0, 1 / (1 - P)])


def test_keyed_draws_follow_samples_and_are_those_of_plain_pytorch() -> None:
    q, k, v, _ = tensors()
    draws = Draws(1, 2, (10, 11, 12))
    out, _, state = attention_forward({DRAWS: draws}, q, k, v, None, P, False, None, 4)
    assert state.tolist() == [4, 0]
    last = Draws(1, 2, (12,))
    alone, _, _ = attention_forward({DRAWS: last}, q[2:], k[2:], v[2:], None, P, False, None, 4)
    torch.testing.assert_close(alone, out[2:], rtol=1e-12, atol=1e-14)
    mode = KeyedDraws(1, 2, (10, 11, 12))
    mode.key = 4
    with mode:
        plain = functional.scaled_dot_product_attention(q, k, v, dropout_p=P)
    torch.testing.assert_close(out, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("way", ["called", "module", "grouped", "masked"])
def test_it_is_one_operator_of_a_trace(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside torch's own module, of fewer heads for keys, and under a mask of booleans."""
    asked: list[int] = []
    monkeypatch.setattr(dropped_attention, "EAGER", _Asked(asked))
    q = torch.randn(2, 4, 6, 8, requires_grad=True)
    with Fused():
        if way == "module":
            layer = nn.MultiheadAttention(8, 2, dropout=P, batch_first=True)
            out, _ = layer(*[torch.randn(2, 6, 8)] * 3, need_weights=False)
        elif way == "grouped":
            k = torch.randn(2, 2, 6, 8)
            out = functional.scaled_dot_product_attention(q, k, k, dropout_p=P, enable_gqa=True)
        else:
            seen = torch.ones(6, 6, dtype=torch.bool).tril() if way == "masked" else None
            out = functional.scaled_dot_product_attention(q, q, q, attn_mask=seen, dropout_p=P)
    out.sum().backward()
    assert len(asked) == 2  # forward and backward


def test_grouped_heads_stay_grouped_where_nothing_is_dropped() -> None:
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    with _Heads() as heads, Fused():
        functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    assert heads.of_keys == [2]


class _Heads(TorchFunctionMode):
    """Notes how many heads the keys have of which torch is asked for attention."""

    def __init__(self) -> None:
        super().__init__()
        self.of_keys: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            self.of_keys.append(args[1].shape[1])
        return func(*args, **(kwargs or {}))


class _Asked:
    def __init__(self, asked: list[int]) -> None:
        self.asked = asked

    def get(self) -> Any:
        self.asked.append(1)
        return dropped_attention.drawn, None


@pytest.mark.parametrize("way", ["learned", "none dropped", "broadcast"])
def test_what_it_does_not_cover_is_left_to_torch(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(dropped_attention, "EAGER", _Asked(asked))
    q, bias = torch.randn(2, 4, 6, 8), torch.zeros(6, 6, requires_grad=way == "learned")
    k = q[:1] if way == "broadcast" else q
    with Fused():
        functional.scaled_dot_product_attention(q, k, k, attn_mask=bias, dropout_p=0.0 if way == "none dropped" else P)
    assert not asked
