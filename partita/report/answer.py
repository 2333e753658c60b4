"""The answer of a command, and its output: text for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, Final

SCHEMA: Final = 1
WIDE: Final = 200  # columns where no terminal says how many it has


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
    return os.environ.get("RANK", "0") in ("", "0")


def say(answer: Answer, as_json: bool) -> None:
    """Print an answer: results on stdout, an error's sentence on stderr too. Of several ranks, the first speaks."""
    if answer.error:
        print(f"partita: {answer.error}", file=sys.stderr, flush=True)
    if not speaks():
        return
    try:
        if as_json:
            print(write_json({**answer.body, **({"error": answer.error} if answer.error else {})}))
        elif answer.text:
            _print(answer.text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has what it wanted; what is left must not fail again when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(text: tuple[Any, ...]) -> None:
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
