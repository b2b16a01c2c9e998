"""Programs that fill kernel memory where no control group counts it, as for an ordinary user."""

import threading

import pytest

from nemo_gym.sandbox.providers.local.limits import BoxMeter

PRELUDE = """
import fcntl, os, pty, socket, time
held = []  # until the program ends: the limit of descriptors ends the loop, and memory is measured every 10 ms
def in_children(work, number=20):
    for _ in range(number):
        if os.fork() == 0:
            try:
                work()
            except OSError:
                pass
            time.sleep(60)
            os._exit(0)
    time.sleep(60)
def fill(*ends):
    for end in ends:
        end.setblocking(False)
        try:
            while True:
                end.send(bytes(1 << 16))
        except OSError:
            pass
"""

PAIRS = """
def work():
    while True:
        held.append(socket.socketpair())
        fill(*held[-1])
in_children(work)
"""
PACKETS = PAIRS.replace("socketpair()", "socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)")

CONNECTIONS_NOT_ACCEPTED = """
listener = socket.socket(socket.AF_UNIX)
listener.bind("/tmp/socket")
listener.listen(4096)
while True:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect("/tmp/socket")
        fill(caller)
"""

SOCKETS_IN_TRANSIT = """
held = [socket.socketpair() for _ in range(25)]
while True:
    for carrier, _ in held:
        pair = socket.socketpair()
        fill(*pair)
        socket.send_fds(carrier, [b"x"], [end.fileno() for end in pair])
        for end in pair:
            end.close()
"""

FOLDERS = "import os\nfor n in range(10 ** 7): os.mkdir(f'/tmp/{n:0250}')"
LINKS = "import os\nopen('f', 'w').close()\nfor n in range(10 ** 7): os.link('f', f'{n:0250}')"
SYMBOLIC_LINKS = "import os\nfor n in range(10 ** 7): os.symlink('x' * 120, f'/dev/shm/{n}')"
FILES_IN_ALL_FOLDERS = """
for folder in ("/work", "/tmp", "/dev/shm"):
    with open(f"{folder}/full", "wb") as file:
        file.write(bytes(15 << 20))
held = bytearray(50 << 20)
import time
time.sleep(60)
"""

TERMINALS = """
def work():
    while True:
        held.append(pty.openpty())
in_children(work)
"""

LOCKS = """
def work():
    held.extend(os.open(f"{os.getpid()}-{n}", os.O_CREAT | os.O_RDWR) for n in range(40))
    for start in range(0, 10 ** 9, 40):
        for file in held:
            for number in range(start, start + 40):
                fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * number)
in_children(work)
"""

LOCKS_OF_A_SECOND_DESCRIPTOR = LOCKS.replace(
    "n in range(40))", "n in range(20) for _ in 'ab')\n    unlocked, held[:] = held[::2], held[1::2]"
)

FIRST_THREADS_ENDED = """
import ctypes, mmap, threading
exit_thread = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
def fill_later():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    held.append(mmap.mmap(-1, 20 << 20, flags=mmap.MAP_PRIVATE))
    held[0].write(bytes(20 << 20))
    time.sleep(60)
def work():
    threading.Thread(target=fill_later).start()
    ctypes.CDLL(None).syscall(exit_thread, 0)
threading.stack_size(1 << 18)
in_children(work, 8)
"""

MAPPINGS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
pages = 24_000
start = libc.mmap(None, ctypes.c_size_t(pages * 4096), 0, 0x22, -1, ctypes.c_long(0))
for page in range(0, pages, 2):
    libc.mprotect(ctypes.c_void_p(start + page * 4096), ctypes.c_size_t(4096), 1)
in_children(lambda: None)
"""

DESCRIPTORS = "import os\nwhile True: print(os.pipe()[0], flush=True)"
TIMERS = """
import ctypes
libc = ctypes.CDLL(None)
for number in range(10 ** 6):
    assert libc.timer_create(0, None, ctypes.byref(ctypes.c_void_p())) == 0
    print(number, flush=True)
"""

FILLED = {
    "socket pairs": PRELUDE + PAIRS,
    "packets": PRELUDE + PACKETS,
    "connections that are not accepted": PRELUDE + CONNECTIONS_NOT_ACCEPTED,
    "folders": FOLDERS,
    "hard links": LINKS,
    "symbolic links": SYMBOLIC_LINKS,
    "files and memory together": FILES_IN_ALL_FOLDERS,
    "terminals": PRELUDE + TERMINALS,
    "file locks": PRELUDE + LOCKS,
    "locks of a file that is opened twice": PRELUDE + LOCKS_OF_A_SECOND_DESCRIPTOR,
    "processes whose first thread has ended": PRELUDE + FIRST_THREADS_ENDED,
    "mappings": PRELUDE + MAPPINGS,
}


@pytest.mark.parametrize("name", FILLED)
def test_kernel_memory_counts_as_memory(hostile_without_groups, name):
    """These filled gigabytes with 64 MiB allowed; the last sign would be the end of the server."""
    result = hostile_without_groups.run(FILLED[name], timeout_s=60)

    assert result.error_type == "memory", result
    assert result.detail.sampled_limits == ("memory", "pids")


@pytest.mark.parametrize("name", ["terminals", "file locks", "locks of a file that is opened twice"])
def test_kernel_memory_that_no_group_counts_is_memory(hostile, name):
    """Locks took 505 MiB in a group of 64 MiB, and terminals all that the machine has, which other users share."""
    result = hostile.run(FILLED[name], timeout_s=60)

    assert result.error_type == "memory", result


def test_a_few_terminals_and_locks_are_ordinary(hostile):
    """Tools for terminals and databases need them; more than one measurement sees them."""
    code = """
