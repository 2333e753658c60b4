"""What a rank does: instructions in lanes, ordered by `after`, repeated round by round.

    lane compute |  Load  F  B0 P0 B1 P1 ....... U0 ... U1 | next round
                 |            \\      \\         /      /
    lane wire    |              A0 ..... A1 ..'.....'      |

A round covers `Program.steps` minibatches. A lane carries out one instruction at a time, by its policy. `After(name,
rounds=1)` waits for the instance of the round before: with it, pipelined, stale and asynchronous methods are the same
static text, and only the moment at which each instance runs is decided at run time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from partita.plan.plan import Correction
from partita.plan.wire import Codec
from partita.program.gate import Gate as Gate
from partita.program.space import KEPT as KEPT
from partita.program.space import Kind as Kind
from partita.program.space import Space as Space


@dataclass(frozen=True, slots=True)
class Load:
    """Fetch `count` samples of the round's minibatch `step`, from position `start` (one for each rank of the role),
    into environment `part`, which it makes if it is not there. Gradients there are those of `weight` times the loss:
    the samples' share of the minibatch, 1 where the loss is a sum whose weight is still to be agreed on, 0 for the
    inverse of its own weight. A stage's Load gives its inputs; one that reads no samples has `fetch` False."""

    start: tuple[int, ...]
    count: int
    part: str
    weight: float
    step: int = 0
    stage: int = -1
    fetch: bool = True


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a segment of the graph in the environment `part` (one for each minibatch and microbatch of the round)."""

    segment: str
    part: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class Settle:
    """Batch statistics of a minibatch's microbatches, gathered on `stage`, enter the running ones together."""

    stage: int = -1


@dataclass(frozen=True, slots=True)
class Pack:
    """Copy the gradients (those of `stage`; the samples' weight, for bucket WEIGHT) that environment `part` holds into
    a bucket's tensor `space`, or add them to it."""

    bucket: str
    part: str
    add: bool = False
    stage: int = -1
    space: Space = Space.GRADIENT


@dataclass(frozen=True, slots=True)
class Collective:
    """`kind` over a bucket among the ranks of the one group in `groups` that holds this rank.

    `algorithm` is the transport's own or a schedule of the wire room; with a `codec` every hop of the schedule encodes.
    Where that schedule is one of streams, the part `density` of what each rank brings is expected not to be 0.
    To gather in Space.CODED brings the coding of each member to all, to scatter there the codings of its part to each.
    """

    kind: Kind
    bucket: str
    groups: tuple[tuple[int, ...], ...]
    space: Space = Space.GRADIENT
    algorithm: str = "backend"
    codec: Codec | None = None
    density: float = 1.0


@dataclass(frozen=True, slots=True)
class Send:
    """A bucket to a peer: `to` holds one rank for each rank of the role, or one for all. `key` is the Receive's.

    In Space.VALUE `bucket` names a parcel, whose values leave environment `part`, unless it `keeps` them for others.
    """

    bucket: str
    to: tuple[int, ...]
    key: str
    space: Space = Space.GRADIENT
    part: str = ""
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Receive:
    """A bucket from a peer, into the space, or into that peer's inbox; a parcel into environment `part`."""

    bucket: str
    source: tuple[int, ...]
    key: str
    space: Space = Space.PARAMETER
    part: str = ""


@dataclass(frozen=True, slots=True)
class Combine:
    """Gradient of the bucket = sum over `sources` in this order, of their inboxes or of its own gradient."""

    bucket: str
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Encode:
    """Make a coding of a bucket's tensor `space`; with error feedback, of that and what its tensor `held` has, in which
    stays what the coding does not say. The tensors that it `clears` are zero afterwards where the coding speaks. A
    coding that goes on from the sums of others takes what these have left.
    """

    bucket: str
    coding: str
    space: Space = Space.GRADIENT
    clears: tuple[Space, ...] = ()
    held: Space = Space.RESIDUAL


