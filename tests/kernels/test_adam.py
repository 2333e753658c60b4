"""Adam in one pass: torch's own up to roundings, wherever a number stands; what asks for more is left alone."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.kernels.adam import ROOM, OnePassAdam, in_one_pass

ULPS = 4
rates = st.floats(0.0, 0.999)


def stepped(optimizer: torch.optim.Optimizer, weights: list[torch.Tensor], steps: int = 3) -> list[torch.Tensor]:
    """Weights and state after some steps, the gradients drawn alike each time."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for weight in weights:
            drawn = torch.randn(weight.shape, generator=draw, dtype=torch.float64)
            weight.grad = (drawn * 10.0 ** torch.randn(1, generator=draw)).to(weight.dtype)
        optimizer.step()
    kept = (optimizer.state[weight][name] for weight in weights for name in ("exp_avg", "exp_avg_sq", "step"))
    return [*(weight.detach() for weight in weights), *kept]


def weights_of(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw, dtype=dtype).requires_grad_() for shape in shapes]


@settings(max_examples=40)
@given(
    kind=st.sampled_from((torch.optim.Adam, torch.optim.AdamW)), first=rates, second=rates, decay=st.floats(0.0, 0.5),
    dtype=st.sampled_from((torch.float32, torch.float64)),
)  # fmt: skip
def test_it_is_torchs_own_up_to_roundings(
    kind: type[torch.optim.Adam], first: float, second: float, decay: float, dtype: torch.dtype
) -> None:
    one, other = weights_of((37, 5), (11,), dtype=dtype), weights_of((37, 5), (11,), dtype=dtype)
    settings_: dict[str, Any] = {"lr": 0.01, "betas": (first, second), "weight_decay": decay}
    plain, quick = kind(one, **settings_), in_one_pass(kind(other, **settings_))
    assert isinstance(quick, OnePassAdam)
    for a, b in zip(stepped(plain, one), stepped(quick, other), strict=True):
        near = ULPS * torch.finfo(dtype).eps
        torch.testing.assert_close(b, a, rtol=near, atol=near * float(a.abs().max()))


def test_a_numbers_place_does_not_matter() -> None:
    """So pieces of weights may be joined and cut: each has the same bits."""
    whole, parts = weights_of((1003,)), weights_of((1003,))
    cut = [part.detach().clone().requires_grad_() for part in parts[0].detach().split((7, 600, 396))]
    ours, theirs = (in_one_pass(torch.optim.AdamW(each)) for each in (whole, cut))
    gradient = torch.randn(1003, generator=torch.Generator().manual_seed(2))
    whole[0].grad = gradient
    for one, grad in zip(cut, gradient.split((7, 600, 396)), strict=True):
        one.grad = grad
    ours.step()
    theirs.step()
    assert torch.equal(whole[0], torch.cat(cut))


def test_a_gradient_may_lie_otherwise_than_its_weight() -> None:
    (one,), (other,) = weights_of((130, ROOM // 64)), weights_of((130, ROOM // 64))
    gradient = torch.randn(ROOM // 64, 130, generator=torch.Generator().manual_seed(3)).t()
    one.grad, other.grad = gradient, gradient.contiguous()
    for each in (one, other):
        in_one_pass(torch.optim.Adam([each])).step()
    assert torch.equal(one, other)


def test_a_row_may_be_longer_than_what_is_put_in_order_at_once() -> None:
    (one,), (other,) = weights_of((2, ROOM + 3)), weights_of((2, ROOM + 3))
    gradient = torch.randn(ROOM + 3, 2, generator=torch.Generator().manual_seed(4)).t()
    one.grad, other.grad = gradient, gradient.contiguous()
    quick = [in_one_pass(torch.optim.AdamW([each], lr=0.1)) for each in (one, other)]
    for each in quick:
        each.step()
    assert torch.equal(one, other)
    assert quick[0].defaults == torch.optim.AdamW([one], lr=0.1).defaults


def test_it_goes_on_from_torchs_state() -> None:
    one, other = weights_of((50,)), weights_of((50,))
    plain, quick = torch.optim.AdamW(one), in_one_pass(torch.optim.AdamW(other))
    stepped(plain, one)
    other[0].data.copy_(one[0].data)
    quick.load_state_dict(deepcopy(plain.state_dict()))
    for a, b in zip(stepped(plain, one), stepped(quick, other), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-7)


class Own(torch.optim.AdamW):
    """A user's own."""


def hooked(weights: list[torch.Tensor]) -> torch.optim.Optimizer:
    found = torch.optim.AdamW(weights)
    found.register_step_post_hook(lambda *_: None)
    return found


@pytest.mark.parametrize(
    "make",
    [
        Own, hooked, torch.optim.NAdam, lambda w: torch.optim.Adam(w, amsgrad=True),
        lambda w: torch.optim.Adam(w, maximize=True), lambda w: torch.optim.AdamW(w, foreach=True),
        lambda w: torch.optim.AdamW(w, fused=True), lambda w: torch.optim.AdamW(w, lr=torch.tensor(0.1)),
        lambda w: torch.optim.AdamW([one.detach().bfloat16() for one in w]),
        lambda w: torch.optim.Adam(w, capturable=True), lambda w: torch.optim.Adam(w, differentiable=True),
        lambda w: torch.optim.AdamW([torch.ones(3, 2).t() for _ in w]),
    ],
)  # fmt: skip
def test_what_is_asked_for_otherwise_is_left_alone(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    own = make(weights_of((5,)))
    assert in_one_pass(own) is own
