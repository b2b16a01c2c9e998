"""What isolation a machine has, and how it is said."""

import pytest

from nemo_gym.sandbox import SandboxUnsupportedError
from nemo_gym.sandbox.providers.local import Isolation, probe
from nemo_gym.sandbox.providers.local.cgroups import MEMORY, PIDS


def tried(monkeypatch, **changes):
    for name, value in changes.items():
        monkeypatch.setattr(f"nemo_gym.sandbox.providers.local.isolation.{name}", value)
    return probe.__wrapped__()


def test_a_machine_without_bubblewrap_says_how_to_get_it(monkeypatch):
    found = tried(monkeypatch, find_bwrap=lambda: None)

    assert not found.available
    with pytest.raises(SandboxUnsupportedError, match="bubblewrap is not installed") as refusal:
        found.require()
    assert refusal.value.fix == "apt-get install bubblewrap"


def test_bubblewrap_that_does_not_work_says_what_it_said(monkeypatch, tmp_path):
    """In a container without the right to make namespaces it is installed and fails: only trying tells."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)

    found = tried(monkeypatch, find_bwrap=lambda: str(broken))

    assert found.problem == "bubblewrap does not work: bwrap: No permissions to create new namespace"
    assert "namespaces" in (found.fix or "")


def test_an_unknown_processor_has_no_filter_and_so_no_sandbox(monkeypatch):
    assert "no system call table" in (tried(monkeypatch, **{"seccomp.supported": lambda: False}).problem or "")


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Isolation("bubblewrap is not installed"), "none: bubblewrap is not installed"),
        (
            Isolation(landlock=7, own_user=True, counted=(MEMORY, PIDS)),
            "bubblewrap, seccomp, Landlock 7, a user of its own, groups (memory, processes)",
        ),
        (Isolation(), "bubblewrap, seccomp, no Landlock, our own user, rlimits only"),
    ],
)
def test_one_line_says_what_was_found_and_what_was_not(found, line):
    """Degraded is fine if it is said; a sandbox that looks complete and is not is worse than none."""
    assert found.describe() == line


def test_what_is_found_here_is_remembered():
    assert probe() is probe()
