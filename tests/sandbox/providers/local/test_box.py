"""Starting a box: it starts whole or leaves nothing."""

import asyncio
import os
import resource

import pytest

from nemo_gym.sandbox import SandboxCreateError, SandboxSpec
from nemo_gym.sandbox.providers.local import LocalProvider, probe
from nemo_gym.sandbox.providers.local.box import find_bwrap, launch
from nemo_gym.sandbox.providers.local.bubblewrap import BoxShape

pytestmark = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_box_is_alive_until_it_is_closed_and_leaves_no_descriptor():
    """A leak of one descriptor per program stops a server after a day."""
    before = open_files()
    box = launch(find_bwrap() or "", None, BoxShape())
    assert box.alive

    assert box.close()
    assert box.close()

    assert not box.alive
    assert open_files() == before


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1", "setting up uid map: Permission denied"),
        ("exit 7", "exited with status 7"),
        ("echo one >&2; echo two >&2; kill -9 $$", r"one \| two"),
    ],
    ids=["refuses", "mute", "killed"],
)
def test_a_box_that_does_not_start_reports_why_and_leaves_nothing(tmp_path, script, message):
    """Containers without the right to make namespaces show this error first."""
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    before = open_files()

    with pytest.raises(SandboxCreateError, match=message):
        launch(str(fake), None, BoxShape())

    assert open_files() == before


def test_a_missing_program_is_one_clear_error(tmp_path):
    """A traceback would hide the cause."""
    with pytest.raises(SandboxCreateError, match="No such file"):
        launch(str(tmp_path / "bwrap"), None, BoxShape())


async def run_a_program():
    provider = LocalProvider()
    order = {"task": "program", "code": "print('fine')"}
    outcome = await provider.run_once(SandboxSpec(), order, timeout_s=30)
    await provider.aclose()
    return outcome.result


def test_descriptors_above_1023_work():
    """A server with thousands of connections has numbers that select() cannot take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("the limit of open files is too low to try")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        result = asyncio.run(run_a_program())
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert result.stdout == "fine\n", result
