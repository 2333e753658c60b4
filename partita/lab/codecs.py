"""Micro-benchmarks of codecs on one rank: core-seconds of encoding and decoding, a call and a number."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from typing import Any, Final

import torch

from partita.kernels.codecs import kernel_of
from partita.kernels.site import Site
from partita.lab.timing import cold_seconds
from partita.units import Seconds
from partita.wire.codec import message_dtype, read_codecs, room, settings_of, spec_of

SIZES: Final = (256, 2**20)


def codec_seconds(texts: Iterable[str]) -> dict[str, list[tuple[Seconds, Seconds]]]:
    """For each codec (seconds a call, seconds a number) of encoding and of decoding: a bucket of a few numbers against
    one of a million, square matrices both. With feedback, encoding adds the gradient to what was held back, as a step
    does; where it takes several codings, it is the mean of them."""
    return {text: [_line(points) for points in zip(*map(_timed(text), SIZES), strict=True)] for text in texts}


def _timed(text: str) -> Any:
    (codec,) = read_codecs(text)
    kernel, spec = kernel_of(codec), spec_of(codec)

    def at(count: int) -> tuple[Seconds, Seconds]:
        values, held, into = torch.randn(count) * 0.01, torch.zeros(count), torch.empty(count)
        shapes = ((isqrt(count),) * 2,)
        dtype, most = getattr(torch, message_dtype(codec)), room(codec, count, 4)
        counts = spec.counts(shapes, settings_of(codec)) if spec.counts else (most // dtype.itemsize,)
        messages = [torch.zeros(each, dtype=dtype) for each in counts]
        sites = [Site(shapes, tuple(messages[:i]), torch.zeros(count)) for i in range(len(messages))]

        def encode() -> int:
            source = held.add_(values) if spec.feedback else values
            for message, site in zip(messages, sites, strict=True):
                used = kernel.encode(source, message, 1, back=spec.feedback, site=site)
            return used

        used = encode()
        own = messages[-1].view(torch.uint8)[:used].view(dtype)
        decoding = cold_seconds(lambda: kernel.decode(own, into, add=True, site=sites[-1]))
        return cold_seconds(encode) / len(messages), decoding

    return at


def _line(points: tuple[Seconds, ...]) -> tuple[Seconds, Seconds]:
    few, many = points
    each = max(many - few, 0.0) / (SIZES[1] - SIZES[0])
    return max(few - each * SIZES[0], 1e-7), each
