"""What a command tells while it works: a spinner on a terminal, else a line every few seconds; always on stderr."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, TextIO

from partita.report.answer import BYTES, LINES, speaks
from partita.telling import Note, Tell, printable, quiet
from partita.units import Seconds

EVERY: Final[Seconds] = 3.0
RARER: Final = 20  # the part of the time so far that passes between two lines


@contextmanager
def telling() -> Iterator[Tell]:
    """A `tell(sentence)` for the time of a command, silent on all ranks but the first.

    NO_COLOR and TERM=dumb get lines instead of a spinner. Meanwhile a warning of the user's model or of torch is shown
    once, however often a model is made.
    """
    with _warned_once():
        if not speaks():
            yield quiet
        elif sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
            with _spinner() as tell:
                yield tell
        else:
            yield lines(EVERY, time.monotonic)


@contextmanager
def _warned_once() -> Iterator[None]:
    """A context in which a warning is not shown again that was shown with the same words from the same line. Python
    forgets what it has shown wherever filters change, as in every capture. Who gives Python filters (-W,
    PYTHONWARNINGS) gets what these say."""
    show, shown = warnings.showwarning, set[tuple[str, str, int]]()

    def once(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        line: str | None = None,
    ) -> None:  # fmt: skip
        place = str(message), filename, lineno
        if place not in shown:
            shown.add(place)
            show(message, category, filename, lineno, file, line)

    if not sys.warnoptions:
        warnings.showwarning = once
    try:
        yield
    finally:
        warnings.showwarning = show


@contextmanager
def _spinner() -> Iterator[Tell]:
    with ExitStack() as stack:
        # Rich is loaded and the spinner starts with the first sentence: quick commands, and `lab`, tell none.
        started: list[Any] = []

        def tell(sentence: str) -> None:
            from rich.console import Console
            from rich.text import Text

            shown = printable(sentence, LINES + BYTES)
            with suppress(OSError):  # the terminal may be gone, and the work goes on
                if not started:
                    started.append(Console(stderr=True).status(""))
                    stack.callback(stop)
                    started[0].start()
                if isinstance(sentence, Note):
                    started[0].console.print(Text(f"partita: {shown}"), soft_wrap=True)
                else:
                    started[0].update(Text(shown))

        def stop() -> None:
            with suppress(OSError):
                started[0].stop()

        yield tell


def lines(every: Seconds, clock: Callable[[], Seconds]) -> Tell:
    """A `tell` that prints every Note, the first of the other sentences, and then at most one of these every `every`
    seconds, rarer ones as time goes on: a log of a day is no longer than a few hundred lines."""
    begun = clock()
    last = begun - every

    def tell(sentence: str) -> None:
        nonlocal last
        due = (now := clock()) - last >= max(every, (now - begun) / RARER)
        if due or isinstance(sentence, Note):
            last = last if isinstance(sentence, Note) else now
            with suppress(OSError):  # nobody reads it any more, and the work goes on
                print(f"partita: {printable(sentence, LINES + BYTES)}", file=sys.stderr, flush=True)

    return tell
