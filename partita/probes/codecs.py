"""Micro-benchmarks of codecs on one rank: core-seconds for each call and each element, of encoding and of decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, pi, sqrt
from typing import Any, Final

import torch

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.kernels.codecs import kernel_of
from partita.kernels.site import Site
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.plan.wire import Codec
from partita.probes.timing import cold_seconds, disturbance_of, segment
from partita.program.instruction import Act, Collective, Encode
from partita.program.program import Program
from partita.units import Bytes, Seconds
from partita.wire.algorithms import course
from partita.wire.codec import message_dtype, read_codecs, room, settings_of, spec_of, text_of
from partita.wire.loads import loads_of

FEW: Final = 256
MANY: Final = (2**16, 2**24)
UNKNOWN: Final = 2**20
CODED: Final[Seconds] = 0.1  # for which a thread codes beside computing


def coded_elements(graph: Graph, plans: Sequence[Plan], cluster: Cluster) -> dict[str, int]:
    """Codec -> the most elements that one call of it encodes in these plans."""
    texts = {text_of(codec) for plan in plans for sync in plan.sync for codec in sync.wire.codecs}
    found = dict.fromkeys(sorted(texts), 0)
    for program in (phase.program for plan in plans for phase in lower(graph, plan, cluster)):
        for codec, elements in (pair for _, i in program.instructions() for pair in _encoded(program, i.act)):
            found[text_of(codec)] = max(elements, found.get(text_of(codec), 0))
    return {text: elements or UNKNOWN for text, elements in found.items()}


def _encoded(program: Program, act: Act) -> Iterator[tuple[Codec, int]]:
    """The codec of an act, and the elements of each call of it that encodes."""
    if isinstance(act, Encode):
        coding = program.coding[act.coding]
        yield coding.codec, program.bucket[coding.bucket].elements // max(len(coding.parts), 1)
    elif isinstance(act, Collective) and act.codec:
        ranks = len(act.groups[0])
        schedule, edges = course(program, act, ranks)
        for load in loads_of(schedule, *program.extent(act, ranks), act.codec, act.density, edges):
            yield act.codec, load.encoded // max(load.messages, 1)


def codec_seconds(elements: Mapping[str, int]) -> dict[str, list[tuple[Seconds, Seconds, Seconds]]]:
    """For each codec (seconds for a call, for an element, and those that the first of several calls takes more) of
    encoding and of decoding, from a few elements and from about as many `elements` as are encoded at once, both square
    matrices: what fits into a cache is quicker. Right behind another, a call of few takes a fifth to all of it. With
    error feedback, encoding includes adding the gradient to the residual, as in a step; a codec that makes several
    codings counts with their mean."""
    found = {}
    for text, most in elements.items():
        many = isqrt(min(max(most, MANY[0]), MANY[1])) ** 2
        timed = _timed(text)
        points = zip(timed(FEW), timed(many), timed(FEW, again=True), strict=True)
        found[text] = [_line(*ways, many) for ways in points]
    return found


def coding_disturbance() -> float:
    """Core-seconds by which computing takes longer for each core-second in which another thread of its rank codes."""
    trial = trial_of(Codec("q8"), torch.randn(UNKNOWN) * 0.01)

    def code() -> None:
        trial.encode()
        trial.decode()

    return disturbance_of(code, segment, CODED)


def _timed(text: str) -> Callable[..., tuple[Seconds, Seconds]]:
    (codec,) = read_codecs(text)

    def at(count: int, *, again: bool = False) -> tuple[Seconds, Seconds]:
        coder = trial_of(codec, *numbers_for(codec, count))
        decoding = cold_seconds(coder.decode, again=again)
        return cold_seconds(coder.encode, again=again) / coder.codings, decoding

    return at


def numbers_for(codec: Codec, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A gradient, and what is held back before it, of which a codec with a fixed threshold t sends the `density` that
    it expects, again and again: a number v every t / |v| times. For any other codec a gradient of deviation 0.01."""
    settings = settings_of(codec)
    if not {"threshold", "density"} <= settings.keys():
        return torch.randn(count) * 0.01, None
    most = settings["threshold"]
    values = torch.randn(count) * most * settings["density"] * sqrt(pi / 2)
    return values, torch.rand(count) * most * values.sign()


@dataclass(frozen=True, slots=True)
class CodecTrial:
    """A codec applied to one gradient, a square matrix. `encode` makes all of its `codings`; `decode` adds up the last
    one of the first call; `bytes` is their size."""

    encode: Callable[[], Any]
    decode: Callable[[], None]
    codings: int
    bytes: Bytes


def trial_of(codec: Codec, values: torch.Tensor, held: torch.Tensor | None = None) -> CodecTrial:
    """A codec that has encoded the values once, on the device on which they lie, and `held` back some before."""
    kernel, spec, count = kernel_of(codec), spec_of(codec), values.numel()
    held = torch.zeros_like(values) if held is None else held
    into, shapes = torch.empty_like(values), ((isqrt(count),) * 2,)
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


def _line(few: Seconds, many: Seconds, again: Seconds, elements: int) -> tuple[Seconds, Seconds, Seconds]:
    each = max(many - few, 0.0) / (elements - FEW)
    call = max(min(few, again) - each * FEW, 1e-7)
    return call, each, max(few - each * FEW - call, 0.0)
