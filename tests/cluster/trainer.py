"""A trainer on Ray: its driver is connected to a cluster, and an actor of it runs environments with `RunHelper`.

Usage: trainer.py ADDRESS CONFIG ROWS
"""

import asyncio
import json
import sys
from pathlib import Path

import ray

from nemo_gym.global_config import GlobalConfigDictParserConfig


@ray.remote(num_cpus=0)
class Environment:
    """Servers as children of this actor's process."""

    def start(self, config: str) -> dict:
        from omegaconf import OmegaConf

        from nemo_gym.cli.env.run_helper import RunHelper

        self.helper = RunHelper()
        initial = OmegaConf.create({"config_paths": [config]})
        self.helper.start(
            GlobalConfigDictParserConfig(
                initial_global_config_dict=initial, skip_load_from_cli=True, skip_load_from_dotenv=True
            )
        )
        return self.helper.head.model_dump()

    def rollouts(self, rows: list[dict]) -> list[float]:
        from nemo_gym.rollout_collection import RolloutCollectionHelper

        async def run() -> list[float]:
            helper = RolloutCollectionHelper()
            return [(await one)[1]["reward"] for one in helper.run_examples(rows, self.helper.head)]

        return asyncio.run(run())

    def stop(self) -> None:
        self.helper.shutdown()


def main(address: str, config: str, rows_path: str) -> None:
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    rows = [json.loads(line) for line in Path(rows_path).read_text().splitlines()[:6]]
    for row in rows:
        row["agent_ref"] = {"name": "example_session_state_mgmt_simple_agent"}
    actors = [Environment.remote() for _ in range(2)]
    heads = ray.get([actor.start.remote(config) for actor in actors])
    rewards = ray.get([actor.rollouts.remote(rows) for actor in actors])
    ray.get([actor.stop.remote() for actor in actors])
    print(json.dumps({"ports": [head["port"] for head in heads], "rewards": rewards}))


if __name__ == "__main__":
    main(*sys.argv[1:])
