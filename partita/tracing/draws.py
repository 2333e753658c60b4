"""Random numbers that depend on (seed, step, operator, sample) only, so that every plan draws the same.

In a Graph, the k-th random operator of the forward pass has target `partita.dropout` (arguments: value, probability, k;
results: the value with dropped elements zeroed and the rest scaled by 1 / (1 - probability), and the mask of kept
ones), `partita.random` (arguments: k, the ATen operator, its own arguments) or that of attention with dropout (its own
arguments, then k). The keyword `along` names the dim of the result that the samples lie along, -1 for none, where that
is not the first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from partita.errors import CaptureError
from partita.graph.graph import Graph
from partita.graph.operator import Operator
from partita.graph.repeats import DRAW, DROPPING, DROPPING_BACKWARD
from partita.graph.tensor import Affine
from partita.tracing import dropped_attention, quantiles

NOTHING: Mapping[int, int] = {}
EVERYONE = -1
BITS = 24


def with_sample_dims(graph: Graph) -> Graph:
    """The graph, valid for any number of samples, its random operators told by `along` where their samples lie."""
    return replace(graph, operators=tuple(map(_told, graph.operators)))


def _told(operator: Operator) -> Operator:
    made = operator.outputs[0] if operator.target in DRAW else None
    if made is None:
        return operator
    follows = (dim for dim, size in enumerate(made.shape) if isinstance(size, Affine) and not size.rest)
    along = next(follows, -1)
    return replace(operator, keywords=(*operator.keywords, ("along", along))) if along else operator


def sample_dims(graph: Graph) -> dict[int, int]:
    """Key of a random operator -> the dim that its samples lie along, where that is not the first."""
    draws = (
        (o.arguments[DRAW[o.target]], dict(o.keywords).get("along", 0)) for o in graph.operators if o.target in DRAW
    )
    return {key: along for key, along in draws if isinstance(key, int) and isinstance(along, int) and along}


def seed_for(*key: int) -> int:
    """A seed of 63 bits, another one for each key."""
    words = hashlib.blake2b(" ".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(words, "little") >> 1


def keyed_uniform(
    shape: Sequence[int], seed: int, step: int, key: int, samples: Sequence[int], along: int = 0
) -> Tensor:  # fmt: skip
    """Uniform numbers in [0, 1), multiples of 2**-24, of `shape`; the rows of a sample depend on that sample only.

    Dim `along` holds the samples in order, equally many rows each. Where it cannot (or is -1, or `samples` is empty),
    the tensor belongs to no sample and every rank draws the same.
    """
    shape = list(shape)
    if along < 0 or not samples or along >= len(shape) or not shape[along] or shape[along] % len(samples):
        return _draw(shape, seed, step, key, EVERYONE).float() * 2.0**-BITS
    rows = [shape[along] // len(samples), *shape[:along], *shape[along + 1 :]]
    drawn = torch.cat([_draw(rows, seed, step, key, sample) for sample in samples])
    return drawn.movedim(0, along).float() * 2.0**-BITS


@dataclass(frozen=True, slots=True)
class Draws:
    """What the keyed random numbers of an environment depend on besides the operator."""

    seed: int
    step: int
    samples: tuple[int, ...]

    def uniform(self, shape: Sequence[int], key: int, along: int) -> Tensor:
        """Uniform random numbers of a shape whose dimension `along` is that of the samples."""
        return keyed_uniform(shape, self.seed, self.step, key, self.samples, along=along)


def _draw(shape: Sequence[int], seed: int, step: int, key: int, sample: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed_for(seed, step, key, sample))
    return torch.randint(1 << BITS, tuple(shape), generator=generator)


def keyed_dropout(value: Tensor, probability: float, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """`(dropped value, mask of kept elements)`: what `partita.dropout` computes from its uniform numbers."""
    mask = uniform.to(value.device).double() < 1.0 - probability
    return value * mask * (1.0 / (1.0 - probability)), mask


def keyed_random(target: str, arguments: Sequence[Any], empty: Tensor, uniform: Tensor) -> Tensor:
    """What `partita.random` computes: the distribution of `target`, with its `arguments`, out of uniform numbers.

    `empty` has the result's dtype and device, `uniform` its shape. Raises CaptureError for a distribution that
    has no such form here.
    """
    kind, u = target.split(".")[1].removesuffix("_functional").rstrip("_"), uniform.to(empty.device).double()
    numbers = [a for a in arguments if isinstance(a, int | float) and not isinstance(a, bool)]
    match kind:
        case "bernoulli":
            default = 0.5 if target.endswith((".p", ".float")) else arguments[0]
            drawn = u < next(iter([*numbers, *(a for a in arguments[1:] if isinstance(a, Tensor)), default]))
        case "rand" | "rand_like":
            drawn = u
        case "uniform":
            low, high = (*numbers, 0.0, 1.0)[:2] if len(numbers) != 1 else (numbers[0], 1.0)
            drawn = low + u * (high - low)
        case "randn" | "randn_like" | "normal":
            given = list(arguments[:2]) if "Tensor" in target else numbers  # a mean, a deviation or both as tensors
            mean, deviation = (given + [0.0, 1.0][len(given) :])[:2]
            drawn = mean + deviation * quantiles.normal(u)
        case "log_normal":
            mean, deviation = (numbers + [1.0, 2.0][len(numbers) :])[:2]
            drawn = torch.exp(mean + deviation * quantiles.normal(u))
        case "cauchy":
            middle, width = (numbers + [0.0, 1.0][len(numbers) :])[:2]
            drawn = middle + width * torch.tan(torch.pi * (quantiles.inner(u) - 0.5))
        case "geometric":
            drawn = (torch.log1p(-u) / math.log1p(-numbers[0])).floor() + 1 if numbers[0] < 1 else torch.ones_like(u)
        case "_standard_gamma":
            drawn = quantiles.log_gamma(arguments[0], u).exp().clamp_min(torch.finfo(empty.dtype).tiny)
        case "_sample_dirichlet":
            ends = torch.finfo(empty.dtype)
            drawn = quantiles.log_gamma(arguments[0], u).softmax(-1).clamp(ends.tiny, 1 - ends.eps / 2)
        case "poisson":
            drawn = quantiles.poisson(arguments[0], u)
        case "binomial":
            drawn = quantiles.binomial(arguments[0], arguments[1], u)
        case "exponential":
            drawn = -torch.log1p(-u) / (numbers[0] if numbers else 1.0)
        case "randint" | "randint_like":
            low, high = numbers if len(numbers) == 2 else (0, numbers[0])
            drawn = (low + u * (high - low)).floor()
        case "multinomial" if empty.shape[-1] == 1 or True in arguments[2:]:
            edges = arguments[0].double().cumsum(-1)  # of each outcome's part of a line
            drawn = torch.searchsorted(edges, u * edges[..., -1:], right=True)
        case "multinomial":
            drawn = _one_after_another(arguments[0].double(), u)
        case "randperm":
            drawn = u.argsort()
        case _:
            raise _unkeyed(target)
    return drawn.to(empty.dtype)


def _one_after_another(weights: Tensor, uniform: Tensor) -> Tensor:
    """Outcomes that are not put back: each row's of those that are left, by their `weights`."""
    drawn = []
    for each in uniform.unbind(-1):
        edges = weights.cumsum(-1)
        drawn.append(torch.searchsorted(edges, each[..., None] * edges[..., -1:], right=True))
        weights = weights.scatter(-1, drawn[-1], 0.0)
    return torch.cat(drawn, -1)


