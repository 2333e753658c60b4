from __future__ import annotations

from pathlib import Path

import pytest

from partita.lab.quota import (
    Hierarchy,
    find_hierarchy,
    killed_for_memory,
    make_group,
    memory_peak,
    name_group,
    process_files,
    set_cores,
)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


def test_version_1_groups_lie_below_our_own(proc: Path, tmp_path: Path) -> None:
    for place in ("cpu/mine", "memory"):
        (tmp_path / place).mkdir(parents=True)
    (proc / "cgroup").write_text("2:cpu,cpuacct:/job/mine\n1:memory:/\n0::/\n")
    (proc / "mountinfo").write_text(
        f"30 29 0:26 /job {tmp_path}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"31 29 0:27 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
    )
    assert find_hierarchy(proc) == Hierarchy(1, tmp_path / "cpu/mine", tmp_path / "memory")
    group = name_group(find_hierarchy(proc), "partita-x-0")
    make_group(group, cores=0.5, memory=4096)
    assert (tmp_path / "cpu/mine/partita-x-0/cpu.cfs_period_us").read_text() == "20000"
    assert (tmp_path / "cpu/mine/partita-x-0/cpu.cfs_quota_us").read_text() == "10000"
    assert (tmp_path / "memory/partita-x-0/memory.limit_in_bytes").read_text() == "4096"
    assert process_files(group)[1] == f"{tmp_path}/memory/partita-x-0/cgroup.procs"
    set_cores(group, 0.0)
    assert (tmp_path / "cpu/mine/partita-x-0/cpu.cfs_quota_us").read_text() == "-1"


def test_version_2_groups_lie_where_quotas_are_allowed(proc: Path, tmp_path: Path) -> None:
    mount = tmp_path / "unified"
    (mount / "user/session").mkdir(parents=True)
    (mount / "user/session/cgroup.subtree_control").write_text("")
    (mount / "user/cgroup.subtree_control").write_text("cpu memory")
    (proc / "cgroup").write_text("0::/user/session\n")
    (proc / "mountinfo").write_text(f"30 29 0:26 / {mount} rw - cgroup2 cgroup2 rw\n")
    assert find_hierarchy(proc) == Hierarchy(2, mount / "user", mount / "user")
    group = name_group(find_hierarchy(proc), "partita-x-1")
    make_group(group, cores=0.25, memory=0)
    assert group.directories == (str(mount / "user/partita-x-1"),)
    assert (mount / "user/partita-x-1/cpu.max").read_text() == "5000 20000"
    (mount / "user/partita-x-1/memory.peak").write_text("123\n")
    (mount / "user/partita-x-1/memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert memory_peak(group) == 123
    assert killed_for_memory(group)


def test_without_control_groups_there_is_no_hierarchy(proc: Path) -> None:
    assert find_hierarchy(proc) == Hierarchy(1, None, None)
    group = name_group(find_hierarchy(proc), "partita-x-2")
    assert group.directories == ()
    with pytest.raises(OSError, match="no control group for cpu"):
        make_group(group, cores=0.5, memory=0)
