"""The Ray engine on one node against the local engine, side by side: CPU time, all processes counted.

The difference of a long and a short run is compared, so that the start of servers does not count; what Ray's own
processes use while the rollouts run does. The figures are printed: `pytest -s`.
"""

import os
import resource
import time
from pathlib import Path

from nemo_gym.processes import process_tree
from tests.ray.conftest import HostedCluster

LONG, SHORT = 1500, 300
MAX_RATIO = 1.3
MAX_START_SECONDS = 5.0
TICKS = os.sysconf("SC_CLK_TCK")


def tree_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, also those that have ended and were waited for."""
    total = 0.0
    for one in process_tree(pid):
        try:
            words = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, words[11:15])) / TICKS
    return total


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_of(run, host: int) -> float:
    """Return the CPU seconds of a run: its process and those that the cluster started for it."""
    before = children_seconds() + tree_seconds(host)
    run()
    time.sleep(1)  # Ray collects ended workers in the background
    return children_seconds() + tree_seconds(host) - before


def test_a_rollout_costs_little_more_than_on_the_local_engine(workspace):
    one_node = HostedCluster(1)
    try:
        words = {"local": (), "ray": ("--engine", "ray", "--ray-address", one_node.address)}
        figures = {}
        for engine, flags in words.items():
            seconds = {}
            for count in (SHORT, LONG):
                output = f"overhead-{engine}-{count}/r.jsonl"
                run = lambda flags=flags, count=count, output=output: workspace.run(  # noqa: E731
                    *flags, "--limit", count, "-o", output
                )
                seconds[count] = cpu_of(run, one_node.pid)
            figures[engine] = 1000 * (seconds[LONG] - seconds[SHORT]) / (LONG - SHORT)
    finally:
        one_node.close()
    ratio = figures["ray"] / figures["local"]
    print(f"CPU ms per rollout: local {figures['local']:.2f}, ray {figures['ray']:.2f}, ratio {ratio:.2f}")
    assert ratio <= MAX_RATIO
