"""`gym view` shows rollouts to the user who started it, and to no other user of the machine."""

import http.client
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CLIENT = """
import encodings.idna, http.client, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
connection.request("GET", "/api/runs")
print(connection.getresponse().status)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_cannot_read_the_rollouts(tmp_path: Path) -> None:
    """Loopback is shared by all users; rollouts may contain data that is not public."""
    rollouts = tmp_path / "rollouts.jsonl"
    rollouts.write_text('{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0}\n')
    command = [sys.executable, "-m", "nemo_gym.cli.main", "view", str(rollouts), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as viewer:
        try:
            assert viewer.stdout is not None
            port = re.search(r":(\d+)/", viewer.stdout.readline())
            assert port is not None
            own = http.client.HTTPConnection("127.0.0.1", int(port.group(1)), timeout=30)
            own.request("GET", "/api/runs")
            own_status = own.getresponse().status
            own.close()
            other = subprocess.run(
                [sys.executable, "-c", CLIENT, port.group(1)], capture_output=True, text=True, timeout=60, check=False
            )
        finally:
            viewer.terminate()

    assert (own_status, other.stdout.strip()) == (200, "401")
