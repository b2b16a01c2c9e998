"""Right programs in odd forms, programs that come close, and cheats, for `gym env audit code_gen`."""

import json
import textwrap
from typing import Any

from resources_servers.code_gen.solutions import RIGHT, WRONG

Row = dict[str, Any]
VOLATILE = (r'"unit_tests_time_taken":([0-9.e-]+)',)
ROWS = 2
CONFIG = {"unit_test_timeout_secs": 2.0, "memory_limit_mib": 256}


def _name(row: Row) -> str:
    return str(row["verifier_metadata"]["problem"])


def _fenced(program: str, *, fence: str = "```", name: str = "python") -> str:
    return f"{fence}{name}\n{program.strip()}\n{fence}"


def oracle(row: Row) -> str:
    return f"I work through the input once.\n\n{_fenced(RIGHT[_name(row)])}"


def odd_forms(row: Row) -> list[str]:
    program = RIGHT[_name(row)].strip()
    block, decoy = _fenced(program), _fenced("print('a first idea')")
    inside = textwrap.indent(_fenced(program), "   ")
    forms = [
        _fenced(program, name=""),
        _fenced(program, name="py"),
        _fenced(program, name="Python"),
        _fenced(program, name="python3"),
        _fenced(program, name=" python title='answer.py'"),
        _fenced(program, fence="~~~"),
        _fenced(program, fence="````"),
        f"{block}  ",
        f"\n\n\n{block}\n\n\n",
        f"{decoy}\nThat is not enough. Better:\n{block}",
        f"{block}\nIt runs in linear time.",
        f"1. The program:\n\n{inside}\n\n2. That is all.",
        f"<think>{decoy}</think>{block}",
        f"I thought about it.</think>\n{block}",
        block.replace("\n", "\r\n"),
        _fenced(f'"""What it does."""\n{program}'),
        _fenced(f"# -*- coding: utf-8 -*-\n{program}  # done"),
        _fenced(f"import sys\nsys.setrecursionlimit(10**6)\n{program}"),
        _fenced(f"from __future__ import annotations\n{program}"),
        _fenced(f"{program}\n\n\n\n"),
        _fenced(f"größe = 'ß → ∞'\n{program}"),
        _fenced(program.replace("    ", "\t")),
        _fenced(f"import sys\nprint('a note', file=sys.stderr)\n{program}"),
    ]
    if row["verifier_metadata"]["unit_tests"]["fn_name"] is None:
        forms += _odd_programs(program)
    return forms


def _odd_programs(program: str) -> list[str]:
    body = textwrap.indent(program, "    ")
    return [
        _fenced(f"def main():\n{body}\n\nif __name__ == '__main__':\n    main()"),
        _fenced(f"import sys\n{program}\nsys.exit(0)"),
        _fenced(f"import threading\ndef main():\n{body}\nthreading.Thread(target=main).start()"),
        _fenced(f"print()\n{program}\nprint()"),
    ]


def wrong(row: Row) -> list[str]:
    tests = row["verifier_metadata"]["unit_tests"]
    example = tests["outputs"][0]
    by_heart = f"def {tests['fn_name']}(*given):\n    return {json.loads(example)!r}" if tests["fn_name"] else ""
    program = RIGHT[_name(row)].strip()
    return [
        *map(_fenced, WRONG[_name(row)]),
        _fenced(by_heart or f"print({example!r})"),
        _fenced(f"{program}\nraise RuntimeError"),
        program,  # in no block at all
        f"```python\n{program}",  # never closed
        f"{_fenced(program)}\nOr rather:\n```python\nprint(",
        _fenced(program[: len(program) * 2 // 3]),
        f"{_fenced(program)}\n{_fenced('It prints the answer.', name='text')}",
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
    return [(name, _fenced(program)) for name, program in programs.items()]


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
