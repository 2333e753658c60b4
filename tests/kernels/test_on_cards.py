"""What stands in for processors' operators on a card: called as torch wants it, with results of the same shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from partita.kernels import attention, layer_norm
from partita.kernels.cards import ANYWHERE
from partita.kernels.codecs import kernel_of
from partita.kernels.site import Site
from partita.plan.wire import Codec
from partita.runtime.segment import resolve
from partita.tracing.recurrent import CELLS, LEAVES, cudnn_backward, cudnn_forward
from partita.wire.codec import SPECS, message_dtype, room, settings_of
from partita.wire.lowrank import factor_counts

CARD = "cuda:0"


@pytest.mark.parametrize("choice", [attention.FLASH, attention.EFFICIENT, attention.CUDNN])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_on_a_card_has_the_shapes_of_the_captured_one(
    choice: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *given, **named: choice)
    with FakeTensorMode():
        q, k, v = (torch.empty(2, 3, length, 16, device=CARD, dtype=torch.bfloat16) for length in (10, 12, 12))
        mask = torch.empty(10, 12, device=CARD, dtype=torch.bfloat16) if masked else None
        out, sums = attention.forward(q, k, v, 0.0, False, attn_mask=mask)
        found = attention.backward(out, q, k, v, out, sums, 0.0, False, attn_mask=mask)
    assert (out.shape, out.device.type) == (q.shape, "cuda")
    assert [d.shape for d in found] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize(
    ("choice", "masked", "width"),
    [
        (attention.FLASH, False, 16),
        (attention.FLASH, False, 20),
        (attention.EFFICIENT, False, 16),
        (attention.EFFICIENT, True, 16),
        (attention.CUDNN, False, 16),
        (attention.CUDNN, True, 16),
    ],
)
def test_attention_that_drops_weights_on_a_card_has_the_shapes_of_the_captured_one(
    choice: int, masked: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of heads that are not as wide as flash takes them."""
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *given, **named: choice)
    captured = torch.ops.partita._scaled_dot_product_dropout_attention
    with FakeTensorMode():
        q, k, v = (torch.empty(2, length, 3, width, device=CARD).transpose(1, 2) for length in (10, 12, 12))
        mask = torch.empty(10, 12, device=CARD) if masked else None
        wanted = captured(*(t.to("meta") for t in (q, k, v)), mask, 0.25, False, None)
        assert attention.takes(q, k, v, mask, 0.25, False, None)
        made, sums, state = attention.dropped(q, k, v, mask, 0.25, False, None)
        begun = torch.empty(2, dtype=torch.int64)
        found = attention.dropped_backward(made, q, k, v, mask, made, sums, begun, 0.25, False, None)
    assert [t.shape for t in (made, state)] == [wanted[0].shape, wanted[2].shape]
    assert made.stride() == wanted[0].stride()
    assert [d.shape for d in found] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize("masked", [False, True])
