"""How fast this machine is today, so that a promise in seconds means the same on every machine.

The same plain work is timed here and compared with what it took on the machine where the promises were written down.
"""

import argparse
import inspect
import json
import time

REFERENCE_SECONDS = 0.0175
"""What the work took there, undisturbed."""

BEST_OF = 9


def pace() -> float:
    """How many times slower than the reference this machine is; never less than 1, or a fast one would be punished."""
    return max(1.0, min(_once() for _ in range(BEST_OF)) / REFERENCE_SECONDS)


def _once() -> float:
    """CPU seconds of work like ours: compiling, allocating many small objects, reading and writing JSON."""
    source = inspect.getsource(argparse)
    rows = [{"name": f"row {number}", "values": list(range(20)), "nested": {"a": str(number)}} for number in range(300)]
    begin = time.process_time()
    compile(source, "argparse", "exec")
    for _ in range(3):
        json.loads(json.dumps(rows))
    return time.process_time() - begin


if __name__ == "__main__":
    print(f"{min(_once() for _ in range(BEST_OF)):.4f} s, {pace():.2f} x the reference")
