"""Call `make_rows` of a source where its package is: `python -m nemo_gym.adapters.row_writer ROOT MODULE`.

The request is JSON on standard input; every row is a line of JSON on standard output. What the package prints goes to
standard error.
"""

import importlib
import json
import os
import sys
from typing import Any

from nemo_gym.processes import exit_with_parent


def _as_json(value: Any) -> Any:
    """Return a number of numpy as a number, any other value as text."""
    return value.item() if hasattr(value, "item") else str(value)


def main() -> None:
    exit_with_parent()
    root, module = sys.argv[1:3]
    if root not in sys.path:
        sys.path.insert(0, root)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        request = json.loads(sys.stdin.read())
        for row in importlib.import_module(module).make_rows(request):
            out.write(json.dumps(row, default=_as_json) + "\n")


if __name__ == "__main__":
    main()
