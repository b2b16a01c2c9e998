"""`gym env start --engine ray`: every node serves on its own address, with the token of the run."""

import json
import os
import re
import signal
import subprocess
import sys

from tests.cluster.conftest import GYM, ROOT

TOKEN = "a-token-of-this-test-0123456789"


def test_servers_of_every_node_are_listed_and_need_the_token(cluster, workspace):
    """No open port without a token; a client that knows only the head spreads its rollouts over the nodes."""
    env = {**os.environ, "NEMO_GYM_RUN_TOKEN": TOKEN, "XDG_RUNTIME_DIR": str(workspace.folder)}
    words = [
        str(GYM), "env", "start", "--config", "counter.yaml", "--engine", "ray", "--ray-address", cluster.address,
        "--nodes", "2",
    ]  # fmt: skip
    with subprocess.Popen(
        words, cwd=workspace.folder, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "head at" in line:
                    break
            assert "head at http://" in lines[-1], "".join(lines)
            head = lines[-1].split("head at ")[1].strip()
            probe = [sys.executable, "-m", "tests.cluster.probe_servers", head, TOKEN, workspace.folder / "rows.jsonl"]
            answered = subprocess.run(probe, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
            status = subprocess.run(
                [str(GYM), "env", "status"], cwd=workspace.folder, env=env, capture_output=True, text=True,
                timeout=200, check=False,
            )  # fmt: skip
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)
    assert answered.returncode == 0, answered.stderr[-3000:]
    answer = json.loads(answered.stdout.splitlines()[-1])

    names = {one["name"] for one in answer["nodes"]}
    assert {one["node"] for one in answer["servers"]} == names == {"node-1", "node-2"}
    assert len(answer["servers"]) == 6
    assert not [one["url"] for one in answer["servers"] if one["url"].startswith(("http://127.", "http://localhost"))]
    assert set(answer["with_token"]) == {200}
    assert set(answer["without_token"]) == {401}
    counted = re.findall(r'run_requests_total\{node="(.*?)",outcome="answered"\} (\d+)', answer["metrics"])
    assert [name for name, _ in counted] == ["node-1", "node-2"]
    assert all(int(count) <= 4 for _, count in counted), "a node reports every 2 s"
    assert len(answer["rewards"]) == 8
    assert answer["used"] == {"node-1": 4, "node-2": 4}
    assert "node-2" in status.stdout, status.stderr
