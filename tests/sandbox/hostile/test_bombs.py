"""Programs that exhaust memory, processes, disk, output or time."""

import pytest

FORK_BOMB = """
import os
while True:
    os.fork()
"""

QUIET_FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

THREAD_BOMB = """
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(60,)).start()
"""

SUBPROCESS_BOMB = """
import subprocess
while True:
    subprocess.Popen(["sleep", "60"])
"""

MEMORY_IN_PIECES = "x = []\nwhile True: x.append(bytearray(1 << 20))"
MEMORY_IN_A_ROW = "x = 'a'\nwhile True: x += x"
MEMORY_AT_ONCE = "bytearray(1 << 40)"
MEMORY_MAPPED = """
import mmap
m = mmap.mmap(-1, 512 << 20)
for at in range(0, len(m), 4096):
    m[at] = 1
"""

MEMORY_OF_CHILDREN = """
import os, time
for _ in range(12):
    if os.fork() == 0:
        x = bytearray(16 << 20)
        time.sleep(60)
        os._exit(0)
os.wait()
raise SystemExit(1)
"""

MEMORY_IN_UNNAMED_FILES = """
import os
held = []
while True:
    held.append(os.memfd_create("x"))
    for _ in range(8):
        os.write(held[-1], bytes(1 << 20))
"""

MEMORY_IN_PIPES = """
import fcntl, os
held = []
while True:
    r, w = os.pipe()
    held.append((r, w))
    fcntl.fcntl(w, 1031, 1 << 20)
    os.set_blocking(w, False)
    os.write(w, bytes(1 << 20))
"""

UNPACKING_BOMB = """
import zlib
bomb = zlib.compress(bytes(16 << 20))
held = [zlib.decompress(bomb) for _ in range(20)]
"""

NUMBER_BOMB = "x = 9 ** (9 ** 9)"
COMPREHENSION_BOMB = "x = [[0] * 10 ** 6 for _ in range(10 ** 6)]"

DISK_FULL = """
with open("big", "wb") as file:
    while True:
        file.write(bytes(1 << 20))
"""

DISK_FULL_IN_TMP = DISK_FULL.replace('"big"', '"/tmp/big"')
SHARED_MEMORY_FULL = DISK_FULL.replace('"big"', '"/dev/shm/big"')
SPARSE_FILE = "open('sparse', 'wb').truncate(1 << 40)"

MANY_FILES = """
import os
for n in range(10 ** 7):
    os.close(os.open(f"{n:0200}", os.O_CREAT | os.O_WRONLY))
"""

DEEP_FOLDERS = """
import os
for n in range(10 ** 7):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
"""

FLOOD_STDOUT = "while True: print('y' * 1000)"
FLOOD_STDERR = "import sys\nwhile True: sys.stderr.write('y' * 1000)"
FLOOD_RAW = "import os\nwhile True: os.write(1, bytes(65536))"
FLOOD_FROM_GRANDCHILD = """
import subprocess, time
subprocess.Popen(["yes"])
time.sleep(60)
"""
ONE_LINE_FLOOD = "print('y' * (1 << 20))"

SLEEP = "import time; time.sleep(3600)"
BUSY = "while True: pass"
IGNORES_SIGNALS = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    signal.pause()
"""
STOPS_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
WAITS_FOR_INPUT = "import os\nr, w = os.pipe()\nos.read(r, 1)"
PATCHED_CLOCK = """
import time
time.time = time.monotonic = time.perf_counter = lambda: 0.0
while time.time() < 1:
    pass
"""
CATASTROPHIC_PATTERN = "import re; re.match('(a+)+$', 'a' * 50 + 'b')"
IN_C_WITHOUT_A_BREAK = "sum(range(10 ** 14))"
CATCHES_EVERYTHING = """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""

IGNORES_THE_CPU_LIMIT = """
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True:
    pass
"""
CPU_IN_CHILDREN = """
import os
for _ in range(4):
    if os.fork() == 0:
        while True:
            pass
os.wait()
"""

CRASH_IN_C = "import ctypes; ctypes.string_at(0)"

