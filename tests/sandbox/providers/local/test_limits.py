"""Measuring processes from outside."""

import subprocess
import sys
import time

from nemo_gym.sandbox.providers.local.limits import ProcessUsage, measure_processes

PROGRAM = """
import subprocess, sys
held = bytearray(32 << 20)
child = subprocess.Popen([sys.executable, "-c", "x = bytearray(32 << 20); print('ready', flush=True); input()"])
child.wait()
"""


def test_descendants_are_measured_together():
    """Ten children with a little memory each use as much as one with all of it."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline() == "ready\n"

        usage = measure_processes(first.pid)

        first.stdin.write("\n")
        first.stdin.flush()
    assert usage.memory_bytes > 60 << 20
    assert usage.threads >= 2
    assert usage.cpu_s >= 0


def test_processor_time_grows():
    """The processor limit depends on this number."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        deadline = time.monotonic() + 30
        while measure_processes(busy.pid).cpu_s < 0.1 and time.monotonic() < deadline:
            time.sleep(0.01)
        usage = measure_processes(busy.pid)
        busy.kill()
    assert usage.cpu_s >= 0.1


def test_a_process_that_ended_uses_nothing():
    """Processes end while they are measured."""
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert measure_processes(ended.pid) == ProcessUsage()
