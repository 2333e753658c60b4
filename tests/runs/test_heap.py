"""Memory that is freed: kept where there is room for its holes, given back where a limit leaves none."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from partita.runs import heap
from partita.runs.heap import KEPT, limit

# Of 16 blocks of 8 MiB and 1 MiB in turn the large ones are freed; then comes one of 64 MiB, which no hole takes.
HOLED = """
import sys
import psutil, torch
from partita.runs import heap

heap.limit = lambda: float(sys.argv[1])
torch.ones(2**20)
before = psutil.Process().memory_info().rss
heap.make_room(64 * 2**20)
blocks = [torch.ones(2**21 if i % 2 else 2**18) for i in range(16)]
del blocks[1::2]
whole = torch.ones(2**24)
print(psutil.Process().memory_info().rss - before)
"""


def grown(limit: float) -> int:
    """Bytes that a process takes beyond its start, of which 72 MiB live."""
    environment = {**KEPT, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", HOLED, str(limit)]
    return int(subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout)


def test_what_is_freed_goes_back_where_a_limit_leaves_no_room() -> None:
    assert grown(1) < 80 * 2**20
    assert grown(inf) > 110 * 2**20


@pytest.mark.parametrize(
    ("table", "file", "text", "found"),
    [
        ("4:memory:/a/b\n0::/\n", "memory/a/b/memory.limit_in_bytes", "1000\n", 1000),
        ("4:cpu,memory:/\n", "memory/memory.limit_in_bytes", "9223372036854771712\n", inf),
        ("0::/a\n", "a/memory.max", "2000\n", 2000),
        ("0::/a\n", "a/memory.max", "max\n", inf),
        ("0::/a\n", "b/memory.max", "2000\n", inf),
        ("0::/a/b\n", "a/memory.max", "2000\n", 2000),
        ("4:memory:/docker/a\n", "memory/memory.limit_in_bytes", "3000\n", 3000),
    ],
)
def test_the_limit_of_a_group_and_those_around_it(
    tmp_path: Path, table: str, file: str, text: str, found: float
) -> None:
    (tmp_path / "cgroup").write_text(table)
    (tmp_path / "mount" / file).parent.mkdir(parents=True)
    (tmp_path / "mount" / file).write_text(text)
    assert limit(tmp_path, tmp_path / "mount") == found


def test_without_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert limit(tmp_path, tmp_path) == inf


# How much of a process's heap of 64 MiB lies in huge pages.
HUGE = """
import torch
block = torch.ones(2**24)
inside, found = False, 0
for line in open("/proc/self/smaps"):
    inside = line.rstrip().endswith("[heap]") if "-" in line.split()[0] else inside
    found += int(line.split()[1]) if inside and line.startswith("AnonHugePages:") else 0
print(found * 1024)
"""
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not SETTING.exists() or "[never]" in SETTING.read_text(),
    reason="needs a kernel that gives huge pages to who asks (transparent_hugepage is absent or never)",
)
def test_a_kept_heap_lies_in_huge_pages() -> None:
    words = [sys.executable, "-c", HUGE]
    kept, plain = (
        int(subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout)
        for env in ({**KEPT, "OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1"})
    )
    assert kept > 48 * 2**20
    assert plain < kept or "[always]" in SETTING.read_text()


@pytest.mark.parametrize(("room", "kept"), [(120, True), (119, False)])
def test_room_is_for_twice_what_lives(room: float, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the 100 bytes that are there; otherwise what is idle goes back now, too, and no huge page is taken."""
    libc = Mock(**{"mallopt.return_value": 1})
    memory = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=100))
    monkeypatch.setattr(heap, "ctypes", SimpleNamespace(CDLL=lambda name: libc))
    monkeypatch.setattr(heap, "psutil", SimpleNamespace(Process=lambda: memory))
    monkeypatch.setattr(heap, "limit", lambda: room)
    heap.make_room(10)
    set_to = dict(call.args for call in libc.mallopt.call_args_list)
    assert set_to[heap.TRIM_THRESHOLD] == set_to[heap.MMAP_THRESHOLD] == (2**31 - 1 if kept else heap.SMALL)
    assert (libc.malloc_trim.called, libc.prctl.called) == (not kept, not kept)


@pytest.mark.parametrize(("outer", "inner"), [("2000", "5000"), ("5000", "2000"), ("2000", "max"), ("max", "2000")])
def test_the_least_of_nested_limits_holds(tmp_path: Path, outer: str, inner: str) -> None:
    (tmp_path / "cgroup").write_text("0::/a/b\n")
    (tmp_path / "mount/a/b").mkdir(parents=True)
    (tmp_path / "mount/a/memory.max").write_text(outer)
    (tmp_path / "mount/a/b/memory.max").write_text(inner)
    assert limit(tmp_path, tmp_path / "mount") == 2000
