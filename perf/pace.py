"""Measure the speed of this machine relative to the reference machine of the promises."""

import argparse
import inspect
import json
import time

REFERENCE_SECONDS = 0.0175
"""CPU seconds of the same work on the idle reference machine."""

BEST_OF = 9


def pace() -> float:
    """Return how many times slower than the reference machine this machine is, at least 1."""
    return max(1.0, min(_reference_work_seconds() for _ in range(BEST_OF)) / REFERENCE_SECONDS)


def _reference_work_seconds() -> float:
    """Return the CPU seconds of typical work: compile, allocate many small objects, read and write JSON."""
    source = inspect.getsource(argparse)
    rows = [{"name": f"row {number}", "values": list(range(20)), "nested": {"a": str(number)}} for number in range(300)]
    begin = time.process_time()
    compile(source, "argparse", "exec")
    for _ in range(3):
        json.loads(json.dumps(rows))
    return time.process_time() - begin


if __name__ == "__main__":
    print(f"{min(_reference_work_seconds() for _ in range(BEST_OF)):.4f} s, {pace():.2f} x the reference")
