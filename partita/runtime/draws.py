"""Random operators of a segment: keyed by (seed, step, operator, sample) if asked for, otherwise torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from partita.graph.repeats import DROPPING, DROPPING_BACKWARD
from partita.kernels import attention
from partita.kernels.dropping import hashed
from partita.runtime.generators import ALONE
from partita.tracing import dropped_attention
from partita.tracing.draws import Draws, check_keyed, keyed_dropout, keyed_random

DRAWS: Final = "draws"


def dropout(
    env: dict[str, Any], value: torch.Tensor, probability: float, key: int, *, along: int = 0, kept: bool = False,
    again: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(value with dropout, mask): torch's native_dropout, or keyed. `kept` and `again`: as in `drawn_again`."""
    draws: Draws | None = env[DRAWS]
    if draws is None:
        with drawn_again(env, key, value.device, kept, again):
            dropped, mask = torch.ops.aten.native_dropout.default(value, probability, True)
        return dropped, mask
    return keyed_dropout(value, probability, draws.uniform(value.shape, key, along))


def random(
    env: dict[str, Any], key: int, target: str, *arguments: Any, along: int = 0, kept: bool = False,
    again: bool = False, **keywords: Any,
) -> torch.Tensor:  # fmt: skip
    """What the random operator `target` returns, keyed if the environment asks for it. `kept` and `again`: as in
    `drawn_again`."""
    function: Any = torch.ops
    for part in target.split("."):
        function = getattr(function, part)
    device = next((a.device for a in (*arguments, *keywords.values()) if isinstance(a, torch.Tensor)), None)
    with drawn_again(env, key, device or keywords.get("device") or torch.device("cpu"), kept, again):
        made: torch.Tensor = function(*arguments, **keywords)
    draws: Draws | None = env[DRAWS]
    if draws is None:
        return made
    check_keyed(target, made)
    return keyed_random(target, arguments, made, draws.uniform(made.shape, key, along))


def attention_forward(
    env: dict[str, Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
    probability: float, causal: bool, scale: float | None, key: int, *, along: int = 0, kept: bool = False,
    again: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(output, logarithms of sums, state) of attention that drops weights, by a kernel of the card where one takes it;
    or keyed. `kept` and `again`: as in `drawn_again`."""
    told, draws = (q, k, v, mask, probability, causal, scale), env[DRAWS]
    if draws is not None:
        state = torch.tensor([key, along])
        return dropped_attention.forward(dropped_attention.keyed(draws.uniform), state, *told)
    with drawn_again(env, key, q.device, kept, again):
        if attention.takes(q, k, v, mask, probability, causal, scale):
            return attention.dropped(*told)
        return dropped_attention.forward(hashed, dropped_attention.new_state(q.device), *told)


def attention_backward(
    env: dict[str, Any], d_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    mask: torch.Tensor | None, out: torch.Tensor, sums: torch.Tensor, state: torch.Tensor, probability: float,
    causal: bool, scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The derivatives of q, k and v."""
    told, draws = (d_out, q, k, v, mask, out, sums, state, probability, causal, scale), env[DRAWS]
    if draws is None and attention.takes(q, k, v, mask, probability, causal, scale):
        return attention.dropped_backward(*told)
    source = hashed if draws is None else dropped_attention.keyed(draws.uniform)
    return dropped_attention.backward(source, *told)


@contextmanager
def drawn_again(env: dict[str, Any], key: int, device: torch.device, kept: bool, again: bool) -> Iterator[None]:
    """A context for random numbers that recomputation draws a second time. If `kept`, torch's generator state is
    stored; `again`: it is set to the stored state, and restored afterwards."""
    random: Any = torch.cuda if device.type == "cuda" else torch
    with ALONE:
        now = random.get_rng_state() if kept or again else None
        if kept:
            env[f"{DRAWS}.{key}"] = now
        if again:
            random.set_rng_state(env.pop(f"{DRAWS}.{key}"))
        yield
        if again:
            random.set_rng_state(now)


DRAWING: Final[dict[str, Callable[..., Any]]] = {
    "partita.dropout": dropout, "partita.random": random, DROPPING: attention_forward,
    DROPPING_BACKWARD: attention_backward,
}  # fmt: skip
