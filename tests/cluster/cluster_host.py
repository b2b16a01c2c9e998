"""A Ray cluster of several raylets on this machine, driven by lines on standard input; the tests never import Ray.

`add` starts a node and prints its number, `kill N` kills the raylet of a node. The cluster ends with its parent.
"""

import json
import os
import signal
import sys

from nemo_gym.processes import exit_with_parent

# Loaded machines miss the limits of Ray, which are meant for idle ones.
os.environ.update(
    RAY_raylet_start_wait_time_s="300",
    RAY_agent_register_timeout_ms="200000",
    RAY_worker_register_timeout_seconds="200",
    RAY_gcs_server_request_timeout_seconds="120",
    RAY_health_check_period_ms="1000",
    RAY_health_check_failure_threshold="5",
    RAY_USAGE_STATS_ENABLED="0",
)
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
STARTS = 4


def start(function):
    for attempt in range(STARTS):
        try:
            return function()
        except Exception as error:  # of many kinds: a raylet that did not start in time
            if attempt == STARTS - 1:
                raise
            print(f"again: {error}", file=sys.stderr)
    raise AssertionError


def main() -> None:
    exit_with_parent()
    from ray.cluster_utils import Cluster

    head = {**NODE, "include_dashboard": False}
    cluster = start(lambda: Cluster(initialize_head=True, head_node_args=head))
    nodes = [cluster.head_node]

    def say(**fields):
        print(json.dumps(fields), flush=True)

    say(address=cluster.address)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "add":
            resources = dict(word.split("=") for word in words[1:])
            extra = {"resources": {name: float(amount) for name, amount in resources.items()}} if resources else {}
            nodes.append(start(lambda extra=extra: cluster.add_node(wait=True, **NODE, **extra)))
            say(node=len(nodes) - 1)
        elif words[0] == "kill":
            raylet = nodes[int(words[1])].all_processes["raylet"][0].process
            os.kill(raylet.pid, signal.SIGKILL)
            raylet.wait()
            say(killed=raylet.pid)
        else:
            break
    cluster.shutdown()


if __name__ == "__main__":
    main()
