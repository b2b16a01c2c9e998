"""A function with state, for the tests of session workers."""

import os
import sys
import time
from pathlib import Path
from typing import Any

_total = 0


def count(request: dict[str, Any]) -> dict[str, int]:
    """Add to the sum of this process, print or sleep."""
    global _total
    if "mark" in request:
        Path(request["mark"]).touch()
    sys.stderr.write(request.get("print", ""))
    sys.stderr.flush()
    time.sleep(request.get("sleep", 0))
    _total += request.get("add", 0)
    return {"sum": _total, "pid": os.getpid()}