@dataclass(frozen=True, slots=True)
class Decode:
    """Gradient of the bucket, or the rank's own part of it where codings are of parts, = sum over `sources` in this
    order of what their codings say; where there are none, what the rank's own says, which may have been summed on the
    way, and those before it."""

    bucket: str
    coding: str
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Free:
    """Give back the memory of a bucket of which a rank keeps its own part only; in Space.GRADIENT that part is kept
    from what was packed and scattered, or added to what was kept before."""

    bucket: str
    space: Space = Space.PARAMETER
    add: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Multiply a bucket in place by `factor`, and by the inverse of the number that the bucket `by` holds if it is
    named (WEIGHT as a gradient, MASS in its anchor); `lag` as in Update."""

    bucket: str
    factor: float = 1.0
    space: Space = Space.PARAMETER
    by: str = ""
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Term:
    """`factor` times one of a bucket's tensors, of INBOX what came from `peer`: one number for each rank of the role,
    or one for all."""

    space: Space
    factor: tuple[float, ...] = (1.0,)
    peer: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mix:
    """A bucket's tensor `into` = the sum of `terms`, of which it may be one; `lag` as in Update."""

    bucket: str
    into: Space
    terms: tuple[Term, ...]
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Norm:
    """Bucket NORM = the sum over `buckets` of `shares` times the squares of their gradients; `lag` as in Update.

    Summed over ranks whose shares of each bucket add up to 1, it is the square of the norm of all.
    """

    buckets: tuple[str, ...]
    shares: tuple[float, ...]
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Clip:
    """Scale the gradients of all `buckets` so that their common norm is at most `norm`; `lag`, `part` as in Update.

    With `by`, the norm is that of more gradients than these: the root of the number that the bucket `by` holds.
    """

    buckets: tuple[str, ...]
    norm: float
    lag: int = 0
    part: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer's step on a bucket's parameters with its gradient of `lag` rounds ago (none yet: no step).

    `part` names the environment whose gradients are used directly, without a bucket's copy.
    """

    bucket: str
    lag: int = 0
    part: str = ""


@dataclass(frozen=True, slots=True)
class Apply:
    """What came from `source` enters the bucket, as it comes: a gradient joins the sum, whose every `need`-th addition
    makes the optimizer's step on `into` and a new version; a `delta` is added to what is in `into`, of which the part
    `keep` stays, and makes one by itself. From the rank itself comes what is in its DELTA.

    `share` of a minibatch's samples is in it, `among` contributions make a minibatch's worth, and it counts `scale`
    times; `corrections` change it first. With `drop`, those of a round beyond the `need`-th are left out, and an Update
    makes the step.
    """

    bucket: str
    source: int
    share: float
    among: int
    need: int = 1
    delta: bool = False
    drop: bool = False
    scale: float = 1.0
    corrections: tuple[Correction, ...] = ()
    into: Space = Space.PARAMETER
    keep: float = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy what `space` holds of a bucket into the outbox for peer `to`, or the rank's own `into` its parameters or its
    inbox for itself: the version that it reads, whatever happens to it while it travels."""

    bucket: str
    to: int
    space: Space = Space.PARAMETER
    into: Space = Space.PARAMETER


@dataclass(frozen=True, slots=True)
class Mark:
    """Nothing is done: a name for the moment at which enough of what it waits for is done."""


Act: TypeAlias = (
    Load
    | Compute
    | Settle
    | Pack
    | Collective
    | Send
    | Receive
    | Combine
    | Encode
    | Decode
    | Free
    | Scale
    | Mix
    | Norm
    | Clip
    | Update
    | Apply
    | Snapshot
    | Mark
)


@dataclass(frozen=True, slots=True)
class After:
    """The instance of instruction `name` of the same rank, `rounds` rounds ago."""

    name: str
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Instruction:
    """`need` of the `after` must have finished (0: all). With `unless`, the instance is skipped if the named one has
    finished by the time that this one could start: late work for a version that is gone. In a lane that chooses, of the
    ready ones the lowest `priority` number goes first, and an instruction holds its lane `until` another one, which
    waits for it, has finished too. At a `gate` it waits for company."""

    name: str
    act: Act
    lane: str
    after: tuple[After, ...] = ()
    need: int = 0
    unless: After | None = None
    priority: int = 0
    until: str = ""
    gate: Gate | None = None

    @property
    def lag(self) -> int:
        """Rounds for which it still goes on after the last one, with what is then in flight."""
        return self.act.lag if isinstance(self.act, Scale | Mix | Norm | Clip | Update) else 0
