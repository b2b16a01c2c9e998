"""Starting a box: it starts whole or leaves nothing."""

import asyncio
import os
import resource
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from nemo_gym.sandbox import SandboxCreateError, SandboxSpec
from nemo_gym.sandbox.providers.local import LocalProvider, probe
from nemo_gym.sandbox.providers.local.box import find_bwrap, launch
from nemo_gym.sandbox.providers.local.bubblewrap import BoxShape
from nemo_gym.sandbox.providers.local.provider import UnsandboxedProvider

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
    order = {"action": "program", "code": "print('fine')"}
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


KILLED_OWNER = """
import os, signal, sys
from nemo_gym.sandbox.providers.local import box
from nemo_gym.sandbox.providers.local.bubblewrap import BoxShape
step, lines = int(sys.argv[1]), 0
def trace(frame, event, argument):
    global lines
    if frame.f_code.co_filename != box.__file__:
        return None
    if event == "line":
        lines += 1
        if lines == step:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace
sys.settrace(trace)
box.launch(box.find_bwrap() or "", None, BoxShape(sys.argv[2]))
sys.settrace(None)
print(lines)
"""


def processes_with(mark: str) -> list[str]:
    """Return the processes that have the mark on their command line: bwrap, its child and the init process do."""
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "cmdline").read_bytes():
                left.append(process.name)
        except OSError:
            continue
    return left


@pytest.mark.parametrize("first", range(4))
def test_a_box_whose_owner_is_killed_while_it_starts_leaves_no_process(first):
    """The child of a bwrap that ended too early waited forever, in 3 of 60 kills of an owner."""
    argv = [sys.executable, "-c", KILLED_OWNER]
    lines = int(subprocess.run([*argv, "0", "/undisturbed"], capture_output=True, text=True, check=True).stdout)
    mark = f"/mark-{uuid.uuid4().hex}"
    for step in range(lines - 2 * first, lines // 2, -8):  # bwrap runs during the second half
        killed = subprocess.run([*argv, str(step), mark], capture_output=True)
        assert killed.returncode in (-9, 0), killed  # 0: reading the report of bwrap takes one or two rounds
    deadline = time.monotonic() + 20
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes_with(mark) == []


def test_a_failed_init_process_is_reported_at_once(monkeypatch):
    """The provider waited half a minute and gave no reason, e.g. for an interpreter that the user may not read."""
    monkeypatch.setattr("nemo_gym.sandbox.providers.local.bubblewrap.interpreter_path", lambda: "/no/such/python")

    with pytest.raises(SandboxCreateError, match="No such file"):
        launch(find_bwrap() or "", None, BoxShape())


def test_without_isolation_a_program_leaves_no_process_in_another_session():
    """An ordinary process can leave its group; only its parent can find it."""
    mark = f"mark-{uuid.uuid4().hex}"
    code = f"""
import os, subprocess, sys
loop = "import time; print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", loop, {mark!r}], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
"""

    async def run() -> str:
        provider = UnsandboxedProvider()
        outcome = await provider.run_once(SandboxSpec(), {"action": "program", "code": code}, timeout_s=30)
        left = processes_with(mark)
        await provider.aclose()
        assert outcome.result.return_code == 0, outcome.result
        return str(left)

    assert asyncio.run(run()) == "[]"
