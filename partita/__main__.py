"""The command line: `main` carries out a command, says its answer and returns the exit code.

0 done   1 the answer is no   2 bad input   3 the run failed   4 it hung
129 hung up   130 interrupted   143 terminated

Loading the commands takes a while. Nothing is loaded here before `main` has said what Ctrl-C means meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys


def main(words: list[str] | None = None) -> int:
    """Carry out a command line and return its exit code; of a process's own, leave with it after Ctrl-C."""
    own = words is None
    words = sys.argv[1:] if words is None else words
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    early = own and _end_at_once(as_json)
    import atexit
    import gc
    from contextlib import nullcontext
    from typing import Any

    from typer.main import get_command

    from partita.commands import app
    from partita.lab.fork_client import end_fork_server
    from partita.report.answer import open_streams, say, stdout_kept_free
    from partita.report.failure import INTERRUPTED, attempt, terminable
    from partita.report.given import check_words
    from partita.report.progress import telling

    def command() -> Any:
        if early:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        check_words(words)
        return get_command(app).main(words, prog_name="partita", standalone_mode=False, obj=tell)

    open_streams()
    # Threads of torch that wait for each other sleep: beside other work on the machine, spinning took twice as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    atexit.register(gc.freeze)  # an interpreter that ends collects all that torch has made, which takes a second
    with stdout_kept_free() if as_json else nullcontext(), terminable(), telling() as tell:
        answer = attempt(command, words)
    code = say(answer, as_json)
    if own and code == INTERRUPTED:
        # Where Ctrl-C came while a text was executed, as dataclasses do, Python ends by a signal, caught or not.
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # one more ends it at once, and silently
        end_fork_server()
        os._exit(code)
    return code


def _end_at_once(as_json: bool) -> bool:
    """Let Ctrl-C say its sentence and end the process, in which nothing has begun yet; an exception would come out of
    whatever is being loaded, as anything. Returns whether it does: not where it is ignored."""

    def end(number: int, frame: object) -> None:
        for file, text in ((2, "partita: interrupted\n"), (1, '{"schema": 1, "error": "interrupted"}\n')):
            try:
                if file == 2 or (as_json and os.environ.get("RANK", "0") == "0"):
                    os.write(file, text.encode())
            except OSError:  # nobody reads it
                pass
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, end)
    return True


if __name__ == "__main__":
    sys.exit(main())
