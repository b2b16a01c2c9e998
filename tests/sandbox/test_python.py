"""Programs, calls and sessions, with and without isolation."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import SandboxError, SandboxUnsupportedError, python
from nemo_gym.sandbox.providers.docker import DockerProvider
from nemo_gym.sandbox.providers.local import Isolation, LocalProvider, probe
from nemo_gym.sandbox.providers.local.provider import UnsandboxedProvider
from nemo_gym.sandbox.python import PythonRunner, require_isolation
from tests.processes import is_gone, wait_until

NO_ISOLATION = Isolation("bubblewrap is not installed", "apt-get install bubblewrap")

isolated_only = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")


@pytest.fixture(params=["isolated", "unsandboxed"])
async def runner(request, monkeypatch):
    """A runner with isolation, and one without; both keep the same promises."""
    if request.param == "isolated" and not probe().available:
        pytest.skip(f"no isolation here: {probe().problem}")
    if request.param == "unsandboxed":
        monkeypatch.setattr(python, "probe", lambda: NO_ISOLATION)
    async with PythonRunner(allow_unsandboxed=True, max_output_bytes=1 << 16) as python_runner:
        assert python_runner.is_isolated is (request.param == "isolated")
        yield python_runner


async def test_a_program_reads_input_and_files_and_reports_isolation(runner):
    """Servers store `isolated` with every result."""
    result = await runner.run(
        "print(int(input()) ** 2, open('data/x').read())", stdin="12\n", files={"data/x": "text"}, timeout_s=30
    )

    assert (result.stdout, result.stderr, result.kind, result.exit_code) == ("144 text\n", "", None, 0)
    assert result.ok
    assert result.isolated is runner.is_isolated
    assert 0 < result.seconds < 30


async def test_a_traceback_holds_only_lines_of_the_program(runner):
    """Models read it to fix their code."""
    result = await runner.run("def f():\n    raise ValueError('why')\n\nf()", timeout_s=30)

    assert (result.kind, result.exit_code, result.ok) == (None, 1, False)
    lines = [line for line in result.stderr.splitlines(keepends=True) if set(line) - set(" ~^\n")]
    assert "".join(lines) == (
        "Traceback (most recent call last):\n"
        '  File "main.py", line 4, in <module>\n    f()\n'
        "  File \"main.py\", line 2, in f\n    raise ValueError('why')\n"
        "ValueError: why\n"
    )


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("x = (", 1, "SyntaxError"),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('bye')", 1, "bye"),
        ("raise SystemExit", 0, ""),
        ("import os; os._exit(5)", 5, ""),
    ],
)
async def test_ends_are_reported_as_the_interpreter_does(runner, code, status, message):
    """Tasks compare exit codes with real Python."""
    result = await runner.run(code, timeout_s=30)

    assert (result.exit_code, result.kind) == (status, None)
    assert message in result.stderr


async def test_exit_functions_threads_and_destructors_run(runner):
    """Their output is part of the answer."""
    code = """
import atexit, sys, threading, time
class Last:
    def __del__(self): print("destructor")
