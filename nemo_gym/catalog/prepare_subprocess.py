"""Run a benchmark's script in this process: read the request from stdin, write the reply to a file descriptor.

Executed as a file and limited to the standard library, so that it starts quickly.
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


def import_script(script: Path, module: str) -> ModuleType:
    """Import the script from this file, even if another module has the same name."""
    spec = importlib.util.spec_from_file_location(module, script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Import the script, check that its `prepare` accepts the arguments, and call it unless `only_check` is set.

    Return the path from `prepare` under the key `result`, or the reason of a failure under `problem`.
    """
    try:
        function = getattr(import_script(Path(request["script"]), request["module"]), "prepare", None)
    except Exception as error:  # code of the user's script: report any exception
        return {"problem": f"cannot be imported: {type(error).__name__}: {error}"}
    if not callable(function):
        return {"problem": "has no function 'prepare'"}
    signature = inspect.signature(function)
    try:
        signature.bind(**request["arguments"])
    except TypeError as error:
        return {"problem": f"prepare{signature} {error} (prepare_script_args)"}
    if request["only_check"]:
        return {"result": None}
    try:
        result = function(**request["arguments"])
    except Exception as error:  # code of the user's script: report any exception
        return {"problem": f"prepare() failed: {type(error).__name__}: {error}"}
    return {"result": str(result) if isinstance(result, str | Path) else None}


def main(descriptor: int) -> None:
    """Answer the request from stdin on `descriptor`; what the script prints goes to stderr."""
    request = json.loads(sys.stdin.buffer.read())
    sys.path[:] = request["path"]
    with redirect_stdout(sys.stderr):
        reply = answer_request(request)
    os.write(descriptor, json.dumps(reply).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
