"""Temporary folders of a launcher that was killed are removed by the next one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partita.cluster.text import load_cluster
from partita.lab.link_costs import probe_links
from partita.lab.record import reap, scratch, state_directory, write_record

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


@pytest.mark.parametrize(("boot", "age", "left"), [("another", 1e9, 0), ("another", 0.0, 1), ("", 1e9, 1)])
def test_a_folder_of_an_earlier_boot_is_reaped(boot: str, age: float, left: int, state: Path, tmp_path: Path) -> None:
    """What runs beside, in another PID namespace or on another machine with the same temporary folder, is left."""
    folder, record = tmp_path / "partita-run-x", state_directory() / "lab-x.json"
    folder.mkdir()
    write_record(record, "x", (), (str(folder),))
    raw = json.loads(record.read_text())
    raw["place"] = f"{boot or raw['place'].split()[0]} pid:[1]"
    record.write_text(json.dumps(raw))
    os.utime(record, (time.time() - age,) * 2)
    assert len(reap()) == 1 - left
    assert folder.exists() == record.exists() == bool(left)


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
