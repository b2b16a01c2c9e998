"""Right, odd, wrong and cheating replies for `gym env audit code_gen`."""

import json
import textwrap
from typing import Any

from nemo_gym.authoring.model_replies import Row
from resources_servers.code_gen.solutions import RIGHT, WRONG

VOLATILE = (r'"unit_tests_time_taken":([0-9.e-]+)',)
ROWS = 2
MOST_FOR_WRONG = 0.0
CONFIG = {"unit_test_timeout_secs": 2.0, "memory_limit_mib": 256}


def _name(row: Row) -> str:
    return str(row["verifier_metadata"]["problem"])


def _fence_program(program: str, *, fence: str = "```", name: str = "python") -> str:
    return f"{fence}{name}\n{program.strip()}\n{fence}"


def oracle(row: Row) -> str:
    return f"I work through the input once.\n\n{_fence_program(RIGHT[_name(row)])}"


def odd_forms(row: Row) -> list[str]:
    program = RIGHT[_name(row)].strip()
    block, decoy = _fence_program(program), _fence_program("print('a first idea')")
    inside = textwrap.indent(_fence_program(program), "   ")
    forms = [
        _fence_program(program, name=""),
        _fence_program(program, name="py"),
        _fence_program(program, name="Python"),
        _fence_program(program, name="python3"),
        _fence_program(program, name=" python title='answer.py'"),
        _fence_program(program, fence="~~~"),
        _fence_program(program, fence="````"),
        f"{block}  ",
        f"\n\n\n{block}\n\n\n",
        f"{decoy}\nThat is not enough. Better:\n{block}",
        f"{block}\nIt runs in linear time.",
        f"1. The program:\n\n{inside}\n\n2. That is all.",
        f"<think>{decoy}</think>{block}",
        f"I thought about it.</think>\n{block}",
        block.replace("\n", "\r\n"),
        _fence_program(f'"""What it does."""\n{program}'),
        _fence_program(f"# -*- coding: utf-8 -*-\n{program}  # done"),
        _fence_program(f"import sys\nsys.setrecursionlimit(10**6)\n{program}"),
        _fence_program(f"from __future__ import annotations\n{program}"),
        _fence_program(f"{program}\n\n\n\n"),
        _fence_program(f"größe = 'ß → ∞'\n{program}"),
        _fence_program(program.replace("    ", "\t")),
        _fence_program(f"import sys\nprint('a note', file=sys.stderr)\n{program}"),
    ]
    if row["verifier_metadata"]["unit_tests"]["fn_name"] is None:
        forms += _odd_programs(program)
    return forms


def _odd_programs(program: str) -> list[str]:
    body = textwrap.indent(program, "    ")
    return [
        _fence_program(f"def main():\n{body}\n\nif __name__ == '__main__':\n    main()"),
        _fence_program(f"import sys\n{program}\nsys.exit(0)"),
        _fence_program(f"import threading\ndef main():\n{body}\nthreading.Thread(target=main).start()"),
        _fence_program(f"print()\n{program}\nprint()"),
    ]


def wrong(row: Row) -> list[str]:
    tests = row["verifier_metadata"]["unit_tests"]
    example = tests["outputs"][0]
    memorised = f"def {tests['fn_name']}(*given):\n    return {json.loads(example)!r}" if tests["fn_name"] else ""
    program = RIGHT[_name(row)].strip()
    return [
        *map(_fence_program, WRONG[_name(row)]),
        _fence_program(memorised or f"print({example!r})"),
        _fence_program(f"{program}\nraise RuntimeError"),
        program,  # in no block at all
        f"```python\n{program}",  # never closed
        f"{_fence_program(program)}\nOr rather:\n```python\nprint(",
        _fence_program(program[: len(program) * 2 // 3]),
        f"{_fence_program(program)}\n{_fence_program('It prints the answer.', name='text')}",
    ]


def cheats(row: Row) -> list[tuple[str, str]]:
    tests = row["verifier_metadata"]["unit_tests"]
    report = json.dumps({"test": 0, "end": "done", "status": 0, "stdout": tests["outputs"][0], "value": "0"})
    name = tests["fn_name"]
    printed = "" if name else "\nprint(*range(-5000, 5000), sep='\\n')"
    value = "class Any(list):\n    def __eq__(self, other):\n        return True"
    programs = {
        "leaves with status 0": "import os\nos._exit(0)",
        "leaves quietly": "raise SystemExit(0)",
        "does nothing": "pass",
        "every answer": f"pass{printed}",
        "a forged report": f"print({report!r})",
        "an object equal to everything": f"{value}\n{name or 'solve'} = lambda *given: Any()\nprint(Any())",
        "patched comparison": "import builtins, json, operator\njson.dumps = lambda v: 'true'\noperator.eq = all = max",
        "looks for the answers": "import gc\nprint([d for d in gc.get_objects() if 'outputs' in str(d)])",
    }
    return [(name, _fence_program(program)) for name, program in programs.items()]


def _with_tests(row: Row, **changes: Any) -> Row:
    metadata = row["verifier_metadata"]
    return {**row, "verifier_metadata": {**metadata, "unit_tests": {**metadata["unit_tests"], **changes}}}


MALFORMED = [
    ("no tests", lambda row: _with_tests(row, inputs=[], outputs=[])),
    ("more inputs than outputs", lambda row: _with_tests(row, outputs=[])),
    ("nothing is expected", lambda row: _with_tests(row, inputs=["1", "2"], outputs=["", " "], fn_name=None)),
    ("a function by no name", lambda row: _with_tests(row, fn_name="2 + 2")),
    ("arguments that are not JSON", lambda row: _with_tests(row, fn_name="f", inputs=["("], outputs=["1"])),
    ("outputs that are no texts", lambda row: _with_tests(row, inputs=["1"], outputs=[1])),
]
