"""Counting from outside, process by process."""

import subprocess
import sys
import time

from nemo_gym.sandbox.providers.local.watch import Sample, sample

PROGRAM = """
import subprocess, sys
held = bytearray(32 << 20)
child = subprocess.Popen([sys.executable, "-c", "x = bytearray(32 << 20); print('ready', flush=True); input()"])
child.wait()
"""


def test_a_family_is_counted_together():
    """Ten children with a little each are as much as one with all of it."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == "ready\n"

        found = sample(first.pid)

        first.stdin.write("\n")
        first.stdin.flush()
    assert found.memory_bytes > 60 << 20
    assert found.tasks >= 2
    assert found.cpu_s >= 0


def test_processor_time_grows():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        until = time.monotonic() + 30
        while sample(busy.pid).cpu_s < 0.1 and time.monotonic() < until:
            time.sleep(0.01)
        found = sample(busy.pid)
        busy.kill()
    assert found.cpu_s >= 0.1


def test_who_is_gone_uses_nothing():
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert sample(ended.pid) == Sample()
