"""Programs that attack the kernel with the system calls by which other sandboxes were escaped."""

import platform

import pytest

PRELUDE = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    answer = libc.syscall(number, *arguments)
    return answer, ctypes.get_errno()
def attempt(number, *arguments):
    answer, problem = call(number, *arguments)
    print("ESCAPED" if answer >= 0 else "refused", errno.errorcode.get(problem, problem))
"""

MACHINE = platform.machine()
COLUMN = 0 if MACHINE == "x86_64" else 1

# name: ((number on x86_64, on aarch64), arguments, what it was good for)
CALLS = {
    "ptrace of process 1": ((101, 117), "16, 1, 0, 0"),
    "ptrace of oneself": ((101, 117), "0, 0, 0, 0"),
    "process_vm_readv of process 1": ((310, 270), "1, 0, 0, 0, 0, 0"),
    "process_vm_writev of process 1": ((311, 271), "1, 0, 0, 0, 0, 0"),
    "pidfd_getfd of process 1 (CVE-2024-21626 by another way)": ((438, 438), "os.pidfd_open(1), 0, 0"),
    "mount of a cgroup (CVE-2022-0492)": ((165, 40), 'b"x", b"/tmp", b"cgroup", 0, b"memory"'),
    "bind mount of the root": ((165, 40), 'b"/", b"/tmp", 0, 4096, 0'),
    "umount of /proc": ((166, 39), 'b"/proc", 2'),
    "fsopen (CVE-2022-0185)": ((430, 430), 'b"ext4", 0'),
    "open_tree": ((428, 428), '-100, b"/", 1'),
    "move_mount": ((429, 429), "0, 0, 0, 0, 4"),
    "pivot_root": ((155, 41), 'b"/tmp", b"/tmp"'),
    "chroot": ((161, 51), 'b"/tmp"'),
    "unshare of the user namespace (CVE-2023-0386)": ((272, 97), "0x10000000"),
    "unshare of the mounts": ((272, 97), "0x00020000"),
    "setns into one's own": ((308, 268), 'os.open("/proc/self/ns/net", 0), 0'),
    "clone with a new user namespace": ((56, 220), "0x10000011, 0, 0, 0, 0"),
    "keyctl (CVE-2016-0728)": ((250, 219), "0, 0, 0, 0, 0"),
    "add_key": ((248, 217), 'b"user", b"a", b"b", 1, -3'),
    "bpf (CVE-2017-16995)": ((321, 280), "0, 0, 0"),
    "userfaultfd": ((323, 282), "0"),
    "io_uring_setup (CVE-2022-29582)": ((425, 425), "8, ctypes.create_string_buffer(256)"),
    "perf_event_open (CVE-2013-2094)": ((298, 241), "0, 0, -1, -1, 0"),
    "kexec_load": ((246, 104), "0, 0, 0, 0"),
    "init_module": ((175, 105), "0, 0, b''"),
    "finit_module": ((313, 273), "0, b'', 0"),
    "delete_module": ((176, 106), "b'x', 0"),
    "open_by_handle_at (the shocker)": ((304, 265), "-100, ctypes.create_string_buffer(64), 0"),
    "name_to_handle_at": (
        (303, 264),
        "-100, b'/', ctypes.create_string_buffer(128), ctypes.create_string_buffer(8), 0",
    ),
    "settimeofday": ((164, 170), "0, 0"),
    "clock_settime": ((227, 112), "0, ctypes.create_string_buffer(16)"),
    "reboot": ((169, 142), "0xfee1dead, 672274793, 0, 0"),
    "sethostname": ((170, 161), 'b"x", 1'),
    "swapon": ((167, 224), 'b"/tmp/x", 0'),
    "syslog": ((103, 116), "2, ctypes.create_string_buffer(64), 64"),
    "personality without address randomisation": ((135, 92), "0x0040000"),
    "seccomp with a listener": ((317, 277), "1, 8, ctypes.create_string_buffer(64)"),
    "fanotify_init": ((300, 262), "0, 0"),
    "shmget": ((29, 194), "0, 4096, 0o1600"),
    "prlimit of process 1": ((302, 261), "1, 7, ctypes.create_string_buffer(16), 0"),
    "quotactl": ((179, 60), "0, 0, 0, 0"),
    "acct": ((163, 89), "0"),
    "sync, which waits for the disks of the host": ((162, 81), ""),
    "syncfs of the system's file system": ((306, 267), 'os.open("/usr", 0)'),
    "setpriority of oneself": ((141, 140), "0, 0, 5"),
    "setpriority of every process of the user": ((141, 140), "2, 0, 19"),
    "ioprio_set": ((251, 30), "1, 0, 3 << 13"),
    "sched_setattr": ((314, 274), "0, ctypes.create_string_buffer(b'\\x30', 48), 0"),
    "sched_setscheduler": ((144, 119), "0, 3, ctypes.create_string_buffer(4)"),
    "inotify_init1, limited per user of the host": ((294, 26), "0"),
    "io_setup, limited for all users together": ((206, 0), "8, ctypes.byref(ctypes.c_ulong())"),
    "vmsplice, which keeps large pages in a pipe": ((278, 75), "os.pipe()[1], 0, 0, 0"),
    "mbind, which keeps a policy for every page of a file": ((237, 235), "0, 4096, 1, 0, 0, 0"),
    "set_mempolicy_home_node": ((450, 450), "0, 4096, 0, 0"),
    "an access control list of 64 KB": ((188, 5), "b'.', b'system.posix_acl_access', b'x', 1, 0"),
    "a lease on a file of the host": ((72, 25), "os.open(sys.executable or '/bin/sh', 0), 1024, 0"),
    "dnotify on a folder of the host": ((72, 25), "os.open('/usr', 0), 1026, 1"),
    "a larger pipe": ((72, 25), "os.pipe()[1], 1031, 1 << 20"),
    "a lock without an owner": ((72, 25), "os.open('f', 66), 37, ctypes.create_string_buffer(32)"),
}

HAS_TABLE = pytest.mark.skipif(MACHINE not in ("x86_64", "aarch64"), reason="no numbers for this processor")


@HAS_TABLE
@pytest.mark.parametrize("name", CALLS)
def test_a_forbidden_call_fails_and_the_program_goes_on(hostile, name):
    """EPERM is an error that programs can handle; killing them would break probing libraries."""
    numbers, arguments = CALLS[name]

    result = hostile.run(f"{PRELUDE}\nattempt({numbers[COLUMN]}, {arguments})")

    assert result.stdout == "refused EPERM\n", result
    assert result.error_type is None


@pytest.mark.parametrize("option", ["SO_SNDBUF", "SO_RCVBUF", "32", "33"])
def test_the_buffers_of_a_socket_cannot_grow(hostile, option):
    """The largest size that the host allows may be a hundred times the default."""
    number = f"socket.{option}" if option.startswith("SO_") else option
    code = f"import socket; socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, {number}, 1 << 22); print('ESCAPED')"

    result = hostile.run(code)

    assert (result.error_type, result.stdout) == ("forbidden", "")


def test_clone3_fails_with_enosys(hostile):
    """Its flags are behind a pointer that a filter cannot read; the C library then uses clone."""
    result = hostile.run(f"{PRELUDE}\nattempt(435, ctypes.create_string_buffer(88), 88)")

    assert result.stdout == "refused ENOSYS\n"


@pytest.mark.skipif(MACHINE != "x86_64", reason="x86_64 only")
def test_x32_calls_end_the_program(hostile):
    """They are the classic way around a filter that compares numbers."""
    result = hostile.run(f"{PRELUDE}\nattempt(0x40000000 + 101, 0, 0, 0, 0)")

    assert (result.error_type, result.stdout) == ("forbidden", "")


@pytest.mark.skipif(MACHINE != "x86_64", reason="x86_64 only")
def test_calls_of_the_32_bit_architecture_end_the_program(hostile):
    """`int 0x80` enters the kernel with other numbers: 20 is getpid there and writev here."""
    code = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("b814000000cd80c3"))
print("ESCAPED", ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""

    result = hostile.run(code)

    assert (result.error_type, result.stdout) == ("forbidden", "")


@pytest.mark.parametrize(
    ("name", "number"), [("TIOCSTI (CVE-2017-5226)", 0x5412), ("TIOCLINUX (CVE-2023-1523)", 0x541C)]
)
def test_nothing_can_be_typed_into_our_terminal(hostile, name, number):
    """The terminal that started the server would run it."""
    code = f"""
