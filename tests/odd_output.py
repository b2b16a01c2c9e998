"""Rollouts of shipped environments whose model output a test writes: the real agent, everything in this process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemo_gym.authoring.audit import example_rows, load_expectations, serve_folder
from nemo_gym.authoring.audit_server import PORT
from nemo_gym.catalog.components import load_tree
from nemo_gym.config.instances import instances_of
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollouts.attribution import classify_error, server_types
from nemo_gym.rollouts.outcome import FailedRollout, Job, Outcome, classify_result
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status
from nemo_gym.transport import in_process
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent, GymnasiumAgentConfig
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
from responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig, turns_in_items

AGENTS = {
    "simple_agent": (SimpleAgent, SimpleAgentConfig),
    "gymnasium_agent": (GymnasiumAgent, GymnasiumAgentConfig),
}


@dataclass(repr=False)
class Bench:
    """An environment with its agent and a scripted model."""

    row: dict[str, Any]
    agent: str
    client: ServerClient
    model: ScriptedModel

    async def play(self, script: Sequence[dict[str, Any]]) -> Outcome:
        """Run one rollout whose model follows `script`; return its outcome as the collector classifies it."""
        prompt = self.row["responses_create_params"]["input"]
        earlier = turns_in_items(prompt) if isinstance(prompt, list) else 0  # the row contains an example conversation
        fields = self.model.config.model_dump() | {"script": [{"text": "earlier"}] * earlier + list(script)}
        self.model.config = ScriptedModelConfig.model_validate(fields)
        key = {"_ng_task_index": 0, "_ng_rollout_index": 0, "agent_ref": {"name": "the_agent"}}
        job = Job.of({**self.row, **key})
        try:
            reply = await self.client.post("the_agent", "/run", json=job.row)
            await raise_for_status(reply)
            result = await get_response_json(reply)
        except Exception as error:  # classified as the collector does
            kinds = server_types(OmegaConf.to_container(self.client.global_config_dict))
            return FailedRollout(job, classify_error(error, "the_agent", kinds))
        return classify_result(job, result)


def agent_of(folder: Path) -> str:
    """Return the agent implementation in the configuration of a folder."""
    named = folder / "configs" / f"{folder.name}.yaml"
    tree = load_tree(named, [folder.parent.parent], strict=False)
    return next(iter(instances_of(tree, "responses_api_agents"))).implementation


@asynccontextmanager
async def bench_for(folder: Path) -> AsyncIterator[Bench]:
    """Serve the environment of a folder with its agent and a scripted model."""
    host, agent = f"{folder.name}.odd", agent_of(folder)
    common = {"entrypoint": "app.py", "port": PORT}
    async with serve_folder(folder, load_expectations(folder)) as environment:
        blocks = {
            "the_model": {"responses_api_models": {"scripted_model": {**common, "host": f"model.{host}"}}},
            "the_agent": {"responses_api_agents": {agent: {**common, "host": f"agent.{host}"}}},
            folder.name: {"resources_servers": {folder.name: {**common, "host": f"{folder.name}.audit"}}},
        }
        client = ServerClient(
            head_server_config=BaseServerConfig(host="127.0.0.1", port=PORT),
            global_config_dict=OmegaConf.create(blocks),
        )
        model = ScriptedModel(
            config=ScriptedModelConfig(**common, host=f"model.{host}", name="the_model", script=[{"text": "x"}]),
            server_client=client,
        )
        agent_class, config_class = AGENTS[agent]
        agent_server = agent_class(
            config=config_class(
                **common,
                host=f"agent.{host}",
                name="the_agent",
                max_steps=4,
                resources_server={"type": "resources_servers", "name": folder.name},
                model_server={"type": "responses_api_models", "name": "the_model"},
            ),
            server_client=client,
        )
        apps = {
            f"model.{host}": model.prepare_webserver({}),
            f"agent.{host}": agent_server.prepare_webserver({}),
            f"{folder.name}.audit": environment.app,
        }
        for name, app in apps.items():
            in_process.mount(name, PORT, app)
        try:
            yield Bench(example_rows(folder)[0], agent, client, model)
        finally:
            for name in apps:
                in_process.unmount(name, PORT)
