"""Micro-benchmarks of codecs on one rank: core-seconds for each call and each element, of encoding and of decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isqrt
from typing import Any, Final

import torch

from partita.kernels.codecs import kernel_of
from partita.kernels.site import Site
from partita.lab.timing import cold_seconds
from partita.plan.wire import Codec
from partita.units import Bytes, Seconds
from partita.wire.codec import message_dtype, read_codecs, room, settings_of, spec_of

SIZES: Final = (256, 2**20)


def codec_seconds(texts: Iterable[str]) -> dict[str, list[tuple[Seconds, Seconds]]]:
    """For each codec (seconds for a call, seconds for an element) of encoding and of decoding, from a bucket of a few
    elements and one of a million, both square matrices. With error feedback, encoding includes adding the gradient to
    the residual, as in a step; a codec that makes several codings counts with their mean."""
    return {text: [_line(points) for points in zip(*map(_timed(text), SIZES), strict=True)] for text in texts}


def _timed(text: str) -> Callable[[int], tuple[Seconds, Seconds]]:
    (codec,) = read_codecs(text)

    def at(count: int) -> tuple[Seconds, Seconds]:
        coder = trial_of(codec, torch.randn(count) * 0.01)
        decoding = cold_seconds(coder.decode)
        return cold_seconds(coder.encode) / coder.codings, decoding

    return at


@dataclass(frozen=True, slots=True)
class CodecTrial:
    """A codec applied to one gradient, a square matrix. `encode` makes all of its `codings`; `decode` adds up the last
    one of the first call; `bytes` is their size."""

    encode: Callable[[], Any]
    decode: Callable[[], None]
    codings: int
    bytes: Bytes


def trial_of(codec: Codec, values: torch.Tensor) -> CodecTrial:
    """A codec that has encoded the values once, on the device on which they lie."""
    kernel, spec, count = kernel_of(codec), spec_of(codec), values.numel()
    held, into, shapes = torch.zeros_like(values), torch.empty_like(values), ((isqrt(count),) * 2,)
    dtype, most = getattr(torch, message_dtype(codec)), room(codec, count, 4)
    counts = spec.counts(shapes, settings_of(codec)) if spec.counts else (most // dtype.itemsize,)
    messages = [torch.zeros(each, dtype=dtype, device=values.device) for each in counts]
    sites = [Site(shapes, tuple(messages[:i]), torch.zeros_like(values)) for i in range(len(messages))]

    def encode() -> int:
        source, used = held.add_(values) if spec.feedback else values, 0
        for message, site in zip(messages, sites, strict=True):
            used = kernel.encode(source, message, 1, back=spec.feedback, site=site)
        return used

    own = messages[-1].view(torch.uint8)[: encode()].clone().view(dtype)
    size = sum(message.nbytes for message in messages[:-1]) + own.nbytes
    return CodecTrial(encode, lambda: kernel.decode(own, into, add=True, site=sites[-1]), len(messages), size)


def _line(points: tuple[Seconds, ...]) -> tuple[Seconds, Seconds]:
    few, many = points
    each = max(many - few, 0.0) / (SIZES[1] - SIZES[0])
    return max(few - each * SIZES[0], 1e-7), each
