"""The filter, run as the kernel would: instruction by instruction, for both processors."""

import errno
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.sandbox.providers.local import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
DENIED, MISSING = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = sorted(ARCHITECTURE)


def answer(machine: str, number: int, *arguments: int, architecture: int | None = None, **options: bool) -> int:
    """What the kernel would do with this call."""
    data = struct.pack("=iIQ6Q", number, architecture or ARCHITECTURE[machine], 0, *(*arguments, *[0] * 6)[:6])
    code = seccomp.filter_program(machine, **options)
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    at, loaded = 0, 0
    while True:
        operation, if_true, if_false, value = steps[at]
        at += 1
        if operation == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif operation == 0x06:
            return value
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[operation]
            at += if_true if holds else if_false


NUMBERS = {
    "x86_64": {"read": 0, "execve": 59, "ptrace": 101, "clone": 56, "socket": 41, "ioctl": 16, "mount": 165},
    "aarch64": {"read": 63, "execve": 221, "ptrace": 117, "clone": 220, "socket": 198, "ioctl": 29, "mount": 40},
}


@pytest.mark.parametrize("machine", MACHINES)
def test_ordinary_calls_pass_and_forbidden_ones_are_refused(machine):
    """The filter must neither break programs nor let attacks pass."""
    of = NUMBERS[machine]
    assert [answer(machine, of[name]) for name in ("read", "execve")] == [ALLOW, ALLOW]
    assert [answer(machine, of[name]) for name in ("ptrace", "mount")] == [DENIED, DENIED]
    assert answer(machine, 435) == MISSING  # clone3


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_where_the_call_alone_does_not(machine):
    """Fork and namespace creation are the same system call."""
    of = NUMBERS[machine]
    assert answer(machine, of["clone"], 0x003D0F00) == ALLOW  # a thread
    assert answer(machine, of["clone"], 0x11) == ALLOW  # a fork
    assert {answer(machine, of["clone"], flag | 0x11) for flag in (0x20000, 0x10000000, 0x40000000)} == {DENIED}
    assert [answer(machine, of["socket"], family) for family in (1, 2, 10, 16, 17)] == [ALLOW, *[DENIED] * 4]
    assert [answer(machine, of["ioctl"], 0, request) for request in (0x5401, 0x5412, 0x541C)] == [
        ALLOW,
        DENIED,
        DENIED,
    ]


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architecture_ends_the_process(machine):
    """Its numbers mean other calls."""
    assert answer(machine, 0, architecture=0x40000003) == KILL


def test_the_x32_calls_end_the_process():
    """They reach the same kernel functions under other numbers."""
    assert {answer("x86_64", 0x40000000 + number) for number in (0, 101, 1 << 20)} == {KILL}


@pytest.mark.parametrize("machine", MACHINES)
def test_uncounted_memory_is_refused_without_a_cgroup(machine):
    """memfd would bypass the memory limit."""
    memfd = {"x86_64": 319, "aarch64": 279}[machine]
    assert (answer(machine, memfd), answer(machine, memfd, counts_memory=False)) == (ALLOW, DENIED)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_datagram_sockets_are_refused_without_a_cgroup(machine, call):
    """One keeps the data of senders that are closed; the other types serve asyncio and multiprocessing."""
    number = {"socket": (41, 198), "socketpair": (53, 199)}[call][MACHINES.index(machine) - 1]
    kinds = (1, 5, 1 | 0x80000, 5 | 0x80800, 2, 3, 2 | 0x80000)

    assert {answer(machine, number, 1, kind) for kind in kinds} == {ALLOW}
    assert [answer(machine, number, 1, kind, counts_memory=False) for kind in kinds] == [*[ALLOW] * 4, *[DENIED] * 3]
    assert {answer(machine, number, 2, kind, counts_memory=False) for kind in kinds} == {DENIED}


@pytest.mark.parametrize("machine", MACHINES)
def test_shared_memory_without_a_file_is_refused_without_a_cgroup(machine):
    """Its pages stay while one of them is mapped; a single page is what it seems."""
    number = {"x86_64": 9, "aarch64": 222}[machine]
    page, more, huge = 4096, 4097, 1 << 32
    calls = [(page, 0x21), (more, 0x21), (huge, 0x21), (huge, 0x4021), (huge, 0x22), (huge, 0x01), (huge, 0x02)]
    answers = [answer(machine, number, 0, size, 3, flags, counts_memory=False) for size, flags in calls]

    assert answers == [ALLOW, DENIED, DENIED, DENIED, ALLOW, ALLOW, ALLOW]
    assert {answer(machine, number, 0, size, 3, flags) for size, flags in calls} == {ALLOW}


@settings(max_examples=100, deadline=None)
@given(
    machine=st.sampled_from(MACHINES),
    number=st.integers(-(2**31), 2**31 - 1),
    arguments=st.lists(st.integers(0, 2**64 - 1), max_size=6),
)
def test_the_filter_decides_every_call(machine, number, arguments):
    """A jump past the end would be a filter that the kernel refuses, or worse."""
    assert answer(machine, number, *arguments) in {ALLOW, KILL, DENIED, MISSING}


def test_other_processors_are_refused():
    """Wrong numbers would forbid the wrong calls."""
    assert not seccomp.is_supported("riscv64")
    with pytest.raises(KeyError):
        seccomp.filter_program("riscv64")
