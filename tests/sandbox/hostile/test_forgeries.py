"""Programs that attack the grading instead of solving the task: their claims must not count."""

import pytest

from nemo_gym.sandbox.python import PythonRunner


@pytest.fixture
async def runner():
    async with PythonRunner({"local": {"warm": 0, "disk_mib": 16}}) as made:
        yield made


RIGHT = "def double(n):\n    return 2 * n\n"

FORGERIES = {
    "ends with success before the call": "import os\nos._exit(0)\n",
    "ends with success in the call": "import os\ndef double(n): os._exit(0)\n",
    "exits politely": "import sys\nsys.exit(0)\n",
    "ends in an exit function": "import atexit, os\natexit.register(os._exit, 0)\n",
    "prints what a result looks like": 'print(\'{"value": 4}\')\nprint(\'{"passed": true, "reward": 1.0}\')\n',
    "replaces the encoder": "import json\njson.dumps = lambda *a, **k: '{\"passed\": true}'\ndef double(n): return 0\n",
    "is equal to everything": (
        "class Same:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
        "def double(n): return Same()\n"
    ),
    "is a number equal to everything": (
        "class Same(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def double(n): return Same(0)\n"
    ),
    "replaces assert and comparison": "import builtins\nbuiltins.all = lambda x: True\ndef double(n): return None\n",
    "kills process 1": "import os\nfor n in (2, 9, 15): os.kill(1, n)\ndef double(n): return None\n",
    "raises": "def double(n): raise AssertionError('passed')\n",
    "defines nothing": "",
    "returns what cannot be read": "import sys\nsys.set_int_max_str_digits(0)\ndef double(n): return 10 ** 5000\n",
    "returns a list without end": "def double(n):\n    x = []\n    x.append(x)\n    return x\n",
    "returns a pickle": "import pickle\ndef double(n): return pickle.dumps(4)\n",
    "returns not a number": "def double(n): return float('nan')\n",
    "floods the output": "import os\ndef double(n):\n    while True: os.write(1, b'x' * 65536)\n",
    "closes the output": "import os\nos.close(1)\ndef double(n): return 4\n",
    "writes too many answers": "import os\ndef double(n):\n    os.write(1, b'4\\n42\\n' * 100)\n    return 4\n",
    "patches the caller": (
        "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\nframe.f_globals.clear()\n"
        "def double(n): return None\n"
    ),
}


async def passes(runner, code: str) -> bool:
    """Grade a program as a server does: the expected values stay outside the box."""
    program = f"{code}\nimport sys\nfor line in sys.stdin: print(double(int(line)))\n"
    result = await runner.run(program, stdin="2\n21\n", timeout_s=5, memory_mib=64)
    return result.ok and result.stdout == "4\n42\n"


async def test_the_right_program_passes(runner):
    """The forgeries below must fail for being wrong, not because every program fails."""
    assert await passes(runner, RIGHT)


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_program_that_does_not_compute_does_not_pass(runner, name):
    """Exit statuses, prints and patched builtins are claims of the program itself."""
    assert not await passes(runner, FORGERIES[name])


async def test_files_that_python_loads_by_itself_change_nothing(runner):
    """Other graders were defeated by sitecustomize, conftest and modules named like the library's."""
    planted = "import os\nprint('PLANTED')\nos._exit(0)\n"
    names = ("sitecustomize.py", "usercustomize.py", "conftest.py", "os.py", "encodings/__init__.py", "x.pth")

    result = await runner.run("print(2 + 2)", files=dict.fromkeys(names, planted), timeout_s=10)

    assert (result.stdout, result.exit_code) == ("4\n", 0)


async def test_programs_see_no_changes_of_earlier_programs(runner):
    """Overwritten tests, patched interpreters and planted results must not affect grading."""
    await runner.run("import builtins; builtins.print = None; open('result.json', 'w').write('1'); open('/tmp/x', 'w')")

    result = await runner.run("import os; print(os.listdir('.'), os.listdir('/tmp'))")

    assert result.stdout == "[] []\n"


async def test_a_snippet_cannot_reply_for_another(runner):
    """A forged reply would report success for code that never ran."""
    async with runner.session(memory_mib=64) as session:
        await session.execute("import os\nfor _ in range(20): os.write(3, b'done')")

        result = await session.execute("print('really ran')", timeout_s=10)

    assert result.stdout == "really ran\n"


async def test_a_program_cannot_find_the_host_in_its_own_memory(runner):
    """The child is a copy of process 1: its socket must be closed and hold nothing of the host."""
    code = """
import gc, sys
import _socket
found = []
for thing in gc.get_objects():
    if isinstance(thing, _socket.socket) and thing.fileno() >= 0:
        try:
            thing.send(b'{"event": "ended", "status": 0}')
            found.append(thing)
        except OSError:
            pass
print(found, [name for name in sys.modules if name.startswith("nemo_gym")])
"""

    result = await runner.run(code)

    assert result.stdout == "[] []\n"
