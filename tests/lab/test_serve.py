"""What a worker leaves user code of the pipes by which it is told what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ASKING = """
def task():
    print("not a reply")
    return input("which model? ")
"""


def test_user_code_does_not_read_what_the_worker_is_told(tmp_path: Path) -> None:
    """A model that asks for input has none, and the request behind the one that builds it is answered."""
    (tmp_path / "asking.py").write_text(ASKING)
    opened = {"id": 1, "verb": "open", "task": f"{tmp_path}/asking.py:task", "cluster": "local:1"}
    requests = "".join(json.dumps(each) + "\n" for each in (opened, {"id": 2, "verb": "nothing"}))
    argv = [sys.executable, "-m", "partita.lab.serve"]
    done = subprocess.run(argv, input=requests, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert "asking.py:task failed (EOFError: EOF when reading a line)" in first["error"]
    assert (first["id"], first["exit"], second["id"]) == (1, 2, 2)
