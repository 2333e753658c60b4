"""What goes from one rank to another does not wait for what goes the other way."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from partita.cluster.text import load_cluster
from partita.lab.command import run_command

SCRIPT = Path(__file__).with_name("both_ways.py")


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces", "state")
def test_a_message_does_not_wait_for_those_that_go_the_other_way() -> None:
    """On one connection it came when the last one of the row was gone: where it goes was said behind all of these."""
    out, err = io.BytesIO(), io.BytesIO()
    assert run_command(load_cluster("lab-4x1g"), [sys.executable, str(SCRIPT)], out=out, err=err) == 0, err.getvalue()
    seconds = json.loads(out.getvalue())
    assert seconds["came"] < 0.5 * seconds["gone"], seconds