def check_keyed(target: str, made: Any) -> None:
    """Raises CaptureError for an operator that makes more than what it draws."""
    if not isinstance(made, Tensor):
        raise _unkeyed(target)


def _unkeyed(target: str) -> CaptureError:
    return CaptureError(
        f"{target} has no keyed form, by which every plan draws the same, so it cannot be verified, nor trained with "
        "--deterministic; draw with rand, randn, bernoulli, multinomial or the like"
    )


def is_random(function: Any) -> bool:
    """Whether an operator draws; torch's attention kernels are tagged so, but a traced one has no dropout."""
    draws = torch.Tag.nondeterministic_seeded in function.tags
    return draws and ("attention" not in str(function) or str(function) == DROPPING)


class KeyedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, plain eager PyTorch draws, in call order, what the graph's random operators draw for `samples`; `dims`
    are the graph's `sample_dims`."""

    def __init__(self, seed: int, step: int, samples: Sequence[int], dims: Mapping[int, int] = NOTHING) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws, self.dims, self.key = Draws(seed, step, tuple(samples)), dims, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(func) in (DROPPING, DROPPING_BACKWARD):
            state = self._next() if str(func) == DROPPING else None
            with dropped_attention.drawing(dropped_attention.keyed(self.draws.uniform), state):
                return func(*args)
        if not is_random(func):
            return func(*args, **kwargs)
        if func is torch.ops.aten.native_dropout.default:
            return keyed_dropout(args[0], args[1], self._uniform(args[0].shape))
        empty = args[0] if func._schema.is_mutable else func(*args, **kwargs)
        check_keyed(str(func), empty)
        drawn = keyed_random(str(func), args, empty, self._uniform(empty.shape))
        return empty.copy_(drawn) if func._schema.is_mutable else drawn

    def _uniform(self, shape: Sequence[int]) -> Tensor:
        return self.draws.uniform(shape, *self._next().tolist())

    def _next(self) -> Tensor:
        """The key of the next random operator, and the dim of its samples."""
        self.key += 1
        return torch.tensor([self.key - 1, self.dims.get(self.key - 1, 0)])
