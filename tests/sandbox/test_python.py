"""Programs, calls and sessions: what a server that runs code builds on."""

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
from nemo_gym.sandbox.providers.unsandboxed import Unsandboxed
from nemo_gym.sandbox.python import PythonCall, PythonRunner, require_isolation
from tests.processes import until

NO_ISOLATION = Isolation("bubblewrap is not installed", "apt-get install bubblewrap")

isolated_only = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")


@pytest.fixture(params=["isolated", "unsandboxed"])
async def runner(request, monkeypatch):
    """The same promises with and without walls, but for the walls."""
    if request.param == "isolated" and not probe().available:
        pytest.skip(f"no isolation here: {probe().problem}")
    if request.param == "unsandboxed":
        monkeypatch.setattr(python, "probe", lambda: NO_ISOLATION)
    async with PythonRunner(allow_unsandboxed=True, max_output_bytes=1 << 16) as made:
        assert made.isolated is (request.param == "isolated")
        yield made


async def test_a_program_reads_its_input_and_files_and_says_whether_it_was_isolated(runner):
    result = await runner.run(
        "print(int(input()) ** 2, open('data/x').read())", stdin="12\n", files={"data/x": "text"}, timeout_s=30
    )

    assert (result.stdout, result.stderr, result.kind, result.exit_code) == ("144 text\n", "", None, 0)
    assert result.ok
    assert result.isolated is runner.isolated
    assert 0 < result.seconds < 30


async def test_a_program_fails_as_it_would_anywhere(runner):
    """Tracebacks name its own lines and none of ours."""
    result = await runner.run("def f():\n    raise ValueError('why')\n\nf()", timeout_s=30)

    assert (result.kind, result.exit_code, result.ok) == (None, 1, False)
    said = [line for line in result.stderr.splitlines(keepends=True) if set(line) - set(" ~^\n")]
    assert "".join(said) == (
        "Traceback (most recent call last):\n"
        '  File "main.py", line 4, in <module>\n    f()\n'
        "  File \"main.py\", line 2, in f\n    raise ValueError('why')\n"
        "ValueError: why\n"
    )


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("x = (", 1, "SyntaxError"),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('bye')", 1, "bye"),
        ("raise SystemExit", 0, ""),
        ("import os; os._exit(5)", 5, ""),
    ],
)
async def test_ends_are_reported_as_the_interpreter_does(runner, code, status, said):
    result = await runner.run(code, timeout_s=30)

    assert (result.exit_code, result.kind) == (status, None)
    assert said in result.stderr


async def test_what_runs_at_the_end_of_a_program_runs(runner):
    """Threads are waited for, exit functions and destructors run, files are flushed: all of them print."""
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


async def test_clocks_and_bounds_are_kept(runner):
    late = await runner.run("while True: pass", timeout_s=0.3)
    loud = await runner.run("while True: print('y' * 100)", timeout_s=30)
    large = await runner.run("x = bytearray(1 << 40)", timeout_s=30)

    assert [late.kind, loud.kind, large.kind] == ["timeout", "output", "memory"]
    assert len(loud.stdout) == 1 << 16


async def test_calls_bring_values_out_and_leave_the_judging_here(runner):
    code = "print('noise')\ndef add(a, b):\n    if a == 'boom': raise KeyError(a)\n    return (a + b, {1: {2}})\n"

    found = await runner.call(code, "add", [[1, 2], ["boom", 0], [0.5, 0.25]], timeout_s=30)

    assert found.calls == [
        PythonCall(value=[3, {"1": [2]}]),
        PythonCall(error="KeyError: 'boom'"),
        PythonCall(value=[0.75, {"1": [2]}]),
    ]
    assert found.result.stdout == "noise\n"


