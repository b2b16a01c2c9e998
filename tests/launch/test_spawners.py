"""Waiting for the zygote always ends."""

import os
import signal

import pytest

from nemo_gym.errors import GymError
from nemo_gym.launch import spawners
from nemo_gym.launch.spawners import ZygoteSpawner
from nemo_gym.launch.zygote import ZygoteSpec
from nemo_gym.processes import child_pids
from tests.processes import is_gone

BOOT = {"config": {}, "instances": {}, "listeners": {}, "cell_listeners": [], "limits": {}}


async def test_a_zygote_that_does_not_respond_is_an_error_and_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen process must cost seconds, not hours, and must not survive the command."""
    zygote = ZygoteSpawner(lambda pid, status: None)
    await zygote.start(ZygoteSpec(BOOT, [], os.environ))
    assert zygote._process is not None
    guard = zygote._process.pid
    (pid,) = child_pids(guard)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(spawners, "ZYGOTE_SECONDS", 0.2)

    with pytest.raises(GymError, match=r"did not start sums in 0\.2 s"):
        await zygote.spawn({"id": "sums", "kind": "process", "instance": "sums"}, 1, 2)
    await zygote.close()

    assert is_gone(pid)
    assert is_gone(guard)
