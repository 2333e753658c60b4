"""A worker as small as can be: does what each request says."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time


def main() -> None:
    rank = int(os.environ["RANK"])
    for line in sys.stdin:
        request = json.loads(line)

        def say(message: dict, number: int = request["id"]) -> None:
            print(json.dumps({"id": number} | message), flush=True)

        for step in range(request.get("steps", 0)):
            say({"event": {"step": step}})
        mine = request.get("rank") == rank
        if request.get("untimed") and rank == 0:
            say({"event": {"untimed": True}})
        if request.get("at"):
            say({"event": {"at": {"places": [], "done": {}, "first_step": 0}}})
            time.sleep(request.get("pause", 0.0))
        if request.get("failed") == rank:
            say({"event": {"failed": {"error": "the disk is on fire", "exit": 3}}})
        if request["verb"] == "echo":
            print("not a message", flush=True)
            say({"ok": {"rank": rank, "size": len(request.get("data", "")), "own": request.get("own")}})
        elif request["verb"] == "die":
            if request.get("ready") and not mine:
                say({"event": {"ready": True}})
            if mine:
                print("last words", file=sys.stderr, flush=True)
                act(request["how"])
            signal.pause()
        elif request["verb"] == "complain":
            if mine or request.get("all"):
                say({"error": f"ValueError: rank {rank} is unhappy", "exit": 3})
            if request.get("killed") == rank:
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()


def act(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "memory":
        bytearray(10**9)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how.isdigit():
        sys.exit(int(how))
    else:
        os.kill(os.getpid(), getattr(signal, how))


if __name__ == "__main__":
    main()
