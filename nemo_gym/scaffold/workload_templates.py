"""The files of a new environment or benchmark, before names are put in.

`$name`, `$title` as for servers; `$kind`, `$folder` (environments or benchmarks), `$profile`, `$verifier` (the
resources server's folder), `$settings` (its block), `$agent` and `$instance` (the agent's), `$low`, `$high`,
`$higher`, and blocks that only some kinds have: `$datasets`, `$manifest_datasets`, `$driver_line`, `$more`.
"""

CONFIG = """\
# $title
#   gym eval run --$kind $name --model-type openai_model
${driver_line}${name}_resources_server:
  resources_servers:
    $verifier:
$settings
$instance:
  responses_api_agents:
    $agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: ${name}_resources_server}
      model_server: {type: responses_api_models, name: policy_model}
      datasets:
$datasets
"""

MANIFEST = """\
# What this $kind is, for people who choose one. `gym env test $name` tries what it says of the verifier.
name: $name
version: 0.1.0
kind: $kind
integration_profile: $profile
domain: $domain
description: "Say here in one sentence what is asked of the model and how the reply is graded."
modality: text
licensing: unknown
authors: ["whom to ask"]
reward: {range: [$low, $high], higher_is_better: $higher}
determinism: seeded
resources_server: $verifier
agent_server: $agent
model_server: policy_model
datasets:
$manifest_datasets
$more"""

README = """\
# $title

What the $kind asks of a model: its rows, and which servers play together. The verifier is in
`resources_servers/$verifier`, the agent in `responses_api_agents/$agent`.

| file | |
|---|---|
| `manifest.yaml` | what it is, for people and listings |
| `config.yaml` | the servers and the data |
| `data/example.jsonl` | five rows to look at |
$files
```bash
gym env test $name --kind $kind
$commands
```

## Licensing information

Data: Apache 2.0
"""

PREPARE = '''\
"""Write the rows of the benchmark from what it is made of."""

import json
from pathlib import Path

from nemo_gym.catalog.files import whole_file

DATA = Path(__file__).resolve().parent / "data"


def prepare() -> Path:
    """Write data/$name.jsonl, all of it or nothing, and return its path."""
    rows = [json.loads(line) for line in (DATA / "source.jsonl").read_text(encoding="utf-8").splitlines()]
    with whole_file(DATA / "$name.jsonl") as stream:
        stream.writelines(f"{json.dumps(row)}\\n".encode() for row in rows)
    return DATA / "$name.jsonl"


if __name__ == "__main__":
    prepare()
'''

PROMPT = """\
# What the model is shown; {question} is a field of the row.
user: "{question}"
"""

DRIVER = '''\
"""Collects the rollouts of $title in place of our own collector.

`gym eval run` starts the servers, calls `collect`, and stops them. As generated it does what our collector does: change
it to hand the rows to a program of your own, and write one line per rollout to `config.output_jsonl_fpath`.
"""

from typing import Any

from omegaconf import DictConfig

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.server_utils import ServerClient


class Collector(RolloutCollectionHelper):
    """Sends rows to the servers of this run."""

    def __init__(self, servers: DictConfig) -> None:
        super().__init__()
        self._servers = servers

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        head = head_server_config or BaseServerConfig.model_validate(dict(self._servers["head_server"]))
        return ServerClient(head_server_config=head, global_config_dict=self._servers)


async def collect(config: RolloutCollectionConfig, servers: DictConfig) -> Any:
    """Every row of `config.input_jsonl_fpath`, played and stored."""
    return await Collector(servers).run_from_config(config)
'''

QUESTION = "Write the word '{word}' backwards. Reply with that one word."
SOURCE_WORDS = ("garden", "winter", "saddle", "copper", "violin", "market", "shadow", "basket", "tunnel", "pepper")
