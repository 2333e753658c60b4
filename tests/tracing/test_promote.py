"""What fp64 stands on where torch has shorter floats only."""

from __future__ import annotations

import pytest
import torch

from partita.tracing.promote import Promoted, grouped


@pytest.mark.parametrize(("left", "right"), [((16, 8), (3, 8, 16)), ((8, 16), (16, 16)), ((3, 8, 16), (16, 16))])
def test_a_grouped_product_is_torchs(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    a, b, ends = torch.randn(left), torch.randn(right), torch.tensor([4, 8, 16], dtype=torch.int32)
    theirs = torch._grouped_mm(a.bfloat16(), b.bfloat16(), offs=ends)
    ours = grouped(a.double(), b.double(), ends)
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs.double(), atol=0.1, rtol=0.05)


def test_a_promoted_model_with_experts_has_gradients_in_double() -> None:
    a, b = torch.randn(12, 8).double().requires_grad_(), torch.randn(3, 8, 16).double().requires_grad_()
    ends = torch.tensor([4, 4, 12], dtype=torch.int32)
    with Promoted():
        torch._grouped_mm(a, b, offs=ends).square().sum().backward()
    plain = torch.autograd.grad(torch.cat([a[:4] @ b[0], a[4:] @ b[2]]).square().sum(), (a, b))
    for found, wanted in zip((a.grad, b.grad), plain, strict=True):
        assert found is not None
        assert torch.allclose(found, wanted)
