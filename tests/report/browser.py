"""Headless Chromium, driven over a pipe by its DevTools protocol: JSON texts, each ended by a zero byte."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-pipe", "--force-color-profile=srgb",
)  # fmt: skip
LIMIT = 60.0  # seconds for any one answer
# Chromium reads commands from descriptor 3 and writes answers to 4.
START = (
    "import fcntl, os, sys; a, b = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]); "
    "os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One page. `events` holds what the browser said unasked: (method, parameters)."""

    def __init__(self, read: int, write: int) -> None:
        self.read, self.write = read, write
        self.rest, self.number, self.session = b"", 0, ""
        self.events: list[tuple[str, dict[str, Any]]] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command. Raises RuntimeError with what the browser said against it."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        text = json.dumps(message | ({"sessionId": self.session} if self.session else {}))
        os.write(self.write, text.encode() + b"\0")
        until = time.monotonic() + LIMIT
        while (answer := self._next(until)).get("id") != self.number:
            self.events.append((answer.get("method", ""), answer.get("params", {})))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            if not select.select([self.read], [], [], max(until - time.monotonic(), 0))[0]:
                raise TimeoutError("Chromium did not answer")
            got = os.read(self.read, 2**20)
            if not got:
                raise RuntimeError("Chromium ended")
            self.rest += got
        text, _, self.rest = self.rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def evaluate(self, expression: str) -> Any:
        """What an expression is worth in the page; promises are awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    def attach(self) -> None:
        """To the first page, and hear of its errors and requests."""
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def shape(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """Size of the window in CSS pixels, and the colour scheme that the system asks for."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.settle()

    def open(self, path: Path) -> None:
        """Show a file and wait until it is drawn."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + LIMIT
        while self.evaluate("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < until, "the page did not load"
            time.sleep(0.02)
        self.settle()

    def settle(self) -> None:
        """Two frames, after which layout and drawings have followed."""
        self.evaluate(
            "new Promise(done => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 50))"
        )

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, uncaught exceptions, whatever Chromium logged."""
        return [
            json.dumps(parameters)[:1000] for method, parameters in self.events
            if method in ("Runtime.exceptionThrown", "Log.entryAdded")
            or (method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"))
        ]  # fmt: skip

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [p["request"]["url"] for method, p in self.events if method == "Network.requestWillBeSent"]

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, key: str, text: str = "") -> None:
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A fresh Chromium with a profile of its own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        to_child, commands = os.pipe()
        answers, from_child = os.pipe()
        words = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        child = subprocess.Popen(
            [sys.executable, "-c", START, str(to_child), str(from_child), *words],
            pass_fds=(to_child, from_child), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        found = Browser(answers, commands)
        try:
            found.attach()
            yield found
        finally:
            os.close(commands)
            os.close(answers)
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    try:  # it ends by itself when its pipe does
        child.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        child.wait()
