"""A table of rich that is read on any terminal: where its columns do not fit, they stand in several tables below each
other, each with the rows' names; where these would be many, every row is a block of lines.

plan   step      memory          plan   step             plan    ddp
ddp    280 us    4.1 MiB         ddp    280 us           step    280 us
                                                         memory  4.1 MiB
                                 plan   memory
                                 ddp    4.1 MiB
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

BETWEEN: Final = 3  # columns of the terminal from one of the table to the next
LEAST: Final = 10  # into which words may be folded
MOST: Final = 3  # tables below each other: beyond them a row is looked for in vain
# Columns of words begin at the left and may be folded; numbers stand in one piece.
WORDS: Final = ("plan", "class", "name", "knobs", "group", "paper", "catalogue", "costs")


class Rows(Table):
    """A line for each row under `headings`, in as many tables as the terminal has too few columns for, or a block."""

    def __init__(self, *headings: str) -> None:
        super().__init__(box=SIMPLE, pad_edge=False)
        for heading in headings:
            words = heading in WORDS
            self.add_column(heading, overflow="fold", no_wrap=not words, justify="left" if words else "right")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        """The table as rich draws it, or in parts, or in blocks."""
        parts = self._parts(options.max_width)
        if len(parts) == 1:
            yield from super().__rich_console__(console, options)
            return
        yield from parts if parts else self._blocks()
        if self.caption:
            yield self.caption

    def _parts(self, room: int) -> list[Rows]:
        """Tables of some of the columns each, all with those up to the rows' names, in which no number is folded; none
        where they would be too many."""
        named = 1 + next((n for n, column in enumerate(self.columns) if column.header in WORDS), -1)
        names, groups = self.columns[:named], list[list[Column]]()
        for column in self.columns[named:]:
            if not groups or _width([*names, *groups[-1], column]) > room:
                groups.append([])
            groups[-1].append(column)
        if len(groups) > MOST or any(_width([*names, *group]) > room for group in groups):
            return []
        return [self._of([*names, *group]) for group in groups]

    def _of(self, columns: list[Column]) -> Rows:
        part = Rows(*(str(column.header) for column in columns))
        for cells in zip(*(column.cells for column in columns), strict=True):
            part.add_row(*cells)
        return part

    def _blocks(self) -> Iterator[RenderableType]:
        labels = [str(column.header).replace("\n", " ") or "place" for column in self.columns]
        for row in zip(*(column.cells for column in self.columns), strict=True):
            block = Table(box=None, show_header=False, pad_edge=False)
            block.add_column(no_wrap=True)
            block.add_column(overflow="fold")
            for label, cell in zip(labels, row, strict=True):
                if str(cell):
                    block.add_row(Text(label), cell)
            yield block
            yield ""


def _width(columns: Sequence[Column]) -> int:
    """Terminal columns below which numbers would be folded."""
    widths = []
    for column in columns:
        lines = [line for cell in (column.header, *column.cells) for line in str(cell).splitlines()]
        width = max(map(cell_len, lines), default=0)
        widths.append(min(width, LEAST) if column.header in WORDS else width)
    return sum(widths) + BETWEEN * len(widths)
