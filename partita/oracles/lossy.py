"""What a plan's codecs leave of gradients, worker by worker, in plain operators: the oracle of lossy plans.

contribution of worker r   v = e_r + g_r,   message = encode(v),   e_r = v - decode(message)
of differences (EX-10, 11) v = g_r - h_r,   message = encode(v),   h_r += a decode(message),   applied h + the sum of
                           decode(message) over r,   then h += a times that sum
momentum ahead (SP-03)     g_r bounded, u_r = m u_r + g_r,   v = e_r + u_r,   u_r = 0 where the message has entries
applied                    sum over r of decode(message of r), in the order of the ranks
in rounds (EX-02)          decoded from all workers' values together, starting from the last decoded values
pushed to a server that does not wait    the same for one worker, turn by turn
coded answers (QU-05)      the sum is encoded once more, by its server
coded results (CO-09)      decode(encode(each part of the sum of chosen entries)), by the rank that sums it
per hop                    the plan's schedule on the contributions, each message encoded and decoded
to owners                  the same for each owner's part by itself, as often a step as it is packed anew
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

import torch

from partita.kernels.plain import decoded, encoded, places
from partita.kernels.plain_lowrank import low_rank
from partita.plan.rule import momentum_ahead
from partita.plan.wire import Codec
from partita.program.instruction import Collective, Encode
from partita.program.layout import Bucket, Coding, Piece
from partita.program.program import Program
from partita.program.scaling import MARGIN
from partita.program.space import Kind, Space
from partita.runtime.coding import EVERYBODY, coding_key, drawn_for
from partita.runtime.state import rows
from partita.wire.algorithms import BACKEND, course, schedule_of
from partita.wire.codec import bound_of, masks, settings_of, spec_of
from partita.wire.interpreter import carried_out
from partita.wire.schedule import even_edges, halved

Named = Mapping[str, torch.Tensor]
SERVER: Final = -1
NOBODY: Final[Mapping[str, Mapping[int, Sequence[Named]]]] = {}


@dataclass
class Lossy:
    """The codecs of a run's programs: `residual` of each (worker, bucket) so far, what was `said` there by differences
    and `heard` of all, `velocity` of momentum that is applied before the codec."""

    seed: int
    residual: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    said: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    heard: dict[str, torch.Tensor] = field(default_factory=dict)
    velocity: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    basis: dict[str, torch.Tensor] = field(default_factory=dict)
    shapes: dict[Piece, torch.Size] = field(default_factory=dict)

    def summed(
        self, program: Program, step: int, contributions: Mapping[int, Named], weight: float = 1.0,
        apart: Mapping[str, Mapping[int, Sequence[Named]]] = NOBODY,
    ) -> dict[str, torch.Tensor]:  # fmt: skip
        """Parameter -> the gradient that all workers apply, from the contribution of each, divided by `weight`: before
        it is encoded, or, where owners have parts of it, after their sum. `apart` has the buckets to which other ranks
        contribute, or some ranks several times a step."""
        if not any(bucket.shares for bucket in program.trained):
            contributions = {worker: _over(named, weight) for worker, named in contributions.items()}
            apart = {
                bucket: {rank: [_over(named, weight) for named in mine] for rank, mine in brought.items()}
                for bucket, brought in apart.items()
            }
            weight = 1.0
        contributions = {
            worker: _bounded(program, named, len(contributions)) for worker, named in contributions.items()
        }
        found = {name: gradient.clone() for name, gradient in next(iter(contributions.values())).items()}
        self.shapes = {p: rows(found[p.parameter], p).shape for bucket in program.trained for p in bucket.pieces}
        for bucket in program.trained:
            bring = apart.get(bucket.name) or {worker: (named,) for worker, named in contributions.items()}
            own = {worker: [_flat(bucket, named) for named in mine] for worker, mine in sorted(bring.items())}
            turns = [dict(zip(own, turn, strict=True)) for turn in zip(*own.values(), strict=True)]
            found_here = [self._agreed(program, bucket, turn, step, n) for n, turn in enumerate(turns)]
            whole = self._answered(program, bucket, torch.stack(found_here).sum(0) / weight, step)
            _spread(bucket, whole, found)
        return found

    def agreed(
        self, program: Program, bucket: Bucket, own: Mapping[int, Sequence[torch.Tensor]], step: int
    ) -> list[torch.Tensor]:
        """The sum that all workers decode, of what each has `own` for the pieces of a bucket."""
        pieces = next(iter(own.values()))
        self.shapes |= {piece: mine.shape for piece, mine in zip(bucket.pieces, pieces, strict=True)}
        flats = {worker: torch.cat([part.reshape(-1) for part in mine]) for worker, mine in sorted(own.items())}
        whole = torch.split(self._agreed(program, bucket, flats, step, 0), [mine.numel() for mine in pieces])
        return [part.view(mine.shape) for part, mine in zip(whole, pieces, strict=True)]

    def pushed(self, program: Program, step: int, worker: int, brought: Named) -> dict[str, torch.Tensor]:
        """What a server that does not wait decodes from a contribution of a worker; buckets without a codec are
        returned as they are."""
        found = {name: value.clone() for name, value in brought.items()}
        acts = program.role_of[worker].acts(Encode)
        for coding in dict.fromkeys(program.coding[act.coding] for act in acts):
            bucket = program.bucket[coding.bucket]
            meant = self._at_end(program, coding, bucket, {worker: _flat(bucket, found)}, step, 0)
            _spread(bucket, meant, found)
        return found

    def coded(self, program: Program) -> tuple[str, ...]:
        """The buckets whose gradients are encoded."""
        names = {coding.bucket for coding in program.codings}
        return tuple(
            b.name for b in program.trained if b.name in names or any(act.codec for _, act in _sums(program, b.name))
        )

    def _agreed(
        self, program: Program, bucket: Bucket, own: dict[int, torch.Tensor], step: int, turn: int
    ) -> torch.Tensor:
        codings = [coding for coding in program.codings if coding.bucket == bucket.name]
        if codings and spec_of(codings[0].codec).counts:
            return self._in_rounds(program, codings[0].codec, bucket, own)
        if codings:
            return self._at_end(program, codings[0], bucket, own, step, turn)
        sums = _sums(program, bucket.name)
        if sums and sums[turn][1].codec:
            return self._per_hop(program, *sums[turn], own, step)
        return torch.stack(list(own.values())).sum(0)

    def _answered(self, program: Program, bucket: Bucket, whole: torch.Tensor, step: int) -> torch.Tensor:
        """What workers decode from a server's coded answer; the sum itself if the server updates by itself."""
        answers = [(act, role) for role in program.roles for act in role.acts(Encode)]
        for act, role in answers:
            if act.bucket == bucket.name and act.held is Space.REST:
                codec, settings = program.coding[act.coding].codec, settings_of(program.coding[act.coding].codec)
                held = self.residual.get((SERVER, bucket.name), torch.zeros_like(whole))
                value = whole + held if codec.error_feedback else whole
                key = coding_key(self.seed, step, role.ranks[0], act.coding)
                meant = decoded(codec.name, encoded(codec.name, value, settings, key, whole), value, settings)
                self.residual[SERVER, bucket.name] = value - meant
                return meant
        return whole

    def _ahead(self, program: Program, place: tuple[int, str], gradient: torch.Tensor) -> torch.Tensor:
        """The gradient with the momentum that is applied before the codec."""
        factor, nesterov = momentum_ahead(program.update)
        if not factor:
            return gradient
        before = self.velocity.get(place, torch.zeros_like(gradient))
        now = self.velocity[place] = factor * (before + gradient) if nesterov else factor * before + gradient
        return now + gradient if nesterov else now.clone()

    def _at_end(
        self, program: Program, coding: Coding, bucket: Bucket, own: dict[int, torch.Tensor], step: int, turn: int
    ) -> torch.Tensor:
        codec, settings = coding.codec, settings_of(coding.codec)
        name, act = next(iter(_sums(program, coding.name)[turn:]), ("", None))
        sums = spec_of(codec).sums if act and not coding.edges else ""
        said = []
        for worker, gradient in own.items():
            held = self.residual.get((worker, bucket.name), torch.zeros_like(gradient))
            ahead = self._ahead(program, (worker, bucket.name), gradient)
            known = self.said.get((worker, bucket.name), torch.zeros_like(gradient))
            value = ahead + held if codec.error_feedback else ahead - known if codec.difference else ahead
            key = coding_key(self.seed, step, worker, coding.name)
            if coding.edges:
                meant = self._of_parts(coding, value, ahead, worker, step, drawn_for(coding.name, name))
                self.residual[worker, bucket.name] = value - meant
                said.append(meant)
                continue
            message = encoded(codec.name, value, settings, key, ahead)
            if (worker, bucket.name) in self.velocity and masks(codec) and not codec.difference:
                self.velocity[worker, bucket.name][places(codec.name, message, value, settings)] = 0
            meant = decoded(codec.name, message, value, settings)
            if codec.error_feedback:
                self.residual[worker, bucket.name] = value - meant
            if codec.difference:
                self.said[worker, bucket.name] = known + codec.difference * meant
            said.append(message.view(getattr(torch, sums)) if sums else meant)
        first, *others = said
        if act and sums and act.algorithm != BACKEND:
            schedule = schedule_of(act.kind, act.algorithm, len(said))
            edges = even_edges(len(first), schedule.parts)
            first = torch.cat(carried_out(schedule, [[v[a:b] for a, b in pairwise(edges)] for v in said])[0])
            others = []
        for other in others:
            first = first + other
        like = next(iter(own.values()))
        total = decoded(codec.name, first.view(torch.uint8), like, settings) if sums else first
        total = self._handed_on(program, bucket, total.to(like.dtype), list(own), step)
        before = self.heard.get(bucket.name, torch.zeros_like(total))
        self.heard[bucket.name] = before + codec.difference * total
        return before + total if codec.difference else total

    def _of_parts(
        self, coding: Coding, value: torch.Tensor, ahead: torch.Tensor, worker: int, step: int, place: str
    ) -> torch.Tensor:
        """What the owners decode from a worker's messages, each its own."""
        codec, settings, said = coding.codec, settings_of(coding.codec), []
        for part, (a, b) in enumerate(pairwise(coding.edges)):
            key = coding_key(self.seed, step, worker, f"{place}/{part}")
            one = encoded(codec.name, value[a:b], settings, key, ahead[a:b]) if b > a else value[a:b]
            said.append(decoded(codec.name, one, value[a:b], settings) if b > a else one)
        return torch.cat(said)

    def _handed_on(
        self, program: Program, bucket: Bucket, total: torch.Tensor, workers: list[int], step: int
    ) -> torch.Tensor:
        """What all ranks decode of the sum of chosen entries, whose parts may be encoded by the ranks that sum them."""
        name, act = next(iter(_sums(program, bucket.name)), ("", None))
        if act is None or act.codec is None:
            return total
        _, results = halved(schedule_of(act.kind, act.algorithm, len(workers)))
        parts = [total[a:b] for a, b in pairwise(even_edges(len(total), results.parts))]
        said = partial(self._said, name, act, workers, step)
        return torch.cat(carried_out(results, [parts for _ in workers], said)[0])

    def _in_rounds(self, program: Program, codec: Codec, bucket: Bucket, own: dict[int, torch.Tensor]) -> torch.Tensor:
        values = []
        for worker, gradient in own.items():
            ahead = self._ahead(program, (worker, bucket.name), gradient)
            held = self.residual.get((worker, bucket.name), torch.zeros_like(gradient))
            values.append(ahead + held if codec.error_feedback else ahead)
        before = self.basis.get(bucket.name, torch.zeros_like(values[0]))
        seed = coding_key(self.seed, 0, EVERYBODY, bucket.name)
        said, self.basis[bucket.name] = low_rank(
            values, [self.shapes[piece] for piece in bucket.pieces], settings_of(codec), before, seed
        )
        for worker, value, meant in zip(own, values, said, strict=True):
            self.residual[worker, bucket.name] = value - meant
        return torch.stack(said).sum(0)

    def _per_hop(
        self, program: Program, name: str, act: Collective, own: dict[int, torch.Tensor], step: int
    ) -> torch.Tensor:
        workers = list(own)
        schedule, edges = course(program, act, len(workers))
        said = partial(self._said, name, act, workers, step)
        ends = carried_out(schedule, [[own[w][a:b] for a, b in pairwise(edges)] for w in workers], said)
        owned = act.kind is Kind.REDUCE_SCATTER
        return torch.cat([ends[part // schedule.strands if owned else 0][part] for part in range(schedule.parts)])

    def _said(
        self, name: str, act: Collective, workers: list[int], step: int, value: torch.Tensor, place: int, part: int
    ) -> torch.Tensor:
        """What is decoded from a part that one of the workers encodes for a hop."""
        codec = act.codec
        assert codec is not None
        if not value.numel():
            return value
        settings = settings_of(codec)
        key = coding_key(self.seed, step, workers[place], f"{drawn_for(act.bucket, name)}/{part}")
        return decoded(codec.name, encoded(codec.name, value, settings, key), value, settings)


def _over(named: Named, weight: float) -> Named:
    return {name: gradient / weight for name, gradient in named.items()}


def _flat(bucket: Bucket, named: Named) -> torch.Tensor:
    return torch.cat([rows(named[piece.parameter], piece).reshape(-1) for piece in bucket.pieces])


def _spread(bucket: Bucket, flat: torch.Tensor, found: Named) -> None:
    """Copy the elements of a bucket into the parameters' own tensors."""
    lengths = [rows(found[piece.parameter], piece).numel() for piece in bucket.pieces]
    for piece, part in zip(bucket.pieces, torch.split(flat, lengths), strict=True):
        into = rows(found[piece.parameter], piece)
        into.copy_(part.view(into.shape))


def _sums(program: Program, cargo: str) -> list[tuple[str, Collective]]:
    """The collectives by name on a bucket's gradient, on what has changed of it or on a coding, in a round of the first
    role that has any."""
    for role in program.roles:
        acts = [(i.name, i.act) for i in role.instructions if isinstance(i.act, Collective) and i.act.bucket == cargo]
        if found := [one for one in acts if one[1].space in (Space.GRADIENT, Space.DELTA, Space.CODED)]:
            return found
    return []


def _bounded(program: Program, named: Named, workers: int) -> Named:
    """A worker's gradient, with its norm bounded if the codec asks for it."""
    norm = max((bound_of(coding.codec, workers) for coding in program.codings), default=0.0)
    if not norm:
        return named
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in named.values()]))
    return {name: gradient * torch.clamp(norm / (total + MARGIN), max=1.0) for name, gradient in named.items()}
