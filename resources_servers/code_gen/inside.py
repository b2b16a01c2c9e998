"""What runs inside the box: the program under test, in a fresh process for each test, its output sent out as it is.

The source of this file is sent into the box; nothing of ours is imported there. It knows the inputs of the tests and
the limits, never an expected output: what the program did is judged outside. One JSON object per line goes out, the
first about compiling, then one for each test, until one does not come to a good end. Whatever is imported here is paid
for by every box, so little is.
"""

# ruff: noqa: PTH123, PTH208, SIM105

import atexit
import ctypes
import fcntl
import importlib
import json
import math
import os
import resource
import select
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

Job = dict[str, Any]
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
STDERR_BYTES = 4096
MOST_SWEEPS = 200
RECURSION = 50_000
PRELUDE = (
    "string",
    "re",
    "datetime",
    "collections",
    "heapq",
    "bisect",
    "copy",
    "math",
    "random",
    "statistics",
    "itertools",
    "functools",
    "operator",
    "io",
    "sys",
    "json",
    "builtins",
    "typing",
)
"""All names of these, then the modules themselves, are there before the program starts, as the data expects it."""

prctl = ctypes.CDLL(None).prctl


def say(**fields: Any) -> None:
    line = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    while line:
        line = line[os.write(1, line) :]


def main() -> None:
    job = json.load(sys.stdin)
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the program may not look into this process
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # whatever it leaves behind comes here to die
    try:
        code = compile(job["program"], "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        say(compiled=False, error=f"{type(problem).__name__}: {problem}")
        return
    for module in PRELUDE:
        importlib.import_module(module)
    say(compiled=True)
    for number, given in enumerate(job["tests"]):
        ended = run(code, given, job)
        say(test=number, **ended)
        if ended["end"] != "done":
            return


def run(code: types.CodeType, given: str, job: Job) -> dict[str, Any]:
    """Run one test in a process of its own and return what became of it."""
    stdin = os.memfd_create("stdin")
    with open(stdin, "wb", closefd=False) as file:
        file.write(given.encode("utf-8", "surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    pipes = {name: os.pipe() for name in ("stdout", "stderr", "value")}
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            child(code, given, job, [stdin, *(written for _, written in pipes.values())])
        finally:
            os._exit(1)
    os.close(stdin)
    for _, written in pipes.values():
        os.close(written)
    reading = {name: readable for name, (readable, _) in pipes.items()}
    heard, why = listen(pid, reading, began + job["wall_seconds"], job["output_bytes"])
    os.kill(pid, signal.SIGKILL)  # nobody has waited for it yet, so the number is still its own
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - began
    if not sweep():
        why = "processes"
    for readable in reading.values():
        os.close(readable)
    text = {name: bytes(part).decode("utf-8", "replace") for name, part in heard.items()}
    returned = text.pop("value")
    end = why or ending(status, text["stderr"])
    return {"end": end, "status": status, "seconds": seconds, "value": returned if job["fn_name"] else None, **text}


def listen(pid: int, reading: dict[str, int], deadline: float, most: int) -> tuple[dict[str, bytearray], str | None]:
    """Read what the program writes until it ends; also why it has to be ended, if it does not."""
    heard = {name: bytearray() for name in reading}
    names = {readable: name for name, readable in reading.items()}
    over = os.pidfd_open(pid)
    poll = select.poll()
    for descriptor in (over, *names):
        os.set_blocking(descriptor, False)
        poll.register(descriptor, select.POLLIN)
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return heard, "time"
            ready = [descriptor for descriptor, _ in poll.poll(left * 1000)]
            ended = over in ready
            for descriptor in [one for one in names if ended or one in ready]:
                name = names[descriptor]
                if not gather(descriptor, heard[name], name, most, drain=ended):
                    poll.unregister(descriptor)
                    del names[descriptor]
            if max(len(heard["stdout"]), len(heard["value"])) > most:
                return heard, "output"
            if ended:
                return heard, None
    finally:
        os.close(over)


def gather(descriptor: int, into: bytearray, name: str, most: int, *, drain: bool) -> bool:
    """Take what is there to be read, a little more than `most` at the utmost; False at the end."""
    while True:
        try:
            piece = os.read(descriptor, 65536)
        except BlockingIOError:
            return True
        if not piece:
            return False
        if name == "stderr":
            into += piece
            del into[:-STDERR_BYTES]
        elif len(into) <= most:
            into += piece
        if not drain or len(into) > most:
            return True


def sweep() -> bool:
    """End every process the program left behind. False if they keep coming."""
    for _ in range(MOST_SWEEPS):
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for pid in orphans():
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.001)
        except ChildProcessError:
            return True
        except ProcessLookupError:
            continue
    return False


def orphans() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getpid():
            yield int(entry)


def ending(status: int, stderr: str) -> str:
    """How the process ended, in one word."""
    if os.WIFSIGNALED(status):
        return "time" if os.WTERMSIG(status) == signal.SIGXCPU else "crash"
    if os.WEXITSTATUS(status) == 0:
        return "done"
    return "memory" if stderr.rstrip().rpartition("\n")[2].startswith("MemoryError") else "error"


def child(code: types.CodeType, given: str, job: Job, descriptors: list[int]) -> None:
    """Become the program: its own stdin and stdout, its own limits, none of our descriptors."""
    os.setsid()
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 16) for descriptor in descriptors]
    for place, descriptor in enumerate(aside):
        os.dup2(descriptor, place)
    os.closerange(len(aside), 65536)
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    cpu = math.ceil(job["seconds"])
    limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    limit(resource.RLIMIT_AS, job["memory_bytes"], job["memory_bytes"])
    sys.stdin, sys.stdout, sys.stderr = opened(0, "r"), opened(1, "w"), opened(2, "w")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    sys.argv = ["program.py"]
    sys.setrecursionlimit(RECURSION)
    os._exit(play(code, given, job["fn_name"]))


