"""How people write resources servers and test them: idioms that must keep working, each proven by doing it."""

from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputText,
)
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient

PLACE = {"host": "0.0.0.0", "port": 8080, "entrypoint": "", "name": ""}


def answer(text: str) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "created_at": 1753983920.0,
        "model": "m",
        "object": "response",
        "output": [
            {
                "id": "msg_1",
                "content": [{"annotations": [], "text": text, "type": "output_text"}],
                "role": "assistant",
                "status": "completed",
                "type": "message",
            }
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


# -- construction -----------------------------------------------------------------------------------------------------


class Config(BaseResourcesServerConfig):
    greeting: str = "hello"


class Greeter(SimpleResourcesServer):
    config: Config
    seen: list[str] = []
    _started: int = PrivateAttr(default=0)

    def model_post_init(self, context: Any) -> None:
        self._started += 1
        self._names: dict[str, int] = {}

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/greet")(self.greet)
        app.post("/count")(self.count)
        return app

    async def greet(self, body: "Greeting") -> "GreetingReply":
        return GreetingReply(text=f"{self.config.greeting} {body.who}")

    async def count(self, request: Request, body: "Greeting") -> dict[str, Any]:
        session = request.session[SESSION_ID_KEY]
        self._names[session] = self._names.get(session, 0) + 1
        return {"session": session, "count": self._names[session], "who": body.who}

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=float("hello" in body.response.output_text))


class Greeting(BaseModel):
    who: str


class GreetingReply(BaseModel):
    text: str


def greeter(**settings: Any) -> Greeter:
    return Greeter(config=Config(**PLACE, **settings), server_client=MagicMock(spec=ServerClient))


def test_a_server_is_built_from_a_config_and_a_mock():
    """163 test files construct their server exactly like this."""
    client = MagicMock(spec=ServerClient)

    server = Greeter(config=Config(**PLACE), server_client=client)

    assert server.server_client is client
    assert type(server.config) is Config and server.config.greeting == "hello"


def test_state_in_private_attributes_and_post_init_is_per_instance():
    """Servers keep sessions in attributes made by `model_post_init`; two servers must not share them."""
    one, other = greeter(), greeter()

    one._names["a"] = 1
    one.seen.append("x")

    assert (one._started, other._started) == (1, 1)
    assert (other._names, other.seen) == ({}, [])


def test_a_config_field_of_the_wrong_type_is_refused():
    """A typo in a test's config should fail there, not in a handler."""
    with pytest.raises(ValidationError):
        Config(**{**PLACE, "port": "not a port"})


# -- in-process HTTP --------------------------------------------------------------------------------------------------


def test_handlers_take_a_body_or_a_request_and_a_body():
    """Both signatures are in use, often in one class."""
    client = TestClient(greeter(greeting="good morning").setup_webserver())

    assert client.post("/greet", json={"who": "Ada"}).json() == {"text": "good morning Ada"}
    assert client.post("/count", json={"who": "Ada"}).json()["count"] == 1


def test_a_session_follows_the_cookie_and_only_the_cookie():
    """Per-session state is the whole point of stateful environments."""
    app = greeter().setup_webserver()
    ada, bob = TestClient(app), TestClient(app)

    first, second = (ada.post("/count", json={"who": "Ada"}).json() for _ in range(2))
    stranger = bob.post("/count", json={"who": "Bob"}).json()

    assert (first["count"], second["count"], stranger["count"]) == (1, 2, 1)
    assert first["session"] == second["session"] != stranger["session"]


def test_cookies_can_be_carried_by_hand():
    """Agents pass `cookies=response.cookies` from one call to the next instead of keeping a jar."""
    app = greeter().setup_webserver()

    first = TestClient(app).post("/count", json={"who": "Ada"})
    second = TestClient(app, cookies=dict(first.cookies)).post("/count", json={"who": "Ada"})

    assert dict(first.cookies)
    assert second.json()["count"] == 2


def test_every_reply_sets_the_session_cookie_again():
    """Callers keep only the cookies of the last reply, so the last reply must have them."""
    client = TestClient(greeter().setup_webserver())

    replies = [client.post("/greet", json={"who": "Ada"}) for _ in range(2)]

    assert all("set-cookie" in reply.headers for reply in replies)


