"""Measure speed and memory of collating datasets.

    python -m perf.collate [MEGABYTES]

Rows are 2 KB long, with a system prompt, two tools and a distinct question; each is validated and its tokens are
counted. The floor parses and writes each line with orjson in one process. CPU time is the sum over all processes.
"""

import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

MIN_MB_PER_SECOND = 40.0
MAX_MB = 300.0
CORES = 2
MAX_TIMES_THE_FLOOR = 18.0
"""The floor reads and writes 360 MB/s on the reference machine; 40 MB/s on two cores is 18 times its CPU time."""

SYSTEM = (
    "You are a careful assistant. Think step by step, use the tools when they help, and give the final answer on a "
    "separate line, in the form Answer: <value>."
)
TOOLS = [
    {
        "type": "function",
        "name": f"search_{what}",
        "description": f"Look up {what} in the knowledge base and return the best matches with their scores.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "what to look for"},
                "limit": {"type": "integer", "description": "at most this many"},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        "strict": True,
    }
    for what in ("people", "places")
]


def prose() -> str:
    """Return English prose: the docstrings of the standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    sources = (path.read_text(encoding="utf-8", errors="ignore") for path in sorted(folder.glob("*.py")))
    return " ".join(
        " ".join(docstring.split()) for text in sources for docstring in re.findall(r'"""(.*?)"""', text, re.DOTALL)
    )


def rows(megabytes: float) -> Iterator[bytes]:
    draw, text, size, number = random.Random(0), prose(), 0, 0
    while size < megabytes * 1e6:
        start = draw.randrange(len(text) - 2000)
        question = text[start : start + draw.randrange(600, 1100)]
        params = {
            "input": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "tools": TOOLS,
            "temperature": 1.0,
            "top_p": 0.95,
            "max_output_tokens": 2048,
        }
        row = {
            "responses_create_params": params,
            "id": f"row-{number}",
            "expected_answer": str(draw.randrange(10**6)),
            "difficulty": draw.random(),
            "subject": draw.choice(["algebra", "logic", "history"]),
        }
        line = json.dumps(row).encode() + b"\n"
        size += len(line)
        number += 1
        yield line


def collate(path: Path, output: Path) -> None:
    """Collate one file and print seconds and CPU seconds; runs in a separate process."""
    from nemo_gym.config.schema_datasets import DatasetConfig
    from nemo_gym.data.collate import collate as collate_sources
    from nemo_gym.data.sources import DatasetSource

    config = DatasetConfig(name="train", type="train", jsonl_fpath=str(path), license="MIT")
    began, before = time.perf_counter(), sum(os.times()[:4])
    collate_sources([DatasetSource("agent", config, path, path.stem)], output, overwrite=True, watch=lambda *_: None)
    seconds, spent = time.perf_counter() - began, sum(os.times()[:4]) - before
    print(json.dumps({"seconds": seconds, "cpu": spent}))


def floor(path: Path, output: Path) -> float:
    """Return the CPU seconds of parsing and writing every row."""
    before = time.process_time()
    with path.open("rb") as lines, output.open("wb") as copy:
        for line in lines:
            copy.write(orjson.dumps(orjson.loads(line), option=orjson.OPT_APPEND_NEWLINE))
    return time.process_time() - before


def memory_of(pid: int) -> float:
    """Return the proportional set size of a process and its children in megabytes."""
    total = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if pid in (int(folder.name), int(fields[1])):
                rollup = (folder / "smaps_rollup").read_text()
                total += float(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1]) / 1024  # type: ignore[index]
        except (OSError, TypeError):
            continue
    return total


def run_once(path: Path, output: Path) -> dict[str, float]:
    """Collate once; return seconds, CPU seconds and the peak memory of all processes together."""
    command = [sys.executable, "-m", "perf.collate", "--run", str(path), str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        peak, has_ended = [0.0], threading.Event()

        def watch() -> None:
            while not has_ended.wait(0.1):
                peak[0] = max(peak[0], memory_of(running.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        printed = running.communicate()[0]
        has_ended.set()
        watcher.join()
    figures: dict[str, float] = json.loads(printed)
    return {**figures, "mb": peak[0]}


def measure(megabytes: float = 200.0, runs: int = 3) -> dict[str, Any]:
    """Return the best of several runs beside the floor, measured in the same minute."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        with path.open("wb") as stream:
            stream.writelines(rows(megabytes))
        size = path.stat().st_size / 1e6
        results = [run_once(path, Path(folder, "out")) for _ in range(runs)]
        base = min(floor(path, Path(folder, "floor.jsonl")) for _ in range(runs))
    cpu = min(run["cpu"] for run in results)
    return {
        "megabytes": round(size, 1),
        "wall_mb_per_second": [round(size / run["seconds"], 1) for run in results],
        "cpu_seconds": [round(run["cpu"], 2) for run in results],
        "mb_per_second_on_two_cores": round(CORES * size / cpu, 1),
        "floor_mb_per_second": round(size / base, 1),
        "times_the_floor": round(cpu / base, 2),
        "most_memory_mb": round(max(run["mb"] for run in results), 1),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        collate(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        print(json.dumps(measure(float((sys.argv[1:] or ["200"])[0])), indent=2))
