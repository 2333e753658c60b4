"""The answer of a command, and its output: text for people, one JSON object for programs."""

from __future__ import annotations

import codecs
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import TextIOWrapper
from typing import Any, Final

from partita.errors import PartitaError
from partita.telling import printable

SCHEMA: Final = 1
WIDE: Final = 200  # columns where no terminal says how many it has
LINES: Final = "\n\t"  # which sentences with a log, and drawings, may have
BYTES: Final = "".join(map(chr, range(0xDC80, 0xDD00)))  # of files' names that are no letters
KINDLY: Final = "partita.kindly"  # how letters that an encoding lacks are written


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` holds strings and rich renderables; `code` is the exit code; `error` the sentence that goes with one."""

    body: Mapping[str, Any] = field(default_factory=dict)
    text: tuple[Any, ...] = ()
    code: int = 0
    error: str = ""


def lines_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """A body as lines of `key: value`, without what is empty."""
    return tuple(f"{key}: {value}" for key, value in body.items() if value not in ("", None))


def speaks() -> bool:
    """Whether this process is the one that talks: of the ranks that a launcher started, the first."""
    rank = os.environ.get("RANK", "")
    return not (rank.isdecimal() and int(rank))


def say(answer: Answer, as_json: bool) -> int:
    """Print an answer: results on stdout, an error's sentence on stderr too. Of several ranks, the first speaks.
    Returns the exit code, which is another where the answer cannot be written."""
    if answer.error:
        _complain(answer.error)
    if not speaks():
        return answer.code
    try:
        if as_json:
            print(write_json({**answer.body, **({"error": answer.error} if answer.error else {})}))
        elif answer.text:
            _print(answer.text)
        sys.stdout.flush()
    except (OSError, SystemExit) as error:  # rich leaves where the pipe is broken
        # What is left must not fail again when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError | SystemExit):  # whose reader, such as `head`, has what it wanted
            _complain(f"the answer cannot be written to stdout ({error.strerror}); send it to where there is room")
            return answer.code or PartitaError.exit_code
    return answer.code


def _complain(sentence: str) -> None:
    """Say a sentence on stderr, if anybody reads that."""
    try:
        print(f"partita: {printable(sentence, LINES + BYTES)}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def open_streams() -> None:
    """Let what is written to a stdout or stderr that is closed go nowhere, so that the numbers 1 and 2 are no other
    file's; and letters that the terminal's encoding lacks become question marks, whatever the locale."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "r" if not number else "w", closefd=False))
    codecs.register_error(KINDLY, _kindly)
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors=KINDLY)


def _kindly(error: UnicodeError) -> tuple[str | bytes, int]:
    """A byte of a file's name that was no letter is that byte again; a letter that cannot be written is a question
    mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letter = ord(error.object[error.start])
    return bytes([letter - 0xDC00]) if 0xDC80 <= letter <= 0xDCFF else "?", error.start + 1


def _print(text: tuple[Any, ...]) -> None:
    text = tuple(printable(part, LINES + BYTES) if isinstance(part, str) else part for part in text)
    if all(isinstance(part, str) for part in text):
        print("\n".join(text))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDE)
    for part in text:
        console.print(part, markup=False, highlight=False, soft_wrap=isinstance(part, str))


@contextmanager
def stdout_kept_free() -> Iterator[None]:
    """Send to stderr what anybody, child processes too, writes to stdout meanwhile, so that JSON stands there alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def write_json(body: Mapping[str, Any]) -> str:
    """The one object that stdout gets, its schema first; numbers that JSON lacks become null."""
    return json.dumps({"schema": SCHEMA, **_plain(body)}, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)
