"""An evaluation whose resources server blocks or ends its process in `verify`, next to innocent servers in its cell."""

import json
import textwrap
from pathlib import Path
from typing import Any

import yaml

from chaos.evaluation import BrokenPromise, Evaluation, read_records, rollout_id, scripted_model

BLOCKS = ("loop", "sleep", "regex", "builtin", "thread", "late")
"""Faults after which the event loop never runs again; the last four hold the interpreter lock or follow an `await`."""
CRASHES = ("exit", "abort", "kill", "segfault")

FAULTY, GOOD, TWIN = "faulty", "good", "twin"
"""The server with the fault, a server of another folder, and an innocent server of the same folder."""

SOURCE = '''
    """Verify like arithmetic; a row with a `fault` blocks or ends the process."""

    import asyncio
    import ctypes
    import itertools
    import os
    import re
    import signal
    import time
    from pathlib import Path

    from pydantic import ConfigDict

    from nemo_gym.base_resources_server import (
        BaseResourcesServerConfig, BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer,
    )


    BROKEN = Path(__file__).with_name("broken")
    if BROKEN.exists():
        os._exit(4)


    class RunRequest(BaseRunRequest):
        model_config = ConfigDict(extra="allow")
        expected_answer: int
        fault: str = ""
        pause: float = 0.0


    class VerifyRequest(RunRequest, BaseVerifyRequest):
        pass


    class FaultyServer(SimpleResourcesServer):
        HOSTING = "cell"
        config: BaseResourcesServerConfig

        async def verify(self, body: VerifyRequest) -> BaseVerifyResponse:
            await asyncio.sleep(body.pause)
            if body.fault in ("thread", "late"):
                await asyncio.sleep(0.05)
            if body.fault == "thread":
                await asyncio.to_thread(re.match, "(a+)+$", "a" * 60 + "b")
            cause_fault(body.fault)
            right = str(body.expected_answer) in body.response.output_text
            return BaseVerifyResponse(**{**body.model_dump(), "reward": float(right)})


    def cause_fault(fault: str) -> None:
        if fault in ("loop", "late"):
            while True:
                pass
        if fault == "sleep":
            time.sleep(10_000)
        if fault == "regex":
            re.match("(a+)+$", "a" * 60 + "b")
        if fault == "builtin":
            sum(itertools.repeat(0))
        if fault == "break":
            BROKEN.touch()
        if fault in ("exit", "break"):
            os._exit(3)
        if fault == "abort":
            os.abort()
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "segfault":
            ctypes.string_at(0)


    if __name__ == "__main__":
        FaultyServer.run_webserver()
'''


class FaultyEvaluation(Evaluation):
    """Rollouts of three servers in the same cells, of which one has rows with faults."""

    def __init__(self, folder: Path, faults: dict[int, str], *, tasks: int = 4, overrides: list[str]) -> None:
        """`faults` maps tasks of the faulty server to their faults."""
        self.faults = faults
        super().__init__(folder, overrides=[*overrides, "--agent", f"{GOOD}_agent"], tasks=3 * tasks, repeats=2)
        code = folder / "resources_servers" / "faulty"
        code.mkdir(parents=True)
        (code / "__init__.py").touch()
        (code / "app.py").write_text(textwrap.dedent(SOURCE))
        (code / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
        config: dict[str, Any] = {"policy_model": scripted_model()}
        rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
        for number, (server, implementation) in enumerate(
            ((FAULTY, "faulty"), (GOOD, "arithmetic"), (TWIN, "faulty")), start=0
        ):
            config[server] = {"resources_servers": {implementation: {"entrypoint": "app.py", "domain": "math"}}}
            agent = {
                "entrypoint": "app.py",
                "resources_server": {"type": "resources_servers", "name": server},
                "model_server": {"type": "responses_api_models", "name": "policy_model"},
            }
            config[f"{server}_agent"] = {"responses_api_agents": {"simple_agent": agent}}
            for row in rows[number::3]:
                row["agent_ref"] = {"type": "responses_api_agents", "name": f"{server}_agent"}
        for task, fault in faults.items():
            rows[3 * task]["fault"] = fault
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def faulty_ids(self) -> set[tuple[int, int]]:
        """Return the rollouts that have a fault."""
        return {(3 * task, repeat) for task in self.faults for repeat in range(self.repeats)}

    def check_results(self, *, may_miss_faulty: bool = False) -> None:
        """Fail if an innocent rollout is missing or failed, or a failure does not name the faulty server."""
        scored = set(self.rewards())
        faulty_task = {one for one in self.rollout_ids() if one[0] % 3 == 0}
        expected = self.rollout_ids() - (faulty_task if may_miss_faulty else self.faulty_ids())
        if expected - scored:
            raise BrokenPromise(f"innocent rollouts are missing: {sorted(expected - scored)}\n{self.log_tail()}")
        if scored & self.faulty_ids():
            raise BrokenPromise(f"rollouts with a fault are scored: {sorted(scored & self.faulty_ids())}")
        for record in read_records(self.failures):
            is_counted = record["_ng_failure"].get("counted") is not False
            if rollout_id(record) not in faulty_task or (is_counted and rollout_id(record) not in self.faulty_ids()):
                raise BrokenPromise(f"an innocent rollout counts a failed attempt: {record}")
            if record["_ng_failure_class"] not in ("server_died", "timeout"):
                raise BrokenPromise(f"a failure is of kind {record['_ng_failure_class']}: {record['_ng_failure']}")
            if record["_ng_failure"]["whom"] != FAULTY:
                raise BrokenPromise(f"a failure blames another server: {record['_ng_failure']}")