CASES = {
    "fork bomb": (FORK_BOMB, "processes", {"timeout_s": 2}),
    "fork bomb that hides its errors": (QUIET_FORK_BOMB, "processes", {"timeout_s": 1}),
    "thread bomb": (THREAD_BOMB, "processes", {"timeout_s": 1}),
    "subprocess bomb": (SUBPROCESS_BOMB, "processes", {}),
    "memory in pieces": (MEMORY_IN_PIECES, "memory", {}),
    "memory in a row": (MEMORY_IN_A_ROW, "memory", {}),
    "memory at once": (MEMORY_AT_ONCE, "memory", {}),
    "memory mapped": (MEMORY_MAPPED, "memory", {}),
    "memory of many children": (MEMORY_OF_CHILDREN, "memory", {}),
    "memory in files without a name": (MEMORY_IN_UNNAMED_FILES, ("memory", "disk", "forbidden"), {}),
    "memory in pipes": (MEMORY_IN_PIPES, ("memory", "forbidden", None), {}),
    "unpacking bomb": (UNPACKING_BOMB, "memory", {}),
    "a number too large": (NUMBER_BOMB, ("timeout", "memory"), {"timeout_s": 0.5}),
    "comprehension bomb": (COMPREHENSION_BOMB, "memory", {}),
    "disk full": (DISK_FULL, "disk", {}),
    "disk full in /tmp": (DISK_FULL_IN_TMP, "disk", {}),
    "shared memory full": (SHARED_MEMORY_FULL, "disk", {}),
    "sparse terabyte": (SPARSE_FILE, "disk", {}),
    "millions of files": (MANY_FILES, ("memory", "disk", "timeout"), {"timeout_s": 2}),
    "folders without end": (DEEP_FOLDERS, ("memory", "disk", "timeout", None), {"timeout_s": 0.5}),
    "stdout flood": (FLOOD_STDOUT, "output", {}),
    "stderr flood": (FLOOD_STDERR, "output", {}),
    "raw flood": (FLOOD_RAW, "output", {}),
    "flood from a grandchild": (FLOOD_FROM_GRANDCHILD, "output", {}),
    "one enormous line, then the end": (ONE_LINE_FLOOD, "output", {}),
    "sleep for ever": (SLEEP, "timeout", {"timeout_s": 0.3}),
    "busy for ever": (BUSY, "timeout", {"timeout_s": 0.3}),
    "ignores every signal": (IGNORES_SIGNALS, "timeout", {"timeout_s": 0.5}),
    "stops itself": (STOPS_ITSELF, "timeout", {"timeout_s": 0.3}),
    "waits for what never comes": (WAITS_FOR_INPUT, "timeout", {"timeout_s": 0.3}),
    "patches the clock": (PATCHED_CLOCK, "timeout", {"timeout_s": 0.3}),
    "catastrophic pattern": (CATASTROPHIC_PATTERN, "timeout", {"timeout_s": 0.3}),
    "in C without a break": (IN_C_WITHOUT_A_BREAK, "timeout", {"timeout_s": 0.3}),
    "catches everything": (CATCHES_EVERYTHING, "timeout", {"timeout_s": 0.3}),
    "processor time": (BUSY, "cpu_time", {"cpu_s": 1}),
    "ignores the processor limit": (IGNORES_THE_CPU_LIMIT, "cpu_time", {"cpu_s": 0.3}),
    "processor time of children": (CPU_IN_CHILDREN, "cpu_time", {"cpu_s": 0.3}),
    "crash in C": (CRASH_IN_C, "crashed", {}),
    "kills itself": ("import os; os.kill(os.getpid(), 9)", "crashed", {}),
    "aborts": ("import os; os.abort()", "crashed", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_resource_bomb_is_killed_and_classified(hostile, name):
    """A memory bomb or a slow machine graded as a wrong answer teaches the wrong thing."""
    code, kind, bounds = CASES[name]

    result = hostile.run(code, **bounds)

    assert result.error_type in (kind if isinstance(kind, tuple) else (kind,)), result
    assert len(result.stdout) <= 1 << 18
