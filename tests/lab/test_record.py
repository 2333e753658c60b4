"""Temporary folders of a launcher that was killed are removed by the next one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partita.cluster.text import load_cluster
from partita.lab.link_costs import probe_links
from partita.lab.record import reap, scratch

KILLED = """
import os, signal
from partita.lab.record import scratch
with scratch() as folder:
    (folder / "graph.json").write_text("{}")
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_killed_launcher_is_reaped(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch() as mine:
        left = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False).stdout
        folder = Path(left.strip())
        assert (folder / "graph.json").exists()
        assert len(reap()) == 1
        assert not folder.exists()
        assert mine.exists()
    assert not mine.exists()
    assert list(state.iterdir()) == []


def test_a_record_cannot_remove_what_is_not_ours(state: Path, tmp_path: Path) -> None:
    other, linked = tmp_path / "thesis", tmp_path / "partita-run-x"
    other.mkdir()
    linked.symlink_to(other)
    with scratch():
        (record,) = state.glob("lab-*.json")
        raw = json.loads(record.read_text())
        raw["owner"], raw["folders"] = [2**22 + 1, 1], [str(other), str(linked)]
        (state / "lab-forged.json").write_text(json.dumps(raw))
        reap()
    assert other.exists()


def test_one_device_has_no_links_to_measure() -> None:
    found = probe_links(load_cluster("local:1"), lambda sentence: None)
    assert found["wiring"] is None
    assert "nothing to measure" in found["notes"][0]
