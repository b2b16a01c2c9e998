"""Detection and description of the isolation of a machine."""

import pytest

from nemo_gym.cli import doctor
from nemo_gym.sandbox import SandboxCreateError, SandboxUnsupportedError
from nemo_gym.sandbox.providers.local import Isolation, isolation_probe, probe
from nemo_gym.sandbox.providers.local.cgroups import MEMORY, PIDS


def probe_with(monkeypatch, **changes):
    for name, value in changes.items():
        monkeypatch.setattr(f"nemo_gym.sandbox.providers.local.isolation_probe.{name}", value)
    return probe.__wrapped__()


def test_a_machine_without_bubblewrap_says_how_to_get_it(monkeypatch):
    """It is the most common problem of a new machine."""
    isolation = probe_with(monkeypatch, find_bwrap=lambda: None)

    assert not isolation.available
    with pytest.raises(SandboxUnsupportedError, match="bubblewrap is not installed") as refusal:
        isolation.require()
    assert refusal.value.fix == "apt-get install bubblewrap"


def test_the_error_of_bubblewrap_is_reported(monkeypatch, tmp_path):
    """In a container without namespaces it is installed and fails: only trying reveals that."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)

    isolation = probe_with(monkeypatch, find_bwrap=lambda: str(broken))

    assert isolation.problem == "bubblewrap does not work: bwrap: No permissions to create new namespace"
    assert "namespaces" in (isolation.fix or "")


def test_an_unknown_processor_has_no_filter_and_so_no_sandbox(monkeypatch):
    """Numbers of another table would forbid the wrong calls."""
    assert "no system call table" in (probe_with(monkeypatch, **{"seccomp.is_supported": lambda: False}).problem or "")


@pytest.mark.parametrize(
    ("isolation", "line"),
    [
        (Isolation("bubblewrap is not installed"), "none: bubblewrap is not installed"),
        (
            Isolation(landlock=7, own_user=True, counted=(MEMORY, PIDS)),
            "bubblewrap, seccomp, Landlock 7, a separate user, groups (memory, processes)",
        ),
        (Isolation(), "bubblewrap, seccomp, no Landlock, the same user, rlimits only"),
    ],
)
def test_one_line_describes_the_isolation(isolation, line):
    """Degraded isolation is fine if it is reported."""
    assert isolation.describe() == line


def test_the_probe_runs_once():
    """Starting a box for every check would slow down every server."""
    assert probe() is probe()


def test_limits_that_the_kernel_does_not_enforce_are_named(monkeypatch):
    """An ordinary user without control groups must know that memory is measured, not limited."""
    assert Isolation(counted=(MEMORY, PIDS)).sampled_limits == []
    assert Isolation(counted=(PIDS,)).sampled_limits == ["memory"]
    assert Isolation("bubblewrap is not installed").sampled_limits == []
    monkeypatch.setattr("nemo_gym.sandbox.providers.local.probe", Isolation)

    lines = [f"{result.level} {result.subject}: {result.message}" for result in doctor._check_sandboxes()]

    assert "note Sandbox limits: memory and processes of a program are measured, not limited by the kernel" in lines[1]


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("bwrap: Can't find source path /home/a/python: Permission denied", "Python interpreter in a folder"),
        ("bwrap: setting up uid map: Permission denied", "allow user namespaces"),
    ],
)
def test_the_fix_fits_the_cause(monkeypatch, reason, fix):
    """A user who may not enter the folder of the interpreter would change a kernel setting for nothing."""

    def fail(*_):
        raise SandboxCreateError(reason)

    monkeypatch.setattr(isolation_probe, "find_bwrap", lambda: "bwrap")
    monkeypatch.setattr(isolation_probe, "launch", fail)

    assert fix in (isolation_probe.probe.__wrapped__().fix or "")
