"""Classification of the end of a program."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.sandbox import SandboxErrorKind as Kind
from nemo_gym.sandbox.providers.local.cgroups import Usage
from nemo_gym.sandbox.providers.local.end_reason import ProgramEnd, error_kind

NOTHING = Usage()


def ending(status=0, *, stopped=None, usage=NOTHING, cpu_s=0.0, cpu_limit_s=None, stderr=""):
    return ProgramEnd(stopped, status, usage, cpu_s, cpu_limit_s, stderr)


FAILED = 1 << 8


@pytest.mark.parametrize(
    ("program_end", "kind"),
    [
        (ending(), None),
        (ending(FAILED), None),
        (ending(FAILED, stderr="ValueError: Operation impossible\n"), None),
        (ending(11), Kind.CRASHED),
        (ending(9), Kind.CRASHED),
        (ending(24), Kind.CPU_TIME),
        (ending(9, cpu_s=2.0, cpu_limit_s=1.0), Kind.CPU_TIME),
        (ending(25), Kind.DISK),
        (ending(31), Kind.FORBIDDEN),
        (ending(9, usage=Usage(memory_kills=1)), Kind.MEMORY),
        (ending(9, stopped=Kind.TIMEOUT, usage=Usage(memory_kills=1)), Kind.MEMORY),
        (ending(9, stopped=Kind.TIMEOUT, usage=Usage(forks_denied=9)), Kind.PROCESSES),
        (ending(9, stopped=Kind.TIMEOUT), Kind.TIMEOUT),
        (ending(9, stopped=Kind.OUTPUT, usage=Usage(memory_kills=1)), Kind.OUTPUT),
        (ending(0, usage=Usage(memory_kills=1, forks_denied=1)), None),
        (ending(None), Kind.SANDBOX),
        (ending(None, usage=Usage(memory_kills=1)), Kind.MEMORY),
        (ending(FAILED, stderr="MemoryError"), Kind.MEMORY),
        (ending(FAILED, stderr="RuntimeError: can't start new thread"), Kind.PROCESSES),
        (ending(FAILED, stderr="BlockingIOError: [Errno 11] Resource temporarily unavailable"), Kind.PROCESSES),
        (ending(FAILED, stderr="OSError: [Errno 28] No space left on device\n\n"), Kind.DISK),
        (ending(FAILED, stderr="PermissionError: [Errno 1] Operation not permitted"), Kind.FORBIDDEN),
        (ending(FAILED, stderr="mount: /x: Operation not permitted"), Kind.FORBIDDEN),
        (ending(0, stderr="PermissionError: [Errno 1] Operation not permitted"), None),
        (ending(FAILED, stderr="PermissionError: was handled\nValueError: x"), None),
    ],
)
def test_an_end_has_one_classification(program_end, kind):
    """A program that finished is never blamed for a limit it touched on the way."""
    assert error_kind(program_end) is kind


@pytest.mark.parametrize(("status", "code"), [(0, 0), (FAILED, 1), (9, 137), (11, 139), (None, 137)])
def test_exit_codes_are_those_of_a_shell(status, code):
    """Users know 137 and 139 from their shell."""
    assert ending(status).exit_code == code


@settings(max_examples=100, deadline=None)
@given(stderr=st.text(), status=st.sampled_from([0, FAILED, 9, 11, 64]))
def test_stderr_cannot_turn_a_failure_into_success_or_a_sandbox_error(stderr, status):
    """A program may only choose between names of its failure."""
    kind = error_kind(ending(status, stderr=stderr))

    assert kind is not Kind.SANDBOX
    assert status != 0 or kind is None
