"""The process that starts servers is never waited for without an end."""

import os
import signal

import pytest

from nemo_gym.errors import GymError
from nemo_gym.launch import spawn
from nemo_gym.launch.spawn import ZygoteSpawner
from tests.processes import is_gone

BOOT = {"config": {}, "instances": [], "listeners": {}, "cell_listeners": []}


async def test_a_zygote_that_stops_answering_is_an_error_and_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen process must cost seconds, not the night, and must not survive the command."""
    zygote = ZygoteSpawner(lambda pid, status: None)
    await zygote.start(BOOT, [], os.environ)
    assert zygote._process is not None
    pid = zygote._process.pid
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(spawn, "ZYGOTE_SECONDS", 0.2)

    with pytest.raises(GymError, match=r"did not start sums in 0\.2 s"):
        await zygote.spawn({"id": "sums", "kind": "process", "instance": "sums"}, 1, 2)
    await zygote.close()

    assert is_gone(pid)