keep = Last()
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
other = open(1, "w", closefd=False)
other.write("other file\\n")
print("main")
sys.stdout.flush()
"""

    result = await runner.run(code, timeout_s=30)

    assert sorted(result.stdout.split("\n")) == ["", "destructor", "exit function", "main", "other file", "thread"]


async def test_limits_are_enforced_and_classified(runner):
    """A verifier treats a timeout differently from a wrong answer."""
    late = await runner.run("while True: pass", timeout_s=0.3)
    loud = await runner.run("while True: print('y' * 100)", timeout_s=30)
    large = await runner.run("x = bytearray(1 << 40)", timeout_s=30)

    assert [late.kind, loud.kind, large.kind] == ["timeout", "output", "memory"]
    assert len(loud.stdout) == 1 << 16


async def test_a_session_keeps_its_names(runner):
    """Agents work step by step, as in a notebook."""
    async with runner.session() as session:
        steps = [
            await session.execute(code, timeout_s=30) for code in ("x = 41", "x + 1", "print('p'); x / 0", "x", "None")
        ]

    assert [step.stdout for step in steps] == ["", "42\n", "p\n", "41\n", ""]
    assert [step.exit_code for step in steps] == [0, 0, 1, 0, 0]
    assert "ZeroDivisionError" in steps[2].stderr
    assert "x / 0" in steps[2].stderr
    assert {step.isolated for step in steps} == {runner.is_isolated}


async def test_a_slow_snippet_is_interrupted_and_the_names_stay(runner):
    """One slow step must not cost the work before it."""
    async with runner.session() as session:
        await session.execute("x = 1", timeout_s=30)
        slow = await session.execute("import time\ntime.sleep(3600)", timeout_s=0.3)
        after = await session.execute("x", timeout_s=30)

    assert (slow.kind, after.stdout, session.generation) == ("timeout", "1\n", 0)


async def test_a_killed_snippet_loses_the_names_but_not_the_session(runner):
    """The model must know through `generation` that its names are gone."""
    async with runner.session() as session:
        await session.execute("x = 1", timeout_s=30)
        stubborn = await session.execute(
            "import time\nwhile True:\n    try: time.sleep(3600)\n    except BaseException: pass", timeout_s=0.3
        )
        after = await session.execute("'x' in globals()", timeout_s=30)

        assert (stubborn.kind, after.stdout, session.generation) == ("timeout", "False\n", 1)
        assert (await session.execute("import os; os._exit(3)", timeout_s=30)).exit_code == 3
        assert session.generation == 2
    with pytest.raises(SandboxError, match="closed"):
        await session.execute("1")


@isolated_only
async def test_a_session_is_stopped_between_snippets():
    """A thread left running would take processor time from other programs."""
    async with PythonRunner({"local": {}}) as runner, runner.session(memory_mib=64) as session:
        await session.execute(
            "import threading\nn = 0\ndef count():\n    global n\n    while True: n += 1\n"
            "threading.Thread(target=count, daemon=True).start()",
            timeout_s=30,
        )
        box = session._process.box
        await wait_until(lambda: states_below(box.pid) == {"T"})
        moved = await session.execute("before = n\nwhile n == before: pass\nprint('on')", timeout_s=30)

    assert moved.stdout == "on\n"


def states_below(pid: int) -> set[str]:
    """Return the states of all threads of a process's children; T is stopped."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    tasks = [task for child in children for task in Path(f"/proc/{child}/task").glob("*/stat")]
    return {task.read_text().rpartition(")")[2].split()[0] for task in tasks}


@isolated_only
async def test_a_session_whose_start_was_cancelled_starts_again():
    """The first snippet often waits long; cancelling it must not break the next."""
    provider = LocalProvider(warm=1)
    pool = await provider.open()
    await pool.wait_until_full()
    (box,) = pool._ready
    os.kill(box.pid, signal.SIGSTOP)
    async with PythonRunner(provider) as runner, runner.session() as session:
        first = asyncio.ensure_future(session.execute("1", timeout_s=30))
        await wait_until(lambda: session._process is not None)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

        second = await session.execute("2", timeout_s=30)

        assert (second.stdout, session.generation, box.alive) == ("2\n", 1, False)
    await provider.aclose()


@isolated_only
async def test_waiting_programs_are_queued_without_a_running_clock():
    """The last program waits far longer than its timeout. `perf/sandbox.py` does this with 256."""
    async with PythonRunner({"local": {"warm": 2}}) as runner:
        results = await asyncio.gather(*(runner.run(f"print({n})", timeout_s=20, memory_mib=64) for n in range(24)))

    assert [result.stdout for result in results] == [f"{n}\n" for n in range(24)]
    assert {result.kind for result in results} == {None}


@isolated_only
async def test_a_shared_provider_stays_open():
    """Several runners may use it."""
    provider = LocalProvider()
    async with PythonRunner(provider) as runner:
        await runner.run("pass", timeout_s=30)
    async with PythonRunner(provider) as runner:
        assert (await runner.run("print(1)", timeout_s=30)).stdout == "1\n"
    await provider.aclose()


async def test_only_the_local_provider_runs_python():
    """Other engines cannot run orders in a warm box."""
    with pytest.raises(ConfigError, match="needs the sandbox provider `local`"):
        await PythonRunner(DockerProvider()).run("pass")


async def test_files_cannot_be_placed_outside_of_the_working_directory(runner):
    """A path must not leave its folder."""
    with pytest.raises(SandboxError, match="not a path"):
        await runner.run("pass", files={"../x": "y"})


# --- isolation ---------------------------------------------------------------------------------------


def test_a_server_starts_without_isolation_only_if_allowed(monkeypatch):
    """Otherwise model-written code would silently run with the rights of the server."""
    monkeypatch.setattr(python, "probe", lambda: NO_ISOLATION)

    with pytest.raises(SandboxUnsupportedError, match="bubblewrap is not installed") as refusal:
        require_isolation(SimpleNamespace(allow_unsandboxed=False))
    assert "apt-get install bubblewrap" in (refusal.value.fix or "")
    assert "allow_unsandboxed: true" in (refusal.value.fix or "")
    for unsure in ({}, {"allow_unsandboxed": "true"}, {"allow_unsandboxed": None}, SimpleNamespace()):
        with pytest.raises(SandboxUnsupportedError):
            require_isolation(unsure)
    assert require_isolation({"allow_unsandboxed": True}) is False
    assert require_isolation(SimpleNamespace(allow_unsandboxed=True)) is False


