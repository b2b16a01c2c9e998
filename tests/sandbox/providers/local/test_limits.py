"""Measuring processes from outside."""

import subprocess
import sys
import time

from nemo_gym.sandbox.providers.local import limits
from nemo_gym.sandbox.providers.local.limits import BoxMeter, ProcessUsage

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

        usage = BoxMeter(first.pid, 1 << 30).measure()

        first.stdin.write("\n")
        first.stdin.flush()
    assert usage.memory_bytes > 60 << 20
    assert usage.threads >= 2
    assert usage.cpu_s >= 0


def test_processor_time_grows():
    """The processor limit depends on this number."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        deadline = time.monotonic() + 30
        while BoxMeter(busy.pid, None).measure().cpu_s < 0.1 and time.monotonic() < deadline:
            time.sleep(0.01)
        usage = BoxMeter(busy.pid, None).measure()
        busy.kill()
    assert usage.cpu_s >= 0.1


def test_a_process_that_ended_uses_nothing():
    """Processes end while they are measured."""
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert BoxMeter(ended.pid, 1 << 30).measure() == ProcessUsage()


LOCKS = """
import fcntl, os, tempfile
file = tempfile.TemporaryFile()
copies = [os.dup(file.fileno()) for _ in range(50)]
for number in range(1000):
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * number)
print("ready", flush=True)
input()
"""


def test_a_pass_is_short_and_locks_count_once(monkeypatch):
    """Each of the copies shows all locks: a program decides how long a measurement takes."""
    with subprocess.Popen([sys.executable, "-c", LOCKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        meter = BoxMeter(holder.pid, 1 << 30, counts_kernel_memory=True)
        # Not `measure`, which adds the share of memory that other processes use too, and these come and go.
        usages = [meter.measure_kernel_memory().memory_bytes for _ in range(5)]
        monkeypatch.setattr(limits, "_MAX_PASS_CPU_S", 0.0)
        cut_short = meter.measure()
        holder.communicate(b"\n")

    assert 1000 * 224 <= usages[4] - usages[3] < 3 * 1000 * 224
    assert cut_short.memory_bytes > 1 << 30