held, file = [pty.openpty() for _ in range(20)], open("f", "w")
for number in range(2000):
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * number)
time.sleep(0.6)
print("done")
"""

    assert hostile.run(PRELUDE + code).stdout == "done\n"


def test_measuring_does_not_block_the_event_loop(hostile_without_groups, monkeypatch):
    """A program with many locks made one measurement take 50 s, in which the server did not answer."""
    measure, is_free = BoxMeter.measure, []

    def measure_while_the_loop_runs(meter):
        answered = threading.Event()
        hostile_without_groups.loop.call_soon_threadsafe(answered.set)
        is_free.append(answered.wait(10))
        return measure(meter)

    monkeypatch.setattr(BoxMeter, "measure", measure_while_the_loop_runs)
    hostile_without_groups.run("import time; time.sleep(0.2)")

    assert is_free
    assert all(is_free)


def test_sockets_in_transit_are_few(hostile_without_groups):
    """A socket that is sent and not received has no descriptor, but its data stays."""
    result = hostile_without_groups.run(PRELUDE + SOCKETS_IN_TRANSIT, timeout_s=60)

    assert result.error_type == "memory" or "Too many references" in result.stderr


@pytest.mark.parametrize(("code", "bound"), [(DESCRIPTORS, 64), (TIMERS, 256)], ids=["descriptors", "timers"])
def test_kernel_objects_have_a_small_limit(hostile_without_groups, code, bound):
    """An epoll file watches every other descriptor: their memory grows with the square of this limit."""
    result = hostile_without_groups.run(code)

    assert result.return_code == 1
    assert 8 < int(result.stdout.split()[-1]) < bound


UNMAPPED = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
size = 4 << 20
for _ in range(100):
    start = libc.mmap(None, ctypes.c_size_t(size), {access}, {flags}, {file}, ctypes.c_long(0))
    if start == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "not mapped")
    sum((ctypes.c_char * size).from_address(start)[::4096])  # reading is sufficient to get the pages
    libc.munmap(ctypes.c_void_p(start + 4096), ctypes.c_size_t(size - 4096))
print("ESCAPED")
"""


@pytest.mark.parametrize(
    ("access", "flags", "file", "problem"),
    [
        (3, 0x21, "-1", "Errno 1]"),
        (1, 0x4021, "-1", "Errno 1]"),
        (3, 0x1, "os.open('/dev/zero', os.O_RDWR)", "Errno 19]"),
        (1, 0x1, "os.open('/dev/zero', os.O_RDONLY)", "Errno 19]"),
    ],
)
def test_shared_memory_is_a_file(hostile_without_groups, access, flags, file, problem):
    """Such memory stays until its last page is unmapped, but only mapped pages are measured: it took gigabytes."""
    code = "import os\n" + UNMAPPED.format(access=access, flags=flags, file=file)

    result = hostile_without_groups.run(code)

    assert (result.return_code, result.stdout) == (1, "")
    assert problem in result.stderr


@pytest.mark.parametrize("runner", ["hostile", "hostile_without_groups"])
@pytest.mark.parametrize("number", [444, 445, 446])
def test_landlock_is_not_for_programs(request, runner, number):
    """Rulesets filled gigabytes; EPERM, where these arguments would give another error."""
    code = f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall({number}, -1, 0, 0, 0), errno.errorcode[ctypes.get_errno()])
"""
    result = request.getfixturevalue(runner).run(code)

    assert result.stdout == "-1 EPERM\n"


def test_shared_memory_of_ordinary_programs(hostile_without_groups):
    """Values, arrays and queues of multiprocessing, mapped files, shared pages and zeros to read must work."""
    code = """
import mmap, multiprocessing, tempfile
from multiprocessing import shared_memory
context = multiprocessing.get_context("fork")
def work(array, value, queue, page):
    array[5], value.value, page[0] = 1.5, 7, 42
    queue.put("three")
array, value, queue, page = context.Array("d", 100_000), context.Value("i"), context.Queue(), mmap.mmap(-1, 13)
child = context.Process(target=work, args=(array, value, queue, page))
child.start()
print(queue.get(), array[5], value.value, page[0])
child.join()
block = shared_memory.SharedMemory(create=True, size=1 << 20)
block.buf[9] = 1
print(block.buf[9])
block.close()
block.unlink()
with tempfile.TemporaryFile() as file:
    file.truncate(4 << 20)
    with mmap.mmap(file.fileno(), 0) as shared, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as private:
        shared[1 << 20] = 8
        print(private[1 << 20])
print(len(mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE)), open("/dev/zero", "rb").read(3))
"""
    result = hostile_without_groups.run(code)

    assert result.stdout == "three 1.5 7 42\n1\n8\n8388608 b'\\x00\\x00\\x00'\n", result


def test_ordinary_programs_run_without_groups(hostile_without_groups):
    """The limits must leave room for asyncio, processes, threads, locks and a database in a file."""
    code = """
import asyncio, multiprocessing, sqlite3, subprocess, tempfile, threading
async def main():
    process = await asyncio.create_subprocess_exec("echo", "one", stdout=subprocess.PIPE)
    print((await process.communicate())[0].decode().strip())
asyncio.run(main())
ours, theirs = multiprocessing.Pipe()
child = multiprocessing.get_context("fork").Process(target=theirs.send, args=("two",))
child.start(); print(ours.recv()); child.join()
with sqlite3.connect("data.db") as database:
    database.execute("create table numbers (value)")
    database.execute("insert into numbers values ('three')")
    print(database.execute("select value from numbers").fetchone()[0])
with tempfile.TemporaryFile() as file:
    file.write(bytes(1 << 20))
"""
    result = hostile_without_groups.run(code)

    assert (result.stdout, result.error_type) == ("one\ntwo\nthree\n", None), result
