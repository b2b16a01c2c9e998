"""Measure starting servers: CPU time of all processes until every server answers, and their memory then.

`python -m perf.startup [COUNT] [cell|process]` starts COUNT resources servers, an agent and a model.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL = ("--model-url", "http://127.0.0.1:9/v1", "--model-api-key", "x", "--model", "mock")


def write_config(path: Path, count: int, hosting: str) -> None:
    """Write a configuration of `count` weather servers and an agent for the first of them."""
    block = {"entrypoint": "app.py", "domain": "agent", "hosting": hosting}
    config: dict[str, Any] = {
        f"rs_{number}": {"resources_servers": {"example_single_tool_call": block}} for number in range(count)
    }
    config["bench_agent"] = {
        "responses_api_agents": {
            "simple_agent": {
                "entrypoint": "app.py",
                "resources_server": {"type": "resources_servers", "name": "rs_0"},
                "model_server": {"type": "responses_api_models", "name": "policy_model"},
            }
        }
    }
    path.write_text(json.dumps(config))


def family(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    members = [pid]
    for member in members:
        for task in Path(f"/proc/{member}/task").glob("*/children"):
            members += [int(child) for child in task.read_text().split()]
    return members


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(count: int = 1, hosting: str = "cell") -> dict[str, Any]:
    """Return CPU seconds until every server answers, PSS in MB and the number of processes."""
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "bench.yaml"
        write_config(config, count, hosting)
        command = [sys.executable, "-m", "nemo_gym.cli.main", "env", "start", "--config", str(config)]
        process = subprocess.Popen(
            [*command, "--model-type", "openai_model", *MODEL, "+model_endpoint_readiness_timeout_seconds=0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            began = time.monotonic()
            output = []
            for line in process.stderr:
                output.append(line)
                if "servers are ready" in line:
                    break
            else:
                raise SystemExit("the servers did not start:\n" + "".join(output[-20:]))
            members = family(process.pid)
            return {
                "seconds": time.monotonic() - began,
                "cpu_s": sum(map(cpu_seconds, members)),
                "pss_mb": sum(map(pss_mb, members)),
                "processes": len(members),
            }
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


if __name__ == "__main__":
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    print(json.dumps(measure(chosen, sys.argv[2] if len(sys.argv) > 2 else "cell"), indent=2))
