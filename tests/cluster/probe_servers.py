"""Call the servers of a run on several nodes as a trainer does: probe_servers.py HEAD_URL TOKEN ROWS. Prints JSON."""

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.rollouts.node_choice import NodeClients
from nemo_gym.transport import run_token


def status_of(url: str, token: str | None = None) -> int:
    headers = {"x-nemo-gym-run-token": token} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


def read(url: str, token: str) -> bytes:
    request = urllib.request.Request(url, headers={"x-nemo-gym-run-token": token})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read()


def main(head: str, token: str, rows_path: str) -> None:
    host, _, port = head.removeprefix("http://").rpartition(":")
    run_token.adopt([(host, int(port))], token)
    servers = json.loads(read(f"{head}/server_instances", token))
    rows = [json.loads(line) for line in Path(rows_path).read_text().splitlines()[:8]]
    for row in rows:
        row["agent_ref"] = {"name": "example_session_state_mgmt_simple_agent"}
    used = Counter()
    choose = NodeClients.least_loaded

    def counting(self):
        before = dict(self.in_flight)
        chosen = choose(self)
        used[min(before, key=lambda node: before[node])] += 1
        return chosen

    NodeClients.least_loaded = counting

    async def run() -> list[float]:
        helper = RolloutCollectionHelper()
        return [(await one)[1]["reward"] for one in helper.run_examples(rows, BaseServerConfig(host=host, port=port))]

    rewards = asyncio.run(run())
    answer = {
        "servers": servers,
        "nodes": json.loads(read(f"{head}/nodes", token)),
        "metrics": read(f"{head}/metrics", token).decode(),
        "with_token": [status_of(f"{one['url']}/openapi.json", token) for one in servers],
        "without_token": [status_of(f"{one['url']}/openapi.json") for one in servers],
        "rewards": rewards,
        "used": used,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
