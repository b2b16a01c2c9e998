"""The files of a new resources server, before names are put in.

`$name` is the folder's name, `$Name` the same as a class prefix, `$title` for people, `$own` the line that requires us.
"""

APP = '''\
"""$title: the reply is right when it equals the expected answer, case and blanks aside."""

from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.environment.verifier_fixture import VerifierFixture, offline_server


def normalized(text: str) -> str:
    """What is compared: the words, whatever their case and the blanks around them."""
    return " ".join(text.split()).casefold()


class ${Name}Config(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS


class ${Name}RunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    expected_answer: str


class ${Name}VerifyRequest(${Name}RunRequest, BaseVerifyRequest):
    pass


class ${Name}VerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    expected_answer: str


class ${Name}Server(SimpleResourcesServer):
    # It may share a process with other servers: nothing here blocks, or keeps state in the module.
    HOSTING: ClassVar[str] = "cell"

    config: ${Name}Config

    async def verify(self, body: ${Name}VerifyRequest) -> ${Name}VerifyResponse:
        right = normalized(body.response.output_text) == normalized(body.expected_answer)
        return ${Name}VerifyResponse(**dict(body), reward=float(right))


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(${Name}Server),
    request_model=${Name}VerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    ${Name}Server.run_webserver()
'''

CONFIG = """\
# $title: the reply is compared with the expected answer.
#   gym eval run --resources-server $name --model-type openai_model
${name}_resources_server:
  resources_servers:
    $name:
      entrypoint: app.py
      domain: other
      verified: false
      description: The reply is compared with the expected answer.
${name}_simple_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: ${name}_resources_server}
      model_server: {type: responses_api_models, name: policy_model}
      max_steps: 1
      datasets:
        - {name: example, type: example, jsonl_fpath: resources_servers/$name/data/example.jsonl}
        # When there is data to train on:
        # - {name: train, type: train, jsonl_fpath: resources_servers/$name/data/train.jsonl, license: Apache 2.0}
        # - {name: validation, type: validation, jsonl_fpath: resources_servers/$name/data/validation.jsonl,
        #    license: Apache 2.0}
"""

TESTS = '''\
"""The right answer earns the reward, everything else earns nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.environment.verifier_fixture import exercise_verifier_fixture, offline_server, said
from resources_servers.$name.app import VERIFIER_FIXTURE, ${Name}RunRequest, ${Name}Server

EXAMPLES = Path(__file__).parents[1] / "data" / "example.jsonl"
ROWS = [json.loads(line) for line in EXAMPLES.read_text().splitlines()]


@pytest.fixture
def client() -> TestClient:
    return TestClient(offline_server(${Name}Server).setup_webserver())


def test_the_verifier_decides_every_case_as_written() -> None:
    """The cases in verifier_cases.jsonl are what this verifier promises."""
    results = asyncio.run(exercise_verifier_fixture(VERIFIER_FIXTURE))

    assert [result for result in results if not result.is_good] == []


@pytest.mark.parametrize("row", ROWS)
def test_every_example_is_solved_by_its_own_answer_only(client: TestClient, row: dict[str, Any]) -> None:
    """A row whose own answer does not score would teach the wrong thing, and so would one that silence solves."""
    rewards = [
        client.post("/verify", json={**row, "response": said(text)}).json()["reward"]
        for text in (row["expected_answer"], "", "I do not know.")
    ]

    assert rewards == [1.0, 0.0, 0.0]


def test_a_row_without_an_answer_is_refused(client: TestClient) -> None:
    """A broken row is an error, never a reward."""
    row = {key: value for key, value in ROWS[0].items() if key != "expected_answer"}

    assert client.post("/verify", json={**row, "response": said("x")}).status_code == 422


def test_there_are_five_different_examples() -> None:
    """`gym env test` checks them, and people look at them first."""
    rows = [${Name}RunRequest.model_validate(row) for row in ROWS]

    assert len({row.model_dump_json() for row in rows}) == 5
'''

CASES = """\
{"name": "the expected answer", "kind": "full_reward", "request": {"responses_create_params": {"input": "Say yes."}, \
"expected_answer": "yes", "response": " Yes "}, "expected_reward": 1.0}
{"name": "another answer", "kind": "zero_reward", "request": {"responses_create_params": {"input": "Say yes."}, \
"expected_answer": "yes", "response": "no"}, "expected_reward": 0.0}
{"name": "no answer", "kind": "zero_reward", "request": {"responses_create_params": {"input": "Say yes."}, \
"expected_answer": "yes", "response": ""}, "expected_reward": 0.0}
{"name": "a row without an answer", "kind": "malformed", "request": {"responses_create_params": {"input": "Say yes."}, \
"response": "yes"}, "expected_error": "ValidationError"}
{"name": "the same twice", "kind": "determinism", "request": {"responses_create_params": {"input": "Say yes."}, \
"expected_answer": "yes", "response": "yes"}, "expected_reward": 1.0}
"""

README = """\
# $title

## Description

Say here what the task is, what the model may do, and how the reply is graded. As generated, the reply earns 1.0 when it
equals `expected_answer`, case and blanks aside, and 0.0 otherwise.

| file | |
|---|---|
| `app.py` | the verifier; tools are further routes |
| `configs/$name.yaml` | the server and an agent that uses it |
| `data/example.jsonl` | five rows |
| `tests/` | `gym env test --resources-server $name` |

```bash
gym env validate --resources-server $name
gym eval run --resources-server $name --model-type openai_model
```

Two more files belong to the data before others see it; `gym env test` without a name asks for them:

```bash
# data/example_metrics.json
gym dataset collate --resources-server $name --mode example_validation --output-dir results/$name
# data/example_rollouts.jsonl
gym eval run --resources-server $name --model-type openai_model -o results/$name/rollouts.jsonl
cp results/$name/rollouts.jsonl resources_servers/$name/data/example_rollouts.jsonl
```

## Data links

-

## Licensing information

Code: Apache 2.0
Data: Apache 2.0

## Dependencies

- nemo_gym: Apache 2.0
"""

DATA_IGNORED = """\
*train.jsonl
*validation.jsonl
*train_prepare.jsonl
*validation_prepare.jsonl
*example_prepare.jsonl
"""

WORDS = ("river", "candle", "meadow", "harbour", "lantern")
QUESTION = "Write the word '{word}' backwards. Reply with that one word."
