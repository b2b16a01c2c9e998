"""Control groups: detected in either version, made, read and removed."""

import os
import subprocess
from pathlib import Path

import pytest

from nemo_gym.processes import start_ticks
from nemo_gym.sandbox.providers.local import cgroups
from nemo_gym.sandbox.providers.local.cgroups import CPU, MEMORY, PIDS, BoxCgroup, Cgroups, Usage

VERSION_1 = "4:memory:/jobs/7\n3:cpu,cpuacct:/\n2:pids:/\n0::/\n"
MOUNTS_1 = """\
30 20 0:20 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
31 20 0:21 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
32 20 0:22 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
33 20 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
MOUNTS_2 = "25 20 0:20 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"


def test_our_own_group_is_found_in_either_version():
    """Hosts run both versions of control groups."""
    version, groups = cgroups._own_groups(VERSION_1, MOUNTS_1)
    assert version == 1
    assert {name: os.path.normpath(path) for name, path in groups.items()} == {
        MEMORY: "/sys/fs/cgroup/memory/jobs/7",
        CPU: "/sys/fs/cgroup/cpu",
        PIDS: "/sys/fs/cgroup/pids",
    }

    version, groups = cgroups._own_groups("0::/user.slice/x.scope\n", MOUNTS_2)
    assert (version, set(groups)) == (2, {MEMORY, CPU, PIDS})
    assert os.path.normpath(groups[MEMORY]) == "/sys/fs/cgroup/user.slice/x.scope"


def test_a_machine_without_groups_has_none():
    """Detection must not fail in minimal containers."""
    assert cgroups._own_groups("", "") == (2, {})


def test_usage_is_read_from_the_files_of_either_version(tmp_path):
    """The counters decide how a program's end is classified."""
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        (folder / "pids.events").write_text("max 3\n")
    (first / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (first / "memory.max_usage_in_bytes").write_text(f"{3 << 20}\n")
    (first / "cpuacct.usage").write_text("1500000000\n")
    (second / "memory.events").write_text("low 0\noom 4\noom_kill 2\n")
    (second / "memory.peak").write_text(f"{3 << 20}\n")
    (second / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")

    for version, folder in ((1, first), (2, second)):
        assert BoxCgroup(dict.fromkeys((MEMORY, PIDS, CPU), folder), version).usage() == Usage(2, 3, 1.5, 3.0)


def test_unreadable_counters_are_zero(tmp_path):
    """A group can vanish with its box while it is read."""
    assert BoxCgroup(dict.fromkeys((MEMORY, PIDS, CPU), tmp_path / "gone"), 1).usage() == Usage(0, 0, 0.0, 0.0)


def test_usage_is_counted_since_the_start_of_an_order():
    """A box may run several commands, and each is charged only for itself."""
    assert Usage(3, 2, 5.0, 9.0).since(Usage(1, 2, 4.5, 7.0)) == Usage(2, 0, 0.5, 9.0)


def test_limits_of_version_2_have_no_swap(tmp_path):
    """Swap would make the memory limit meaningless."""
    for name in ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max"):
        (tmp_path / name).touch()

    BoxCgroup({MEMORY: tmp_path, PIDS: tmp_path}, 2).limit(memory_bytes=1000, processes=5)

    assert [(tmp_path / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")] == [
        "1000",
        "0",
        "5",
    ]


@pytest.fixture
def groups():
    groups = Cgroups.find()
    if groups is None:
        pytest.skip("no control group can be made here")
    yield groups
    groups.close()


def test_groups_are_made_limited_and_removed(groups):
    """Leaked groups accumulate until the kernel refuses new ones."""
    groups.open()
    group = groups.create_group("box-test")
    group.limit(memory_bytes=64 << 20, processes=10)
    group.limit(memory_bytes=32 << 20, processes=10)
    group.limit(memory_bytes=128 << 20, processes=10)
    folders = list(group.folders.values())
    assert all(folder.is_dir() for folder in folders)

    assert group.remove()
    groups.close()

    assert not any(folder.exists() or folder.parent.exists() for folder in folders)


def test_a_group_is_removed_only_after_its_last_process(groups):
    """The caller must know that a process is left."""
    groups.open()
    group = groups.create_group("box-busy")
    process = subprocess.Popen(["sleep", "3600"])
    group.add_process(process.pid)

    assert not group.remove()
    process.kill()
    process.wait()
    assert group.remove()


def test_abandoned_groups_are_removed(tmp_path):
    """If a janitor was killed with its owner, the next provider cleans up, but not groups of live owners."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine = f"nemo-gym-{os.getpid()}-{start_ticks(os.getpid())}-abcd"
    for name in (f"nemo-gym-{ended.pid}-1-abcd/box-1", f"{mine}/box-1", "nemo-gym-trial-1-x", "other"):
        (tmp_path / name).mkdir(parents=True)

    cgroups._remove_abandoned(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {mine, "nemo-gym-trial-1-x", "other"}


def test_the_start_time_identifies_a_process():
    """Process ids are reused, and a reused id must not protect an abandoned group."""
    assert start_ticks(os.getpid()) > 0
    assert start_ticks(2**22 + 1) == 0
    assert Path(f"/proc/{os.getpid()}").exists()
