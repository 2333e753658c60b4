"""What a tensor or a number in a checkpoint is, so that ranks with other buckets can find it.

state/momentum_buffer/-1/0:4/fc1.weight     rows 0 to 4 of fc1.weight's momentum, the same on every rank that has it
buffer//2/0:-1/norm.running_mean            rank 2's own, whole
parameter//-1/96~160/fc1.weight             64 of its elements, of which one rank has the only copy
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from partita.errors import InputError
from partita.runtime.owned import Part, Slice

ALIKE: Final = -1


@dataclass(frozen=True, slots=True)
class Entry:
    """Rows `start` to `stop` (0, -1: all) of something that belongs to parameter or buffer `name`, or where `flat` its
    elements from `start` to `stop` in the order of memory.

    `kind` is one of

        parameter   the weights                        state      optimizer state in the shape of the rows
        gradient    in flight; `detail` is its age     factor     optimizer state of another shape, and numbers
        buffer      batch statistics and the like      settings   those of the optimizer's group: rate, momentum, ...
        random      a generator's state                schedule   the state of the rate's schedule
        losses      of older checkpoints: see `losses` weight     of gradients in flight that are sums, by `detail` too
        own         the weights of a worker that is tied to a centre
        kept        what an agreement keeps of weights; `detail` is its Space
        scale       of the loss, in half precision
        served      what a server has of contributions, `detail` says what: see `contributions`
        ledger      how far the ledger of asynchronous workers is: see `ledgers`

    `detail` says which of several. `rank` is whose it is, ALIKE where all ranks that hold it have the same.
    """

    kind: str
    name: str = ""
    detail: str = ""
    rank: int = ALIKE
    start: int = 0
    stop: int = -1
    flat: bool = False

    def __str__(self) -> str:
        span = f"{self.start}{'~' if self.flat else ':'}{self.stop}"
        return f"{self.kind}/{quote(self.detail, safe='')}/{self.rank}/{span}/{self.name}"


def of_piece(kind: str, piece: Part, detail: str = "", rank: int = ALIKE) -> Entry:
    """The name in a checkpoint of one piece of a parameter, or of its state."""
    return Entry(kind, piece.parameter, detail, rank, piece.start, piece.stop, isinstance(piece, Slice))


def read_entry(text: str) -> Entry:
    """The Entry that a text names. Raises InputError for any other text."""
    try:
        kind, detail, rank, rows, name = text.split("/", 4)
        flat = "~" in rows
        start, stop = rows.split("~" if flat else ":")
        return Entry(kind, name, unquote(detail), int(rank), int(start), int(stop), flat)
    except ValueError:
        raise InputError(f"a checkpoint names {text[:80]!r}, which says nothing; take another checkpoint") from None
