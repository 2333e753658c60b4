"""A table of rich that is read on any terminal: where its columns do not fit, every row is a block of lines.

plan   step      memory          plan    ddp
ddp    280 us    4.1 MiB         step    280 us
                                 memory  4.1 MiB
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

BETWEEN: Final = 3  # columns of the terminal from one of the table to the next
LEAST: Final = 10  # into which words may be folded
# Columns of words begin at the left and may be folded; numbers stand in one piece.
WORDS: Final = ("plan", "class", "name", "knobs", "group", "paper", "catalogue", "costs")


class Rows(Table):
    """A line for each row under `headings`, or a block where the terminal has too few columns."""

    def __init__(self, *headings: str) -> None:
        super().__init__(box=SIMPLE, pad_edge=False)
        for heading in headings:
            self.add_column(heading, overflow="fold", justify="left" if heading in WORDS else "right")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        """The table as rich draws it, or its blocks."""
        if self._least() <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        yield from self._blocks()
        if self.caption:
            yield self.caption

    def _least(self) -> int:
        """Terminal columns below which numbers would be folded."""
        widths = []
        for column in self.columns:
            lines = [line for cell in (column.header, *column.cells) for line in str(cell).splitlines()]
            width = max(map(cell_len, lines), default=0)
            widths.append(min(width, LEAST) if column.header in WORDS else width)
        return sum(widths) + BETWEEN * len(widths)

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
