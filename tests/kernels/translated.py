"""Every kernel for cards as Triton translates it for an H100, which takes no card: run by `test_cards`."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from partita.kernels import card_beyond, card_chosen, card_largest, card_levels, cards
from partita.plan.wire import Codec
from partita.wire.codec import room, settings_of

HOPPER: Final = GPUTarget("cuda", 90, 32)
TYPES: Final = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.uint8: "*u8", torch.uint16: "*u16", torch.uint32: "*u32",
    torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip
LARGEST: Final = {
    "count_blocks", "write_blocks", "count_digits", "find_edge", "count_kept", "write_kept", "add_blocks"
}  # fmt: skip
OTHERS: Final = {
    "fixed": {"exponent_block", "encode_blocks", "decode_blocks"},
    "terngrad": {"extent_blocks", "scale_of_parts", "encode_blocks", "decode_blocks"},
    "onebit": {"class_means", "encode_blocks", "decode_blocks"},
    "threshold": {"count_blocks", "write_blocks", "add_blocks"},
    "topk": LARGEST,
    "dgc": LARGEST,
}


def assembled(kernel: Any, given: tuple[Any, ...], constants: dict[str, Any]) -> str:
    """The assembly of a kernel for arguments of these types."""
    names, options = kernel.arg_names, {"enable_fp_fusion": constants.pop("enable_fp_fusion")}
    types = [TYPES[one.dtype] if isinstance(one, torch.Tensor) else "i32" for one in given]
    signature = dict(zip(names, [*types, *["constexpr"] * len(constants)], strict=True))
    fixed = {(names.index(name),): value for name, value in constants.items()}
    text: str = triton.compile(ASTSource(kernel, signature, fixed), target=HOPPER, options=options).asm["ptx"]
    return text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", sorted(cards.TRITON))
def test_every_kernel_can_be_translated_and_fuses_nothing(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product and a sum in one instruction would be rounded once instead of twice, and so would a short quotient."""
    texts: dict[tuple[str, str], str] = {}

    def launch(kernel: Any, programs: int, *given: Any, **constants: Any) -> None:
        here = kernel.fn.__name__, str(constants)
        texts[here] = texts.get(here) or assembled(kernel, given, {**constants, "enable_fp_fusion": False})

    for module in (card_levels, card_beyond, card_chosen, card_largest):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(torch, "empty", torch.ones)  # of what is not counted one is found, in a place that is there
    codec, values = Codec(name), torch.ones(64, dtype=dtype)
    message = torch.zeros(room(codec, 64, dtype.itemsize), dtype=torch.uint8)
    encode, decode = cards.pairs()[name]
    encode(values, message, settings_of(codec), 7, True)
    decode(message, values, settings_of(codec), True)
    assert {kernel for kernel, _ in texts} == OTHERS.get(name, {"encode_blocks", "decode_blocks"})
    wrong = re.compile(r"\bfma\.|\bmad\.[\w.]*f(?:32|64)|\bdiv\.(?:full|approx)|\.ftz")
    assert not [found.group() for text in texts.values() for found in wrong.finditer(text)]
