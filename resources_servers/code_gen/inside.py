"""The program inside the box: runs the program under test in a new process for each test and prints its output.

The source of this file is sent into the box, where nemo_gym cannot be imported. It knows the inputs of the tests and
the limits, never an expected output: outputs are compared outside. It prints one JSON object per line, the first about
compiling, then one for each test, until a test fails. Every box pays for each import here, so there are few.
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
"""Modules whose public names, and the modules themselves, exist before the program starts, as the data expects."""

prctl = ctypes.CDLL(None).prctl


def report(**fields: Any) -> None:
    line = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    while line:
        line = line[os.write(1, line) :]


def main() -> None:
    job = json.load(sys.stdin)
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the program must not read this process
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # processes that the program leaves behind become children of this one
    try:
        code = compile(job["program"], "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        report(compiled=False, error=f"{type(problem).__name__}: {problem}")
        return
    for module in PRELUDE:
        importlib.import_module(module)
    stdin = open_input()
    report(compiled=True)
    for number, text in enumerate(job["tests"]):
        result = run_test(code, text, job, stdin)
        report(test=number, **result)
        if result["end"] != "done":
            return


def open_input() -> int:
    """Open a file without a name for the input of the tests. The program cannot prevent it: it has not started yet."""
    try:
        return os.memfd_create("stdin")
    except PermissionError:  # a sandbox without control groups forbids it, because no limit applies to its memory
        return os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)


def run_test(code: types.CodeType, text: str, job: Job, stdin: int) -> dict[str, Any]:
    """Run one test in a new process, with `text` in the file `stdin`; return its output and the way it ended."""
    os.ftruncate(stdin, 0)
    os.lseek(stdin, 0, os.SEEK_SET)
    with open(stdin, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    pipes = {name: os.pipe() for name in ("stdout", "stderr", "value")}
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            become_program(code, text, job, [stdin, *(written for _, written in pipes.values())])
        finally:
            os._exit(1)
    for _, written in pipes.values():
        os.close(written)
    reading = {name: readable for name, (readable, _) in pipes.items()}
    output, limit = read_output(pid, reading, began + job["wall_seconds"], job["output_bytes"])
    os.kill(pid, signal.SIGKILL)  # not waited for yet, so the number cannot belong to another process
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - began
    if not end_orphans():
        limit = "processes"
    for readable in reading.values():
        os.close(readable)
    texts = {name: bytes(part).decode("utf-8", "replace") for name, part in output.items()}
    returned = texts.pop("value")
    end = limit or exit_kind(status, texts["stderr"])
    return {"end": end, "status": status, "seconds": seconds, "value": returned if job["fn_name"] else None, **texts}


def read_output(
    pid: int, reading: dict[str, int], deadline: float, most: int
) -> tuple[dict[str, bytearray], str | None]:
    """Read the output of the program until it ends; also return the limit it exceeded, if any."""
    output = {name: bytearray() for name in reading}
    names = {readable: name for name, readable in reading.items()}
    process = os.pidfd_open(pid)
    poll = select.poll()
    for descriptor in (process, *names):
        os.set_blocking(descriptor, False)
        poll.register(descriptor, select.POLLIN)
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return output, "time"
            ready = [descriptor for descriptor, _ in poll.poll(left * 1000)]
            ended = process in ready
            for descriptor in [one for one in names if ended or one in ready]:
                name = names[descriptor]
                if not read_available(descriptor, output[name], name, most, drain=ended):
                    poll.unregister(descriptor)
                    del names[descriptor]
            if max(len(output["stdout"]), len(output["value"])) > most:
                return output, "output"
            if ended:
                return output, None
    finally:
        os.close(process)


def read_available(descriptor: int, into: bytearray, name: str, most: int, *, drain: bool) -> bool:
    """Read the available bytes, at most a little more than `most`; return False at the end of the file."""
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


def end_orphans() -> bool:
    """End every process the program left behind; return False if new ones keep appearing."""
    for _ in range(MOST_SWEEPS):
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for pid in child_processes():
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.001)
        except ChildProcessError:
            return True
        except ProcessLookupError:
            continue
    return False


def child_processes() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getpid():
            yield int(entry)


def exit_kind(status: int, stderr: str) -> str:
    """Return the way the process ended, in one word."""
    if os.WIFSIGNALED(status):
        return "time" if os.WTERMSIG(status) == signal.SIGXCPU else "crash"
    if os.WEXITSTATUS(status) == 0:
        return "done"
    return "memory" if stderr.rstrip().rpartition("\n")[2].startswith("MemoryError") else "error"


def become_program(code: types.CodeType, text: str, job: Job, descriptors: list[int]) -> None:
    """Turn this process into the program: with its stdin, stdout and limits, without other descriptors."""
    os.setsid()
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 16) for descriptor in descriptors]
    for number, descriptor in enumerate(aside):
        os.dup2(descriptor, number)
    os.closerange(len(aside), 65536)
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    cpu = math.ceil(job["seconds"])
    lower_limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    lower_limit(resource.RLIMIT_AS, job["memory_bytes"], job["memory_bytes"])
    sys.stdin, sys.stdout, sys.stderr = open_text(0, "r"), open_text(1, "w"), open_text(2, "w")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    sys.argv = ["program.py"]
    sys.setrecursionlimit(RECURSION)
    os._exit(execute(code, text, job["fn_name"]))


def open_text(descriptor: int, mode: str) -> Any:
    return os.fdopen(descriptor, mode, encoding="utf-8", errors="surrogateescape", closefd=False)


def lower_limit(which: int, soft: int, hard: int) -> None:
    """Lower a limit; a lower one of the box stays."""
    most = resource.getrlimit(which)[1]
    hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(which, (min(soft, hard), hard))


def execute(code: types.CodeType, text: str, fn_name: str | None) -> int:
    """Run the program to its end, or call its function; return the exit status."""
    program = types.ModuleType("solution" if fn_name else "__main__")
    for module in PRELUDE:
        import_star(sys.modules[module], program)
    vars(program).update({module: sys.modules[module] for module in PRELUDE})
    sys.modules[program.__name__] = program
    dumps, loads, write = json.dumps, json.loads, os.write
    status = 0
    try:
        exec(code, program.__dict__)
        if fn_name:
            arguments = [loads(line) for line in text.split("\n") if line.strip()]
            value = dumps(find_function(program, fn_name)(*arguments)).encode()
            while value:
                value = value[write(3, value) :]
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
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
    """Yield `flush` of every stdout and stderr: the program may have replaced or closed the original ones."""
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        if stream is not None and not getattr(stream, "closed", True):
            yield stream.flush


def import_star(module: types.ModuleType, program: types.ModuleType) -> None:
    """Do `from module import *`, without its private names."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        if hasattr(module, name):
            setattr(program, name, getattr(module, name))


def find_function(program: types.ModuleType, fn_name: str) -> Any:
    """Return the method of `Solution` with that name, else the function."""
    solution = getattr(program, "Solution", None)
    if solution is not None and hasattr(solution, fn_name):
        return getattr(solution(), fn_name)
    return getattr(program, fn_name)


if __name__ == "__main__":
    main()