async def test_functions_are_found_where_people_put_them(runner):
    solution = "class Solution:\n    def add(self, a, b): return a + b\n"

    for name in ("add", "Solution.add"):
        found = await runner.call(solution, name, [[1, 2]], timeout_s=30)
        assert [call.value for call in found.calls] == [3], name
    missing = await runner.call(solution, "subtract", [[1, 2]], timeout_s=30)

    assert missing.calls == [PythonCall(done=False)]
    assert "defines no function 'subtract'" in missing.result.stderr


async def test_a_session_remembers(runner):
    async with runner.session() as session:
        steps = [
            await session.execute(code, timeout_s=30) for code in ("x = 41", "x + 1", "print('p'); x / 0", "x", "None")
        ]

    assert [step.stdout for step in steps] == ["", "42\n", "p\n", "41\n", ""]
    assert [step.exit_code for step in steps] == [0, 0, 1, 0, 0]
    assert "ZeroDivisionError" in steps[2].stderr
    assert "x / 0" in steps[2].stderr
    assert {step.isolated for step in steps} == {runner.isolated}


async def test_a_slow_cell_is_interrupted_and_the_names_stay(runner):
    async with runner.session() as session:
        await session.execute("x = 1", timeout_s=30)
        slow = await session.execute("import time\ntime.sleep(3600)", timeout_s=0.3)
        after = await session.execute("x", timeout_s=30)

    assert (slow.kind, after.stdout, session.generation) == ("timeout", "1\n", 0)


async def test_a_cell_that_has_to_be_killed_takes_the_names_along_and_the_session_goes_on(runner):
    async with runner.session() as session:
        await session.execute("x = 1", timeout_s=30)
        deaf = await session.execute(
            "import time\nwhile True:\n    try: time.sleep(3600)\n    except BaseException: pass", timeout_s=0.3
        )
        after = await session.execute("'x' in globals()", timeout_s=30)

        assert (deaf.kind, after.stdout, session.generation) == ("timeout", "False\n", 1)
        assert (await session.execute("import os; os._exit(3)", timeout_s=30)).exit_code == 3
        assert session.generation == 2
    with pytest.raises(SandboxError, match="closed"):
        await session.execute("1")


@isolated_only
async def test_between_cells_a_session_stands_still():
    """A thread left running would take the processor from everybody else's programs."""
    async with PythonRunner({"local": {}}) as runner, runner.session(memory_mib=64) as session:
        await session.execute(
            "import threading\nn = 0\ndef count():\n    global n\n    while True: n += 1\n"
            "threading.Thread(target=count, daemon=True).start()",
            timeout_s=30,
        )
        box = session._process._provider.sandbox(session._process._handle).box
        await until(lambda: states_below(box.pid) == {"T"})
        moved = await session.execute("before = n\nwhile n == before: pass\nprint('on')", timeout_s=30)

    assert moved.stdout == "on\n"


