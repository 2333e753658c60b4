"""Codecs by name: each one's kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from partita.errors import PlanError, RunError, users_code
from partita.kernels import adaptive, chosen, elias, levels, lowrank, ranges, rounding, signs, tree
from partita.kernels.cards import ANYWHERE, pair_of
from partita.kernels.site import NOWHERE, Site
from partita.plan.wire import Codec
from partita.tracing.spelling import spelt
from partita.units import Bytes
from partita.wire.codec import SPECS, Settings, settings_of, spec_of
from partita.wire.offered import pair_offered
from partita.wire.plugins import Registry

Encode = Callable[[torch.Tensor, torch.Tensor, Settings, int, bool, Site], int | None]
Decode = Callable[[torch.Tensor, torch.Tensor, Settings, bool, Site], None]
Places = Callable[[torch.Tensor, int, Settings], torch.Tensor]


def flat(encode: Callable[..., int | None], decode: Callable[..., None]) -> tuple[Encode, Decode]:
    """Kernels that look at flat numbers only."""
    return (
        lambda values, message, settings, key, back, site: encode(values, message, settings, key, back),
        lambda message, values, settings, add, site: decode(message, values, settings, add),
    )


def name_of(kernel: Callable[..., Any]) -> str:
    """What a kernel of a plugin is called."""
    return getattr(kernel, "__name__", "a kernel")


def unfused(
    encode: Callable[..., torch.Tensor], decode: Callable[..., torch.Tensor], varies: Callable[[], bool]
) -> tuple[Any, Any]:
    """Kernels of a codec that has plain functions only, and `varies` or not. They raise RunError where these fail, or
    return what they should not."""

    def asked(kernel: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
        with users_code(f"{name_of(kernel)} of a codec", "mend it", RunError):
            made = kernel(*given)
        if not isinstance(made, torch.Tensor):
            raise RunError(f"{name_of(kernel)} of a codec returned {type(made).__name__}; return a tensor")
        return made

    def said_by(message: torch.Tensor, values: torch.Tensor, settings: Settings) -> torch.Tensor:
        said = asked(decode, message, values, settings)
        if said.shape != values.shape:
            shapes = f"{list(said.shape)}; return that of `like`, {list(values.shape)}"
            raise RunError(f"{name_of(decode)} of a codec returned shape {shapes}")
        return said

    def fill(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> int:
        made, most = asked(encode, values, settings, key), message.nbytes
        least = 0 if varies() else most
        if made.dtype is not torch.uint8 or made.dim() != 1 or not least <= made.numel() <= most:
            shown = f"{spelt(made.dtype)} of shape {list(made.shape)}"
            allowed = (
                f"the {most} bytes that the codec's size gives for so many, or set varies=True in its Spec if they vary"
            )
            raise RunError(
                f"{name_of(encode)} of a codec returned {shown} for {values.numel()} numbers; return flat uint8, "
                f"{allowed if least else f'{most} bytes at most'}"
            )
        message.view(torch.uint8)[: made.numel()] = made
        if back:
            values -= said_by(made, values, settings)
        return made.numel()

    def read(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
        said = said_by(message.view(torch.uint8), values, settings)
        values.copy_(values + said if add else said)

    return fill, read


OURS: Final[dict[str, tuple[Encode, Decode]]] = {
    "fp16": flat(rounding.encode_half, rounding.decode_half),
    "bf16": flat(rounding.encode_half, rounding.decode_half),
    "truncate": flat(rounding.encode_truncate, rounding.decode_truncate),
    "q8": flat(rounding.encode_q8, rounding.decode_q8),
    "fixed": flat(levels.encode_fixed, levels.decode_fixed),
    "dettmers8": flat(tree.encode_tree, tree.decode_tree),
    "qsgd": flat(elias.encode_qsgd, elias.decode_qsgd),
    "dorefa": flat(levels.encode_dorefa, levels.decode_dorefa),
    "adaptive": flat(adaptive.encode_adaptive, adaptive.decode_adaptive),
    "inceptionn": flat(ranges.encode_ranges, ranges.decode_ranges),
    "adacomp": (adaptive.encode_adacomp, adaptive.decode_adacomp),
    "onebit": flat(signs.encode_onebit, signs.decode_onebit),
    "terngrad": flat(signs.encode_terngrad, signs.decode_terngrad),
    "topk": flat(chosen.encode_topk, chosen.decode_topk),
    "dgc": flat(chosen.encode_topk, chosen.decode_topk),
    "threshold": flat(chosen.encode_threshold, chosen.decode_threshold),
    "powersgd": (lowrank.encode_factors, lowrank.decode_factors),
}


def _of_plugin(name: str, pair: Any) -> tuple[Encode, Decode]:
    """The kernels that a plugin's two functions are."""
    return flat(*unfused(*pair_offered(name, pair), lambda: SPECS[name].varies))


KERNELS: Final[Registry[tuple[Encode, Decode]]] = Registry("KERNELS", OURS, _of_plugin)
PLACES: Final[dict[str, Places]] = {
    "topk": chosen.places_of_topk, "dgc": chosen.places_of_topk, "threshold": chosen.places_of_threshold,
    "adaptive": adaptive.places_of_adaptive, "adacomp": adaptive.places_of_adacomp,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kernel:
    """A codec with its settings, ready for use on flat tensors: in the host's memory, on a card where it has kernels
    there (`cards`), else by way of the host."""

    name: str
    settings: Settings

    def encode(
        self, values: torch.Tensor, message: torch.Tensor, key: int = 0, back: bool = False, site: Site = NOWHERE
    ) -> Bytes:
        """Fill `message` and return how many of its bytes stand for `values`; with `back` what they say is taken off
        these. `key` seeds random numbers."""
        if (pair := self._where_it_lies(values)) is None:
            return self._staged(values, message, key, back, site)
        found = pair[0](values, message, self.settings, key, back, site)
        return message.numel() * message.element_size() if found is None else found

    def decode(self, message: torch.Tensor, values: torch.Tensor, *, add: bool = False, site: Site = NOWHERE) -> None:
        """Put what a message says into `values`, or add it."""
        if (pair := self._where_it_lies(values)) is not None:
            pair[1](message, values, self.settings, add, site)
        else:
            host = values.cpu()
            self.decode(message.cpu(), host, add=add, site=site.on_host())
            values.copy_(host)

    def clear(self, message: torch.Tensor, values: torch.Tensor) -> None:
        """Set the numbers to zero of which a message speaks."""
        if self.name not in PLACES:
            values.zero_()
        else:
            values[PLACES[self.name](message, values.numel(), self.settings).to(values.device)] = 0

    def _where_it_lies(self, values: torch.Tensor) -> tuple[Encode, Decode] | None:
        if values.is_cpu or self.name in ANYWHERE:
            return KERNELS[self.name]
        pair = pair_of(self.name, values)
        return pair and flat(*pair)

    def _staged(self, values: torch.Tensor, message: torch.Tensor, key: int, back: bool, site: Site) -> Bytes:
        host, there, where = values.cpu(), message.cpu(), site.on_host()
        used = self.encode(host, there, key, back, where)
        message.copy_(there)
        if back:
            values.copy_(host)
        return used


def kernel_of(codec: Codec) -> Kernel:
    """The kernels of a codec. Raises PlanError where there is no codec of that name, or a plugin's has none."""
    if codec.name not in KERNELS and spec_of(codec):
        raise PlanError(f"the codec {codec.name} has no kernels; add its two functions to KERNELS of its plugin")
    return Kernel(codec.name, settings_of(codec))
