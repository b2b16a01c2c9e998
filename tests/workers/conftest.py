"""A module of small functions for workers to call, on the path of the test."""

import sys
from pathlib import Path

import pytest

WORK = '''
import os, socket, subprocess, sys, time


def double(number):
    return number * 2


def act(what):
    """Do what a hostile or unlucky call might do."""
    if what == "spin":
        while True:
            pass
    if what == "sleep":
        time.sleep(600)
    if what == "eat":
        return len(bytearray(1 << 40))
    if what == "fail":
        raise ValueError("on purpose")
    if what == "die":
        os._exit(3)
    if what == "who":
        return [os.getpid(), os.getppid()]
    if what == "environment":
        return dict(os.environ)
    if isinstance(what, float):
        time.sleep(what)
    return what


def trespass(what):
    """Try something that is forbidden to a worker; return the exception that stopped it."""
    try:
        if what == "write":
            open("/tmp/worker-was-here", "w")
        elif what == "run":
            subprocess.run(["true"])
        elif what == "shell":
            os.system("true")
        elif what == "connect":
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        elif what == "remove":
            os.remove("/tmp/nothing-of-ours")
        elif what == "fork":
            os.fork()
    except Exception as problem:
        return type(problem).__name__
    return "nothing"
'''


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module with the functions above."""
    (tmp_path / "work_for_workers.py").write_text(WORK)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return "work_for_workers"