def opened(descriptor: int, mode: str) -> Any:
    return os.fdopen(descriptor, mode, encoding="utf-8", errors="surrogateescape", closefd=False)


def limit(which: int, soft: int, hard: int) -> None:
    """Lower a limit; where the box has a lower one already, that one stays."""
    most = resource.getrlimit(which)[1]
    hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(which, (min(soft, hard), hard))


def play(code: types.CodeType, given: str, fn_name: str | None) -> int:
    """Run the program to its end, or call its function; the exit status."""
    program = types.ModuleType("solution" if fn_name else "__main__")
    for module in PRELUDE:
        star(sys.modules[module], program)
    vars(program).update({module: sys.modules[module] for module in PRELUDE})
    sys.modules[program.__name__] = program
    dumps, loads, write = json.dumps, json.loads, os.write
    status = 0
    try:
        exec(code, program.__dict__)
        if fn_name:
            arguments = [loads(line) for line in given.split("\n") if line.strip()]
            value = dumps(named(program, fn_name)(*arguments)).encode()
            while value:
                value = value[write(3, value) :]
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if fn_name:
            status = status or 1
    except BaseException:
        importlib.import_module("traceback").print_exc(limit=-8)
        status = 1
    threading = sys.modules.get("threading")
    waits = [threading._shutdown] if threading else []
    for last in (*waits, atexit._run_exitfuncs, *flushes()):
        try:
            last()
        except BaseException:
            status = status or 1
    return status if 0 <= status <= 255 else 1


def flushes() -> Iterator[Callable[[], Any]]:
    """Of every stdout and stderr there is: the program may have put its own in place, or closed ours."""
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        if stream is not None and not getattr(stream, "closed", True):
            yield stream.flush


def star(module: types.ModuleType, program: types.ModuleType) -> None:
    """`from module import *`, without its private names."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        if hasattr(module, name):
            setattr(program, name, getattr(module, name))


def named(program: types.ModuleType, fn_name: str) -> Any:
    """The method of `Solution` by that name, else the function."""
    solution = getattr(program, "Solution", None)
    if solution is not None and hasattr(solution, fn_name):
        return getattr(solution(), fn_name)
    return getattr(program, fn_name)


if __name__ == "__main__":
    main()