def test_the_standard_routes_of_a_resources_server_answer():
    """Agents and the collector call these on every server without knowing what it is."""
    client = TestClient(greeter().setup_webserver())
    row = {"responses_create_params": {"input": "hi"}}

    assert client.post("/seed_session", json=row).status_code == 200
    verdict = client.post("/verify", json={**row, "response": answer("hello you")})
    assert verdict.status_code == 200 and verdict.json()["reward"] == 1.0
    metrics = client.post("/aggregate_metrics", json={"verify_responses": [{"reward": 1.0}, {"reward": 0.0}]})
    assert metrics.json()["agent_metrics"]["mean/reward"] == 0.5
    assert client.get("/reverify_mode").status_code == 200


def test_a_bad_body_is_a_422_that_names_the_field():
    """The caller sees its own mistake; the server stays up."""
    reply = TestClient(greeter().setup_webserver()).post("/greet", json={"whom": "Ada"})

    assert reply.status_code == 422
    assert reply.json()["detail"][0]["loc"] == ["body", "who"]


# -- requests with additional fields ---------------------------------------------------------------------------------


class AllowingSeedRequest(BaseSeedSessionRequest):
    model_config = ConfigDict(extra="allow")


class AllowingSeedResponse(BaseSeedSessionResponse):
    board: list[int]


class SumsRunRequest(BaseRunRequest):
    expected_answer: int


class SumsVerifyRequest(SumsRunRequest, BaseVerifyRequest):
    pass


class SumsVerifyResponse(SumsVerifyRequest, BaseVerifyResponse):
    extracted: str


class Sums(SimpleResourcesServer):
    config: BaseResourcesServerConfig

    async def seed_session(self, request: Request, body: AllowingSeedRequest) -> AllowingSeedResponse:
        assert request.session[SESSION_ID_KEY]
        return AllowingSeedResponse(board=[body.model_extra["size"]])

    async def verify(self, request: Request, body: SumsVerifyRequest) -> SumsVerifyResponse:
        assert request.session[SESSION_ID_KEY]
        text = body.response.output_text
        right = text.strip() == str(body.expected_answer)
        return SumsVerifyResponse(**body.model_dump(), reward=float(right), extracted=text)


def test_a_verifier_declares_its_own_fields_and_gets_them():
    """The body is parsed by the annotation of the overriding method, extra fields and all."""
    server = Sums(config=BaseResourcesServerConfig(**PLACE), server_client=MagicMock(spec=ServerClient))
    client = TestClient(server.setup_webserver())
    row = {"responses_create_params": {"input": "2+2"}, "expected_answer": 4, "ignored": True}

    verdict = client.post("/verify", json={**row, "response": answer("4")}).json()

    assert (verdict["reward"], verdict["extracted"], verdict["expected_answer"]) == (1.0, "4", 4)
    assert verdict["response"]["output"][0]["content"][0]["text"] == "4"
    assert client.post("/verify", json={"responses_create_params": {"input": ""}}).status_code == 422
    assert client.post("/seed_session", json={"size": 9}).json() == {"board": [9]}


@pytest.mark.asyncio
async def test_verify_can_be_called_without_a_web_server():
    """Most verifier tests await the method itself."""
    request = BaseVerifyRequest(
        responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input=[{"role": "user", "content": "hi"}]),
        response=NeMoGymResponse(**answer("hello")),
    )

    verdict = await greeter().verify(request)

    assert verdict.reward == 1.0
    assert verdict.responses_create_params.input[0].content == "hi"


# -- types ------------------------------------------------------------------------------------------------------------


def test_items_are_objects_built_by_keyword_and_read_by_attribute():
    """Verifiers walk `response.output` and compare types and fields."""
    text = NeMoGymResponseOutputText(annotations=[], text="four", type="output_text")
    message = NeMoGymResponseOutputMessage(id="msg_1", content=[text])

    response = NeMoGymResponse(**{**answer("x"), "output": [message]})

    assert response.output_text == "four"
    assert response.output[0].content[0].text == "four"
    assert isinstance(response.output[0], NeMoGymResponseOutputMessage)


def test_a_response_survives_dump_copy_and_rebuild():
    """`Verdict(**body.model_dump(), reward=…)` rebuilds a response from its own dump in every verifier."""
    response = NeMoGymResponse(**answer("four"))

    again = NeMoGymResponse(**response.model_dump())
    changed = response.model_copy(update={"output": []})

    assert again == response
    assert changed.output_text == "" and response.output_text == "four"


def test_only_what_was_given_is_dumped_when_asked():
    """The client sends `exclude_unset` dumps; a default that leaks into them changes what the model is asked."""
    params = NeMoGymResponseCreateParamsNonStreaming(input=[{"role": "user", "content": "hi"}], temperature=0.5)

    assert params.model_dump(exclude_unset=True) == {
        "input": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
    }
    assert isinstance(params.input[0], NeMoGymEasyInputMessage)