import fcntl, os, pty
def attempt(descriptor):
    try:
        fcntl.ioctl(descriptor, {number}, b"x")
        print("ESCAPED")
    except OSError as error:
        print("refused", error.errno)
attempt(0)
master, slave = pty.openpty()
attempt(slave)
"""

    result = hostile.run(code)

    assert result.stdout == "refused 1\nrefused 1\n", result


def test_there_is_no_terminal_to_open(hostile):
    """A terminal of the host would accept commands."""
    result = hostile.run("open('/dev/tty')")

    assert result.return_code == 1
    assert "No such device or address" in result.stderr


def test_a_setuid_program_is_an_ordinary_one(hostile):
    """`su` and `mount` must not give a program privileges."""
    code = """
import glob, os, subprocess
print(open("/proc/self/status").read().split("NoNewPrivs:")[1].split()[0])
for path in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd"):
    if os.path.exists(path):
        subprocess.run([path, "--version"], capture_output=True)
print(os.statvfs("/usr").f_flag & os.ST_NOSUID != 0, os.getresuid())
"""

    result = hostile.run(code)

    assert result.stdout == "1\nTrue (1000, 1000, 1000)\n"


def test_a_program_has_no_capability_at_all(hostile):
    """A single capability can be enough to leave a namespace."""
    result = hostile.run("print([l.split()[1] for l in open('/proc/self/status') if l[:6] in ('CapPrm', 'CapEff')])")

    assert result.stdout == f"{['0' * 16, '0' * 16]}\n"


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sysrq-trigger",
        "/proc/sys/vm/overcommit_memory",
        "/proc/self/exe",
        "/proc/1/mem",
        "/proc/1/exe",
        "/proc/1/oom_score_adj",
    ],
)
def test_no_switch_of_the_machine_can_be_written(hostile, path):
    """core_pattern is a command the host runs; /proc/self/exe was how an engine was replaced (CVE-2019-5736)."""
    result = hostile.run(f"open({path!r}, 'r+b', buffering=0).write(b'|/tmp/x'); print('ESCAPED')")

    assert result.stdout == ""
    assert result.error_type == "forbidden" or "No such file" in result.stderr  # not every kernel has all of them


@pytest.mark.parametrize(
    "path", ["/dev/mem", "/dev/kmem", "/dev/port", "/dev/sda", "/dev/kvm", "/dev/fuse", "/sys/kernel"]
)
def test_no_device_and_no_part_of_sysfs_is_mounted(hostile, path):
    """Devices and kernel settings lead out of the box."""
    result = hostile.run(f"import os; print(os.path.lexists({path!r}))")

    assert result.stdout == "False\n"


def test_devices_cannot_be_made(hostile):
    """A disk device would expose the host's files."""
    result = hostile.run("import os, stat; os.mknod('sda', stat.S_IFBLK | 0o600, os.makedev(8, 0)); print('ESCAPED')")

    assert (result.error_type, result.stdout) == ("forbidden", "")


def test_a_program_cannot_end_or_stop_process_1(hostile):
    """A program that ended process 1 could forge how its own box ended."""
    code = """
import os
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
print("still here")
"""

    result = hostile.run(code)

    assert (result.stdout, result.error_type, result.return_code) == ("still here\n", None, 0)


def test_no_core_is_dumped(hostile):
    """A core dump would fill the disk and may be handled by a program of the host."""
    result = hostile.run("import os, resource; print(resource.getrlimit(resource.RLIMIT_CORE)); os.abort()")

    assert (result.stdout, result.error_type) == ("", "crashed")
