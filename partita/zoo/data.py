"""The data of the built-in tasks: real digits, real text, and seeded noise of the right shapes."""

from __future__ import annotations

import gzip
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F

from partita.errors import TaskError

TEXT_BYTES: Final = 2_000_000
HELD_OUT: Final = 10  # one sample in ten validates
ENOUGH: Final = 1024  # windows of text to validate with


@dataclass(frozen=True)
class Samples:
    """A data set held in memory: sample i is row i of every tensor of `columns`."""

    columns: tuple[torch.Tensor, ...]

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return tuple(column[index] for column in self.columns)

    def collated(self, positions: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """The batch of the samples at `positions`."""
        rows = torch.from_numpy(np.array(positions))
        return tuple(column.index_select(0, rows) for column in self.columns)


@dataclass(frozen=True)
class Synthetic:
    """`count` samples that are drawn when they are read; `draw` makes sample i from a generator seeded by (seed, i)."""

    count: int
    draw: Callable[[torch.Generator], Any]
    seed: int = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.draw(torch.Generator().manual_seed(self.seed * 1_000_003 + index))


@dataclass(frozen=True)
class Image:
    """Draws `(pixels [3, size, size], label)`, pixels standard normal."""

    size: int
    classes: int

    def __call__(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        label = torch.randint(self.classes, (), generator=generator)
        return torch.randn(3, self.size, self.size, generator=generator), label


@dataclass(frozen=True)
class Tokens:
    """Draws `(tokens [length], the tokens one position later)`, uniform over `vocabulary`."""

    length: int
    vocabulary: int

    def __call__(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.randint(self.vocabulary, (self.length + 1,), generator=generator)
        return drawn[:-1], drawn[1:]


@dataclass(frozen=True)
class Mask:
    """Draws `(pixels [3, size, size], mask [size, size])`, the mask being where the smoothed image is bright."""

    size: int

    def __call__(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = torch.randn(3, self.size, self.size, generator=generator)
        smooth = F.avg_pool2d(pixels[None].mean(1, keepdim=True), 5, stride=1, padding=2)
        return pixels, (smooth[0, 0] > 0).long()


def held_out(columns: tuple[torch.Tensor, ...]) -> tuple[Samples, Samples]:
    """Training and validation samples; every tenth row validates."""
    rows = torch.arange(len(columns[0]))
    kept = rows % HELD_OUT != HELD_OUT - 1
    return Samples(tuple(c[kept] for c in columns)), Samples(tuple(c[~kept] for c in columns))


@lru_cache(maxsize=1)
def digits() -> tuple[Samples, Samples]:
    """scikit-learn's 1,797 handwritten digits: `(pixels [1, 8, 8] in 0..1, label)`. Raises TaskError without
    scikit-learn."""
    found = find_spec("sklearn")  # not imported: that takes as long as importing torch, in every worker
    place = Path((found and found.origin) or "").parent / "datasets" / "data" / "digits.csv.gz"
    if not place.is_file():
        raise TaskError("the digits come with scikit-learn, which is not installed; pip install scikit-learn")
    with gzip.open(place, "rt") as file:
        table = torch.from_numpy(np.loadtxt(file, np.float32, delimiter=","))
    pixels, labels = table[:, :64].reshape(-1, 1, 8, 8) / 16, table[:, 64].long()
    return held_out((pixels, labels))


@lru_cache(maxsize=4)
def library_text(length: int) -> tuple[Samples, Samples]:
    """Bytes of the source of the running Python's standard library: `(bytes [length], the bytes one position later)`,
    int64.

    The first 2 MB of the top-level modules in order of their names, cut into windows that do not overlap. Of those that
    validate about a thousand are kept, evenly spread. Raises TaskError where the sources are not there.
    """
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        if len(text) >= TEXT_BYTES:
            break
        text += path.read_bytes()
    if len(text) <= HELD_OUT * length:
        raise TaskError(f"{sysconfig.get_path('stdlib')} holds no Python text to learn from; install Python's sources")
    flat = torch.frombuffer(text[:TEXT_BYTES], dtype=torch.uint8).long()
    rows = (len(flat) - 1) // length
    given = flat[: rows * length].view(rows, length), flat[1 : rows * length + 1].view(rows, length)
    training, validation = held_out(given)
    step = max(len(validation) // ENOUGH, 1)
    return training, Samples(tuple(column[::step].clone() for column in validation.columns))