def states_below(pid: int) -> set[str]:
    """In which states the children of a process are, thread by thread; T is stopped."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    tasks = [task for child in children for task in Path(f"/proc/{child}/task").glob("*/stat")]
    return {task.read_text().rpartition(")")[2].split()[0] for task in tasks}


@isolated_only
async def test_a_session_cancelled_before_it_begins_begins_anew():
    """The first cell often waits for a crowd; giving it up must not cost the ones after it."""
    provider = LocalProvider(warm=1)
    pool = await provider.open()
    await pool.full()
    (box,) = pool._ready
    os.kill(box.pid, signal.SIGSTOP)
    async with PythonRunner(provider) as runner, runner.session() as session:
        first = asyncio.ensure_future(session.execute("1", timeout_s=30))
        await until(lambda: session._process is not None and session._process._control is not None)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

        second = await session.execute("2", timeout_s=30)

        assert (second.stdout, session.generation, box.alive) == ("2\n", 1, False)
    await provider.aclose()


@isolated_only
async def test_a_crowd_is_queued_and_no_clock_runs_while_waiting():
    """The last one waits far longer for its turn than its clock allows. `perf/sandbox.py` does it with 256."""
    async with PythonRunner({"local": {"warm": 2}}) as runner:
        results = await asyncio.gather(*(runner.run(f"print({n})", timeout_s=20, memory_mib=64) for n in range(24)))

    assert [result.stdout for result in results] == [f"{n}\n" for n in range(24)]
    assert {result.kind for result in results} == {None}


@isolated_only
async def test_a_given_provider_stays_open_for_others():
    provider = LocalProvider()
    async with PythonRunner(provider) as runner:
        await runner.run("pass", timeout_s=30)
    async with PythonRunner(provider) as runner:
        assert (await runner.run("print(1)", timeout_s=30)).stdout == "1\n"
    await provider.aclose()


async def test_only_the_local_provider_runs_python():
    with pytest.raises(ConfigError, match="needs the sandbox provider `local`"):
        await PythonRunner(DockerProvider()).run("pass")


async def test_files_cannot_be_placed_outside_of_the_working_directory(runner):
    with pytest.raises(SandboxError, match="not a path"):
        await runner.run("pass", files={"../x": "y"})


# --- whether there is isolation ---------------------------------------------------------------------------------------


def test_a_server_does_not_start_without_isolation_unless_it_was_told_to(monkeypatch):
    """Silence here would mean model-written code with the rights of whoever started the server."""
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


def test_where_there_is_isolation_nothing_needs_to_be_written(monkeypatch):
    monkeypatch.setattr(python, "probe", lambda: Isolation())

    assert require_isolation({}) is True
    assert require_isolation(SimpleNamespace(allow_unsandboxed=True)) is True


async def test_a_runner_without_isolation_refuses_too(monkeypatch):
    monkeypatch.setattr(python, "probe", lambda: NO_ISOLATION)
    monkeypatch.setattr("nemo_gym.sandbox.providers.local.provider.probe", lambda: NO_ISOLATION)

    with pytest.raises(SandboxUnsupportedError, match="bubblewrap is not installed"):
        await PythonRunner().run("print(1)")


async def test_isolation_is_used_where_it_is_even_if_it_need_not_be():
    """`allow_unsandboxed` is a permission, not a wish."""
    if probe().available:
        assert PythonRunner(allow_unsandboxed=True).isolated


async def test_a_plain_process_leaves_no_folder_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runner = PythonRunner(allow_unsandboxed=True)
    runner._engine = Unsandboxed()

    result = await runner.run("open('x', 'w').write('y'); print(1)", timeout_s=30)

    assert (result.stdout, list(tmp_path.iterdir())) == ("1\n", [])


# --- our own death ----------------------------------------------------------------------------------------------------

OWNER = """
import asyncio
from nemo_gym.sandbox import SandboxSpec
from nemo_gym.sandbox.providers.local import LocalProvider

async def main():
    provider = LocalProvider(warm=1)
    handle = await provider.create(SandboxSpec())
    pool = await provider.open()
    await pool.full()
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
    """No handler of ours runs then: the kernel ends the boxes, the janitor removes the groups."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    said = []
    for line in owner.stdout:
        if line == "ready\n":
            break
        said.append(line.split())
    # Held open, so that no other box of this machine gets the same number meanwhile.
    held = [os.open(f"/proc/{value}/ns/pid", os.O_RDONLY) for kind, value in said if kind == "process"]
    owner.send_signal(number)
    owner.wait()
    owner.stdout.close()
    namespaces = {os.fstat(namespace).st_ino for namespace in held}
    groups = {Path(value) for kind, value in said if kind == "group"}
    assert namespaces

    def left() -> list[str]:
        found = [str(group) for group in groups if group.exists()]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.stat(process / "ns" / "pid").st_ino in namespaces:
                    found.append(str(process))
            except OSError:
                continue
        return found

    until = time.monotonic() + 30
    while left() and time.monotonic() < until:
        time.sleep(0.02)
    remains = left()
    for namespace in held:
        os.close(namespace)
    assert remains == []