def test_isolation_needs_no_setting(monkeypatch):
    """The safe way must be the default."""
    monkeypatch.setattr(python, "probe", lambda: Isolation())

    assert require_isolation({}) is True
    assert require_isolation(SimpleNamespace(allow_unsandboxed=True)) is True


async def test_a_runner_refuses_to_run_without_isolation(monkeypatch):
    """Code that forgets `require_isolation` must be safe as well."""
    monkeypatch.setattr(python, "probe", lambda: NO_ISOLATION)
    monkeypatch.setattr("nemo_gym.sandbox.providers.local.provider.probe", lambda: NO_ISOLATION)

    with pytest.raises(SandboxUnsupportedError, match="bubblewrap is not installed"):
        await PythonRunner().run("print(1)")


async def test_isolation_is_used_even_if_it_is_optional():
    """`allow_unsandboxed` is a permission, not a wish."""
    if probe().available:
        assert PythonRunner(allow_unsandboxed=True).is_isolated


async def test_a_program_without_isolation_leaves_no_folder(monkeypatch, tmp_path):
    """Temporary files would accumulate."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runner = PythonRunner(allow_unsandboxed=True)
    runner._engine = UnsandboxedProvider()

    result = await runner.run("open('x', 'w').write('y'); print(1)", timeout_s=30)

    assert (result.stdout, list(tmp_path.iterdir())) == ("1\n", [])


LEAVES_A_CHILD = """
import pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "3600"])
pathlib.Path(sys.stdin.readline().strip()).write_text(f"{child.pid}\\n")
time.sleep(float(sys.stdin.readline()))
"""


@pytest.mark.parametrize("end", ["exit", "timeout", "cancelled"])
async def test_children_of_a_program_without_isolation_end_with_it(end, tmp_path):
    """No namespace ends them, so the process group has to be killed."""
    runner = PythonRunner(allow_unsandboxed=True)
    runner._engine = UnsandboxedProvider()
    note = tmp_path / "pid"
    stdin = f"{note}\n{0 if end == 'exit' else 3600}\n"
    running = asyncio.ensure_future(runner.run(LEAVES_A_CHILD, stdin=stdin, timeout_s=2 if end == "timeout" else 60))
    await wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
    if end == "cancelled":
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        assert (await running).kind == (None if end == "exit" else "timeout")

    await wait_until(lambda: is_gone(int(note.read_text())))
    await runner.aclose()


# --- our own death ----------------------------------------------------------------------------------------------------

OWNER = """
import asyncio
from nemo_gym.sandbox import SandboxSpec
from nemo_gym.sandbox.providers.local import LocalProvider

async def main():
    provider = LocalProvider(warm=1)
    handle = await provider.create(SandboxSpec())
    pool = await provider.open()
    await pool.wait_until_full()
    running = asyncio.ensure_future(provider.exec(handle, "sleep 3600 & setsid sleep 3600", timeout_s=3600))
    await asyncio.sleep(0.2)
    for box in pool._boxes:
        print("process", box.pid)
        for folder in (box.group.folders.values() if box.group else ()):
            print("group", folder.parent)
    print("ready", flush=True)
    await running

asyncio.run(main())
"""


@isolated_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "terminated"])
def test_nothing_is_left_when_the_owner_is_killed(number):
    """No handler runs then: the kernel ends the boxes, the janitor removes the groups."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    report = []
    for line in owner.stdout:
        if line == "ready\n":
            break
        report.append(line.split())
    # Held open, so that no other box of this machine gets the same number meanwhile.
    held = [os.open(f"/proc/{value}/ns/pid", os.O_RDONLY) for kind, value in report if kind == "process"]
    owner.send_signal(number)
    owner.wait()
    owner.stdout.close()
    namespaces = {os.fstat(namespace).st_ino for namespace in held}
    groups = {Path(value) for kind, value in report if kind == "group"}
    assert namespaces

    def remaining() -> list[str]:
        names = [str(group) for group in groups if group.exists()]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.stat(process / "ns" / "pid").st_ino in namespaces:
                    names.append(str(process))
            except OSError:
                continue
        return names

    deadline = time.monotonic() + 30
    while remaining() and time.monotonic() < deadline:
        time.sleep(0.02)
    left = remaining()
    for namespace in held:
        os.close(namespace)
    assert left == []
