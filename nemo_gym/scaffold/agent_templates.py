"""The files of a new agent, before names are put in: one whose loop is its own, one that calls a program outside."""

APP = '''\
"""$title: $purpose"""

from typing import Any, ClassVar

from fastapi import Request
from pydantic import ConfigDict

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import get_response_json, raise_for_status$more_imports


class ${Name}Config(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef


class ${Name}RunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class ${Name}VerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

$outside
class $Name(SimpleResponsesAPIAgent):
    HOSTING: ClassVar[str] = "cell"

    config: ${Name}Config

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        """One episode: from the question to the last answer."""
$loop

    async def run(self, request: Request, body: ${Name}RunRequest) -> ${Name}VerifyResponse:
        """One rollout: seed the environment, play, have it verified."""
        row, cookies = body.model_dump(exclude_unset=True), dict(request.cookies)
        seeded = await self._post("/seed_session", row, cookies)
        cookies |= {name: getattr(cookie, "value", cookie) for name, cookie in seeded.cookies.items()}
        response = await self.responses(body.responses_create_params)
        verdict = await self._post("/verify", {**row, "response": response.model_dump(exclude_unset=True)}, cookies)
        return ${Name}VerifyResponse.model_validate(await get_response_json(verdict))

    async def _post(self, path: str, body: Any, cookies: dict[str, str]) -> Any:
        name = self.config.resources_server.name
        reply = await self.server_client.post(server_name=name, url_path=path, json=body, cookies=cookies)
        await raise_for_status(reply)
        return reply


if __name__ == "__main__":
    $Name.run_webserver()
'''

OWN_LOOP = """\
        # As generated, one turn. Change it: call tools, ask again, vote, plan, whatever the loop should be.
        reply = await self.server_client.post(
            server_name=self.config.model_server.name, url_path="/v1/responses", json=body
        )
        await raise_for_status(reply)
        return NeMoGymResponse.model_validate(await get_response_json(reply))"""

OUTSIDE = '''
async def play(base_url: str, question: dict[str, Any]) -> dict[str, Any]:
    """Where the program outside begins: it is told where the model is and what is asked, and gives a response.

    As generated it asks the model once. Change it to start the harness you have, with `base_url` as its endpoint.
    """
    reply = await request(method="POST", url=f"{base_url}/responses", json=question)
    await raise_for_status(reply)
    answer: dict[str, Any] = await get_response_json(reply)
    return answer

'''

OUTSIDE_LOOP = """\
        base_url = self.resolve_model_base_url(self.config.model_server.name)
        return NeMoGymResponse.model_validate(await play(base_url, body.model_dump(exclude_unset=True)))"""

TESTS = '''\
"""A rollout goes from the seed to the verdict; nobody outside this process is asked."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.environment.verifier_fixture import said
from nemo_gym.server_utils import ServerClient
from responses_api_agents.$name import app
from responses_api_agents.$name.app import $Name, ${Name}Config


class Reply:
    """What a server answered."""

    ok, status = True, 200

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.cookies = {"session": "one"}

    async def json(self) -> dict[str, Any]:
        return self.body


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where the agent went, with servers that always answer."""
    made: list[str] = []

    async def post(self: ServerClient, server_name: str, url_path: str, **options: Any) -> Reply:
        made.append(f"{server_name}{url_path}")
        if url_path == "/verify":
            assert options["cookies"] == {"session": "one"}
            return Reply({**options["json"], "reward": 1.0})
        return Reply(said("done") if url_path == "/v1/responses" else {})

    monkeypatch.setattr(ServerClient, "post", post)
$patch
    return made


def test_a_rollout_is_seeded_played_and_verified(calls: list[str]) -> None:
    """In this order, in one session, with the row's own fields on the way."""
    place = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py"}
    config = ${Name}Config(
        **place,
        name="agent",
        resources_server={"type": "resources_servers", "name": "env"},
        model_server={"type": "responses_api_models", "name": "model"},
    )
    client = ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=1),
        global_config_dict={"model": {"responses_api_models": {"any": place}}},
    )
    http = TestClient($Name(config=config, server_client=client).setup_webserver())

    reply = http.post("/run", json={"responses_create_params": {"input": "Hello?"}, "expected_answer": "done"})

    assert reply.status_code == 200, reply.text
    assert (reply.json()["reward"], reply.json()["expected_answer"]) == (1.0, "done")
    assert calls == ["env/seed_session", "model/v1/responses", "env/verify"]
    assert app.__doc__
'''

OUTSIDE_PATCH = """
    async def request(method: str, url: str, **options: Any) -> Reply:
        made.append("model/v1/responses" if url == "http://127.0.0.1:1/v1/responses" else url)
        return Reply(said("done"))

    monkeypatch.setattr(app, "request", request)"""

README = """\
# $title

$purpose

`app.py` has the loop; the environment that uses it names it in its `config.yaml`.

```bash
gym env test +entrypoint=responses_api_agents/$name
```

## Licensing information

Code: Apache 2.0

## Dependencies

- nemo_gym: Apache 2.0
"""
