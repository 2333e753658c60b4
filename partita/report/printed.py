"""Results that print, and that notebooks show, as the command line says them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import StringIO
from typing import Any, Final

from partita.report.answer import LINES, Answer
from partita.telling import printable

WIDTH: Final = 160  # letters; a cell of a notebook scrolls
CELL: Final = '<pre style="overflow-x:auto">{code}</pre>'


class Printed(ABC):
    """A result whose `str` is what the command line says; its own `repr` is one line, for lists and debuggers."""

    @abstractmethod
    def _answer(self) -> Answer:
        """What the command line says of it."""

    def __str__(self) -> str:
        lines = _drawn(self._answer()).export_text().splitlines()
        return "\n".join(line.rstrip() for line in lines).strip("\n")

    def _repr_html_(self) -> str:
        return answer_html(self._answer())


def answer_html(answer: Answer) -> str:
    """What a command says, every name escaped; nothing from elsewhere."""
    html: str = _drawn(answer).export_html(inline_styles=True, code_format=CELL)
    return html


def _drawn(answer: Answer) -> Any:
    """The recording of a console on which all parts of an answer were printed."""
    from rich.console import Console

    console = Console(record=True, width=WIDTH, file=StringIO())
    for part in (*answer.text, *filter(None, [answer.error])):
        shown = printable(part, LINES) if isinstance(part, str) else part
        console.print(shown, markup=False, highlight=False)
    return console
