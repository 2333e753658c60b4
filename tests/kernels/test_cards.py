"""Codecs' kernels for cards, which this machine need not have: in Triton's interpreter, and translated by it.

Both run in a process of their own, since Triton reads `TRITON_INTERPRET` once and torch looks whether Triton is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASIDE = ROOT / ".triton"
HOW = "Triton is not installed; `make triton` puts it in .triton, where only these tests look for it"


def run(file: str, **variables: str) -> None:
    """The tests of a file that pytest does not find by itself."""
    if find_spec("triton") is None and not ASIDE.is_dir():
        pytest.skip(HOW)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"), str(ASIDE))))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", f"tests/kernels/{file}"],
        env={**kept, "PYTHONPATH": path, **variables}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_cards_say_what_the_processor_says() -> None:
    run("interpreted.py", TRITON_INTERPRET="1")


@pytest.mark.slow
def test_kernels_are_translated_without_fusing(tmp_path: Path) -> None:
    run("translated.py", TRITON_CACHE_DIR=str(tmp_path))