def test_where_a_card_has_no_kernel_attention_goes_by_blocks(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision under a mask no kernel takes heads 20 wide."""
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *given, **named: attention.NONE)
    q, k, v, gradient = (torch.randn(2, 3, length, 20) for length in (10, 12, 12, 10))
    mask = torch.randn(10, 12) if masked else None
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    wanted = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=mask)
    wanted.backward(gradient)
    out, sums = attention.forward(q, k, v, attn_mask=mask)
    found = attention.backward(gradient, q, k, v, out, sums, 0.0, False, attn_mask=mask)
    for mine, theirs in zip((out, *found), (wanted, *(leaf.grad for leaf in leaves)), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_operator_is_chosen_by_the_device() -> None:
    for target, twin in attention.TWINS.items():
        assert resolve(target, CARD) is twin
        assert isinstance(resolve(target), torch._ops.OpOverload)
    assert resolve("aten.mm.default", CARD) is torch.ops.aten.mm.default
    for target, twin in layer_norm.TWINS.items():
        assert resolve(target, mixed=True) is twin
        assert resolve(target, CARD, mixed=True) is resolve(target)


@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_recurrent_layer_on_a_card_has_its_shapes(cell: Any, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cuDNN is asked for does not depend on the device. torch has no made-up form of its backward, of which the
    arguments are counted."""
    aten, asked = torch.ops.aten, []

    def backward(*given: Any) -> tuple[Any, ...]:
        asked.append(len(given) == len(derivative.default._schema.arguments))
        like = [None if given[k] is None else torch.empty_like(given[k]) for k in (0, 4, 5)]
        return *like, [torch.empty_like(weight) for weight in given[1]]

    def flattened(*given: Any) -> torch.Tensor:
        asked.append(len(given) == len(flatten.default._schema.arguments))
        return torch.empty(1)

    derivative, flatten = aten._cudnn_rnn_backward, aten._cudnn_rnn_flatten_weight
    monkeypatch.setattr(aten, "_cudnn_rnn_backward", backward)
    monkeypatch.setattr(aten, "_cudnn_rnn_flatten_weight", flattened)
    gates = {"lstm": 4, "gru": 3}[cell.name]
    with FakeTensorMode():
        shapes = [(5, 2, 6), (gates * 8, 6), (gates * 8, 8), (gates * 8,), (gates * 8,), *[(2, 8)] * cell.states]
        leaves = [torch.empty(shape) for shape in shapes]
        out, *last, space = cudnn_forward(cell, *leaves, reverse=reverse)
        found = cudnn_backward(cell, leaves, out, space, torch.empty_like(out), last, reverse)
    assert asked == [True, True]
    assert out.shape == (5, 2, 8)
    assert [state.shape for state in last] == [(2, 8)] * (len(leaves) - LEAVES)
    assert [d.shape for d in found] == [leaf.shape for leaf in leaves]


class Elsewhere(torch.Tensor):
    """A tensor that says that it is on another device; what is computed with it stays there."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor).clone()


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.counts is None])
def test_codecs_without_kernels_there_go_by_the_host_and_come_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same message, the same rest and the same numbers as of a tensor that is in the host's memory. Only what is
    made of torch's operators stays where it lies, also where the device is none that Triton knows."""
    by_host, cpu = list[Elsewhere](), Elsewhere.cpu
    monkeypatch.setattr(Elsewhere, "cpu", lambda tensor: (by_host.append(tensor), cpu(tensor))[1])
    codec = Codec(name)
    kernel, found = kernel_of(codec), []
    values = torch.randn(4096, generator=torch.Generator().manual_seed(3)) * 0.01
    dtype = getattr(torch, message_dtype(codec))
    for kind in (torch.Tensor, Elsewhere):
        left, into = values.clone().as_subclass(kind), torch.zeros(4096).as_subclass(kind)
        message = torch.zeros(room(codec, 4096, 4), dtype=torch.uint8).view(dtype).as_subclass(kind)
        used = kernel.encode(left, message, 7, back=True)
        kernel.decode(message.view(torch.uint8)[:used].view(dtype), into)
        found.append([tensor.as_subclass(torch.Tensor) for tensor in (left, message.view(torch.uint8), into)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert found[0][2].any()
    assert bool(by_host) == (name not in ANYWHERE)


def test_factors_are_made_where_the_tensors_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """PowerSGD's two codings, its rest, and what stays for the next time."""
    monkeypatch.setattr(Elsewhere, "cpu", lambda tensor: pytest.fail("by way of the host"))
    codec, found, shapes = Codec("powersgd"), [], ((40, 30), (7,))
    kernel, sizes = kernel_of(codec), factor_counts(shapes, settings_of(codec))
    for kind in (torch.Tensor, Elsewhere):
        left = torch.randn(1207, generator=torch.Generator().manual_seed(3)).as_subclass(kind)
        first, second = (torch.zeros(size).as_subclass(kind) for size in sizes)
        into, basis = torch.zeros(1207).as_subclass(kind), torch.zeros(1207).as_subclass(kind)
        kernel.encode(left, first, 7, True, Site(shapes, (), basis, 5))
        kernel.encode(left, second, 7, True, Site(shapes, (first,), basis, 5))
        kernel.decode(second, into, site=Site(shapes, (first,), basis, 5))
        found.append([tensor.as_subclass(torch.Tensor) for tensor in (left, first, second, into, basis)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert all(tensor.any() for tensor in found[0])
