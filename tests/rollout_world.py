"""Two agents that do as their rows say, in this process: what collecting is tested against."""

import asyncio

import orjson
from fastapi import Body, HTTPException
from pydantic import ConfigDict

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.server_utils import ServerClient, raise_for_status
from nemo_gym.transport import in_process
from nemo_gym.wire.run_seed_verify import BaseRunRequest

ANSWERS = {
    "judge": {"reward": 0.0, "_ng_failure_class": "judge_failed"},
    "terminal": {"_ng_failure_class": "bad_task", "_ng_failure_terminal": True},
    "forget": {"reward": 0.0, "_ng_no_persist": True},
    "nothing": {"reward": None},
}
"""What a row can have its agent answer instead of a score."""

CALLS = {
    "verify": ("/verify", {}),
    "broken tool": ("/broken", {}),
    "hang in a tool": ("/hang", {}),
    "hang in verify": ("/verify", {"hang": True}),
}
"""What a row can have its agent ask the environment for."""


class RunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class Agent(SimpleResponsesAPIAgent):
    """Rewards each row with its field `n`, or does what its field `do` says."""

    seen: list[dict] = []
    broken: set[int] = set()
    hangs: asyncio.Event

    async def responses(self, body=Body()):
        raise NotImplementedError

    async def run(self, body: RunRequest = Body()) -> dict:
        row = body.model_dump(exclude_unset=True)
        self.seen.append(row)
        if row["n"] in self.broken:
            raise HTTPException(503, "resting")
        await self.suffer(row.get("do"))
        if row.get("do") in ANSWERS:
            return {**row, **ANSWERS[row["do"]]}
        return {**row, "response": {"usage": {"total_tokens": 7}}, "reward": float(row["n"])}

    async def suffer(self, do: str | None) -> None:
        if do == "crash":
            raise RuntimeError("boom in the agent")
        if do == "hang":
            self.hangs.set()
            await asyncio.Event().wait()
        if do == "slow":
            await asyncio.sleep(0.06)
        if do in CALLS:
            path, sent = CALLS[do]
            await raise_for_status(await self.server_client.post("r", path, json=sent))


class Verifier(SimpleResourcesServer):
    """Fails at everything it is asked, or does not answer at all."""

    def setup_webserver(self):
        app = super().setup_webserver()
        app.post("/hang")(self.hang)
        app.post("/broken")(self.break_down)
        return app

    async def break_down(self) -> dict:
        raise OSError("no disk")

    async def hang(self) -> dict:
        await asyncio.Event().wait()
        return {}

    async def verify(self, body: dict = Body()) -> dict:
        if body.get("hang"):
            await self.hang()
        raise ZeroDivisionError("no verdict")


PORTS = {"a": 1, "b": 2}  # no socket: only mounted agents answer
CONFIG = {
    "head_server": {"host": "127.0.0.1", "port": 31000},
    **{
        name: {"responses_api_agents": {"mine": {"entrypoint": "app.py", "host": "127.0.0.1", "port": port}}}
        for name, port in PORTS.items()
    },
    "r": {"resources_servers": {"mine": {"entrypoint": "app.py", "host": "127.0.0.1", "port": 3}}},
}


class World:
    """Two running agents and a helper that knows them."""

    def __init__(self):
        head = BaseServerConfig(host="127.0.0.1", port=31000)
        self.client = ServerClient(head_server_config=head, global_config_dict=CONFIG)
        self.agents = {}
        for name, port in PORTS.items():
            config = BaseResponsesAPIAgentConfig(host="127.0.0.1", port=port, entrypoint="", name=name)
            agent = Agent(config=config, server_client=self.client, seen=[], broken=set(), hangs=asyncio.Event())
            in_process.mount("127.0.0.1", port, agent.prepare_webserver(CONFIG))
            self.agents[name] = agent
        config = BaseResourcesServerConfig(host="127.0.0.1", port=3, entrypoint="", name="r", domain="other")
        verifier = Verifier(config=config, server_client=self.client)
        in_process.mount("127.0.0.1", 3, verifier.prepare_webserver(CONFIG))

    def close(self):
        for port in (*PORTS.values(), 3):
            in_process.unmount("127.0.0.1", port)

    @property
    def sent_rows(self):
        return [row for agent in self.agents.values() for row in agent.seen]

    def helper(self, **arguments):
        made = RolloutCollectionHelper(**arguments)
        made.setup_server_client = lambda head_server_config=None: self.client
        return made


def row(n, agent="a", **fields):
    return {"responses_create_params": {"input": "hi"}, "agent_ref": {"name": agent}, "n": n, **fields}


def config_of(tmp_path, *rows, **options):
    source = tmp_path / "in.jsonl"
    if rows:
        source.write_bytes(b"".join(orjson.dumps(item) + b"\n" for item in rows))
    return RolloutCollectionConfig(
        input_jsonl_fpath=str(source),
        output_jsonl_fpath=str(tmp_path / "out" / "x.jsonl"),
        **{"retry_pause_seconds": 0, **options},
    )


def stored_rows(tmp_path, name="x.jsonl"):
    return [orjson.loads(line) for line in (tmp_path / "out" / name).read_bytes().splitlines()]


def rollout_ids(rows):
    return [(item["_ng_task_index"], item["_ng_rollout_index"]) for item in rows]
