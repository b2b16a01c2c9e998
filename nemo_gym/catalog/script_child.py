"""A benchmark's script in a process of its own: reads what to run from stdin, writes what came of it to a descriptor.

Run as a file, and made of the standard library alone, so that it starts at once.
"""

import importlib.util
import inspect
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any


def imported(script: Path, module: str) -> ModuleType:
    """The script as a module, loaded from this very file whatever else has its name."""
    spec = importlib.util.spec_from_file_location(module, script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """Import the script and call its `prepare`; what goes wrong inside is said in one sentence."""
    try:
        with redirect_stdout(sys.stderr):
            result = imported(Path(request["script"]), request["module"]).prepare(**request["arguments"])
    except Exception as error:  # a boundary: somebody else's script
        return {"problem": f"prepare() failed: {type(error).__name__}: {error}"}
    return {"result": str(result) if isinstance(result, str | Path) else None}


def checked(request: dict[str, Any]) -> dict[str, Any]:
    """Import the script and see whether its `prepare` takes the arguments, without calling it."""
    try:
        with redirect_stdout(sys.stderr):
            function = getattr(imported(Path(request["script"]), request["module"]), "prepare", None)
    except Exception as error:  # a boundary: somebody else's script
        return {"problem": f"cannot be imported: {type(error).__name__}: {error}"}
    if not callable(function):
        return {"problem": "has no function 'prepare'"}
    signature = inspect.signature(function)
    try:
        signature.bind(**request["arguments"])
    except TypeError as error:
        return {"problem": f"prepare{signature} {error} (prepare_script_args)"}
    return {"result": None}


def main(descriptor: int) -> None:
    request = json.loads(sys.stdin.buffer.read())
    sys.path[:] = request["path"]
    answer = checked(request) if request["only_check"] else answered(request)
    os.write(descriptor, json.dumps(answer).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
