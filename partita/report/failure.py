"""Turns whatever ends a command into one sentence and an exit code."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import typer

from partita.errors import Ended, InputError, PartitaError, brief
from partita.report.answer import Answer
from partita.runtime.brake import stopping

# The base of typer's usage errors; which module holds it differs between versions of typer.
UsageError: Final[Any] = typer.BadParameter.__mro__[2]
INTERRUPTED: Final = 130
LACKS: Final = {  # what a system call may ask for in vain wherever it is made: what to do
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "let other programs close files",
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room on that disk, within your quota",
    errno.ENOMEM: "free memory, or raise its limit (ulimit -v)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u), or end some",
}
WORDS: Final = {128 + signal.SIGTERM: "terminated", 128 + signal.SIGHUP: "hung up"}  # exit code: in a word


def attempt(command: Callable[[], Answer | int | None], words: Sequence[str] = ()) -> Answer:
    """What the command that `words` ask for answers. Raises nothing: an int is an exit code that was already explained,
    an exception becomes one sentence, with its traceback before it where PARTITA_TRACEBACK=1."""
    try:
        found = command()
        if isinstance(found, Answer):
            return found
        return Answer(code=found or 0, error="interrupted" if found == INTERRUPTED else "")
    except UsageError as error:
        context, sentence = getattr(error, "ctx", None), _misused(error, words)
        asked = context.command_path if context else "partita"
        return Answer(code=2, error=brief(f"{sentence}{'' if sentence.endswith('?') else ';'} see {asked} --help"))
    except Ended as ended:
        return _told(ended)
    except SystemExit as stop:
        return Answer(code=3, error=f"something that was called left with exit code {stop.code!r} before it was done")
    except KeyboardInterrupt as interrupt:
        return _told(interrupt)
    except PartitaError as error:
        _show_traceback()
        return Answer(code=error.exit_code, error=str(error))
    except ModuleNotFoundError as error:
        _show_traceback()
        return Answer(code=InputError.exit_code, error=_not_installed(error))
    except Exception as error:
        if signalled := _signal_behind(error):
            return _told(signalled)
        if isinstance(error, OSError) and (remedy := LACKS.get(error.errno or 0)):
            _show_traceback()
            return Answer(code=3, error=f"this machine gives no more ({' '.join(str(error).split())}); {remedy}")
        what = brief(" ".join(f"{type(error).__name__}: {error}".split()))
        hint = "" if _show_traceback() else "; rerun with PARTITA_TRACEBACK=1 to see where"
        return Answer(code=3, error=f"this should not have happened ({what}){hint}")


def _not_installed(error: ModuleNotFoundError) -> str:
    """What of another package this Python lacks; a user's own modules are explained where they are loaded."""
    name = (error.name or str(error)).split(".")[0]
    without = "; a graph.json that another machine captured can be planned for without it" if name == "torch" else ""
    return f"this Python ({sys.executable}) has no package {name}; install it, such as with pip install {name}{without}"


def _misused(error: Any, words: Sequence[str]) -> str:
    """What is wrong in a command line, with the value that was given."""
    sentence = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    sentence = re.sub(", unable to parse string as an? (integer|number)", "", sentence)
    sentence = re.sub(r"\. Did you mean (.+)\?$", r"; did you mean \1?", sentence)
    for option in getattr(getattr(error, "param", None), "opts", ()):
        if not option.startswith("-"):  # an argument goes by a name, which is nothing that was typed
            continue
        for word, after in zip(words, [*words[1:], ""], strict=True):
            value = after if word == option else word.removeprefix(f"{option}=")
            said = repr(value) in sentence or f" {value} " in sentence
            if (word == option or value != word) and not said:
                return f"{sentence}, not {value!r}"
    return sentence


def _signal_behind(error: BaseException | None) -> KeyboardInterrupt | Ended | None:
    """The signal behind an error, if there is one: a module that is being loaded turns it into an error of its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt | Ended):
        error = error.__cause__ or error.__context__
    return error


def _told(signalled: KeyboardInterrupt | Ended) -> Answer:
    code = signalled.code if isinstance(signalled, Ended) else INTERRUPTED
    assert isinstance(code, int)
    return Answer(code=code, error=WORDS.get(code, "interrupted"))


def _show_traceback() -> bool:
    wanted = os.environ.get("PARTITA_TRACEBACK") == "1"
    if wanted:
        traceback.print_exc()
    return wanted


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise Ended(143), and SIGHUP 129 unless it is ignored, so that whatever must clean up does."""

    def stop(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:  # which the shell sends, and the kernel once more
            signal.signal(number, signal.SIG_IGN)
        raise Ended(128 + number)

    before = {number: signal.signal(number, stop) for number in stopping() if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
