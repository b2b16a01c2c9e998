"""Starting a box: it starts whole or leaves nothing."""

import asyncio
import os
import resource

import pytest

from nemo_gym.sandbox import SandboxCreateError, SandboxSpec
from nemo_gym.sandbox.providers.local import LocalProvider, probe
from nemo_gym.sandbox.providers.local.bubblewrap import Shape
from nemo_gym.sandbox.providers.local.launch import find_bwrap, launch

pytestmark = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_box_is_alive_until_it_is_closed_and_leaves_no_descriptor():
    before = open_files()
    box = launch(find_bwrap() or "", Shape(), None)
    assert box.alive

    assert box.close()
    assert box.close()

    assert not box.alive
    assert open_files() == before


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1", "setting up uid map: Permission denied"),
        ("exit 7", "ended with status 7"),
        ("echo one >&2; echo two >&2; kill -9 $$", r"one \| two"),
    ],
    ids=["refuses", "mute", "killed"],
)
def test_a_box_that_does_not_start_says_why_and_leaves_nothing(tmp_path, script, said):
    """In a container without the right to make namespaces this is the first thing people see."""
    fake = tmp_path / "bwrap"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    before = open_files()

    with pytest.raises(SandboxCreateError, match=said):
        launch(str(fake), Shape(), None)

    assert open_files() == before


def test_a_program_that_is_not_there_is_one_clear_error(tmp_path):
    with pytest.raises(SandboxCreateError, match="No such file"):
        launch(str(tmp_path / "bwrap"), Shape(), None)


async def run_a_program():
    provider = LocalProvider()
    words = {"task": "program", "code": "print('fine')"}
    outcome = await provider.run_once(SandboxSpec(), words, timeout_s=30)
    await provider.aclose()
    return outcome.result


def test_descriptors_with_large_numbers_are_no_trouble():
    """A server with thousands of connections open hands out numbers that select() cannot take."""
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
