"""The files of a new resources server and of a new environment, before names are put in.

`$name` is the folder's name, `$Name` the same as a class prefix, `$title` for people, `$own` the line that requires us.
"""

APP = '''\
"""$title: the reply is right when it equals the expected answer, case and blanks aside."""

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
        return ${Name}VerifyResponse(**body.model_dump(), reward=float(right))


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
        # - {name: train, type: train, jsonl_fpath: resources_servers/$name/data/train.jsonl, license: Apache 2.0}
"""

TESTS = '''\
"""The right answer earns the reward, everything else earns nothing."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from resources_servers.$name.app import ${Name}Config, ${Name}RunRequest, ${Name}Server

HERE = Path(__file__).parent
CASES = [json.loads(line) for line in (HERE / "verifier_cases.jsonl").read_text().splitlines()]
ROWS = [json.loads(line) for line in (HERE.parent / "data" / "example.jsonl").read_text().splitlines()]


@pytest.fixture
def client() -> TestClient:
    config = ${Name}Config(host="127.0.0.1", port=1, entrypoint="app.py", name="$name")
    server = ${Name}Server(config=config, server_client=MagicMock(spec=ServerClient))
    return TestClient(server.setup_webserver())


def response(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    return {
        "id": "resp_1",
        "created_at": 0.0,
        "model": "m",
        "object": "response",
        "output": [message] if text else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_verifier_decides_every_case_as_written(client: TestClient, case: dict[str, Any]) -> None:
    """The cases are what this verifier promises."""
    request = dict(case["request"])
    reply = request.pop("reply")

    answer = client.post("/verify", json={**request, "response": response(reply)})

    if "expected_error" in case:
        assert answer.status_code == case["expected_error"]
    else:
        assert answer.json()["reward"] == case["expected_reward"]


@pytest.mark.parametrize("row", ROWS)
def test_every_example_is_solved_by_its_own_answer_only(client: TestClient, row: dict[str, Any]) -> None:
    """A row whose own answer does not score would teach the wrong thing, and so would one that silence solves."""
    rewards = [
        client.post("/verify", json={**row, "response": response(text)}).json()["reward"]
        for text in (row["expected_answer"], "", "I do not know.")
    ]

    assert rewards == [1.0, 0.0, 0.0]


def test_there_are_five_different_examples() -> None:
    """`gym env test` checks them, and people look at them first."""
    rows = [${Name}RunRequest.model_validate(row) for row in ROWS]

    assert len({row.model_dump_json() for row in rows}) == 5
'''

CASES = """\
{"name": "the expected answer", "kind": "full_reward", "request": {"responses_create_params": {"input": "Say yes."}, \
"expected_answer": "yes", "reply": " Yes "}, "expected_reward": 1.0}
{"name": "another answer", "kind": "zero_reward", "request": {"responses_create_params": {"input": "Say yes."}, \
"expected_answer": "yes", "reply": "no"}, "expected_reward": 0.0}
{"name": "no answer", "kind": "zero_reward", "request": {"responses_create_params": {"input": "Say yes."}, \
"expected_answer": "yes", "reply": ""}, "expected_reward": 0.0}
{"name": "a row without an answer", "kind": "malformed", "request": {"responses_create_params": {"input": "Say yes."}, \
"reply": "yes"}, "expected_error": 422}
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

ENVIRONMENT_CONFIG = """\
# $title
#   gym eval run --environment $name --model-type openai_model
config_paths:
  - resources_servers/$name/configs/$name.yaml
${name}_simple_agent:
  responses_api_agents:
    simple_agent:
      datasets:
        - {name: example, type: example, jsonl_fpath: environments/$name/data/example.jsonl}
"""

ENVIRONMENT_README = """\
# $title

What the environment asks of a model: its rows, and which servers play together. The verifier is in
`resources_servers/$name`.

```bash
gym eval run --environment $name --model-type openai_model
```

## Licensing information

Data: Apache 2.0
"""

WORDS = ("river", "candle", "meadow", "harbour", "lantern")
QUESTION = "Write the word '{word}' backwards. Reply with that one word."
