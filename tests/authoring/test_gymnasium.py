"""The gymnasium protocol: reset, steps, a verdict over all steps, one episode per session."""

from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from nemo_gym.authoring.gymnasium import GymnasiumServer, extract_text, split_turns
from nemo_gym.authoring.model_replies import text_response
from nemo_gym.authoring.verifier_cases import offline_server
from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.server_utils import ServerClient

ROW = {"responses_create_params": {"input": "Count down."}, "start": 3}


class Start(BaseModel):
    start: int


class Countdown(GymnasiumServer):
    """Every turn that says "down" earns half a point and counts one down; zero is the end."""

    REPLAYS: ClassVar[bool] = True
    ROW: ClassVar[type[BaseModel]] = Start

    async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[str | None, dict[str, Any]]:
        self.save_state(session_id, metadata["start"])
        return str(metadata["start"]), {"left": metadata["start"]}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        if extract_text(action) == "explode":
            return None, float("nan"), True, False, {}
        left = self.load_state(session_id) - 1
        self.save_state(session_id, left)
        text = extract_text(action)
        return str(left), 0.5 * (text == "down"), left == 0, text == "stop", {"left": left}


class Forgetful(Countdown):
    REPLAYS: ClassVar[bool] = False


def client(kind: type[GymnasiumServer] = Countdown, **settings: Any) -> TestClient:
    server = offline_server(kind, **settings)
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    return TestClient(app)


def item(text: str) -> dict[str, Any]:
    return text_response(text)["output"][0]


def whole_response(*texts: str) -> dict[str, Any]:
    """A response of several turns with an observation between each two."""
    items: list[dict[str, Any]] = []
    for text in texts:
        items += [{"type": "message", "role": "user", "content": "2"}] if items else []
        items.append(item(text))
    return {**text_response(""), "output": items}


def step(http: TestClient, text: str = "down") -> dict[str, Any]:
    return http.post("/step", json={**ROW, "response": text_response(text)}).json()


def verify(http: TestClient, *texts: str) -> dict[str, Any]:
    return http.post("/verify", json={**ROW, "response": whole_response(*texts)}).json()


def test_an_episode_is_reset_stepped_and_verified() -> None:
    """The verdict is the sum of what the steps earned, counted by the environment."""
    http = client(Forgetful)

    assert http.post("/reset", json=ROW).json() == {"observation": "3", "info": {"left": 3}}
    answers = [step(http, text) for text in ("down", "up", "down")]

    assert [answer["observation"] for answer in answers] == ["2", "1", "0"]
    assert [answer["reward"] for answer in answers] == [0.5, 0.0, 0.5]
    assert [answer["terminated"] for answer in answers] == [False, False, True]
    verdict = verify(http, "anything")
    assert (verdict["reward"], verdict["steps"], verdict["terminated"], verdict["info"]) == (1.0, 3, True, {"left": 0})


def test_without_its_session_an_episode_is_replayed() -> None:
    """Stored rollouts can be verified again, and get the same verdict."""
    assert verify(client(), "down", "up", "down")["reward"] == 1.0
    assert verify(client(), "down")["truncated"] is True
    assert verify(client(), "down", "down", "down", "down", "down")["steps"] == 3


def test_a_verdict_without_a_session_is_refused_where_episodes_cannot_be_replayed() -> None:
    """A lost session is a failure, never a reward."""
    answer = client(Forgetful).post("/verify", json={**ROW, "response": whole_response("down", "down", "down")})

    assert answer.status_code == 409
    assert "no episode" in answer.text


def test_a_response_without_turns_is_one_silent_turn() -> None:
    """Saying nothing must not be worth more than the agent would have got for it."""
    verdict = verify(client())

    assert (verdict["reward"], verdict["steps"]) == (0.0, 1)


@pytest.mark.parametrize("before", [[], ["/reset", "/step", "/step", "/step"]])
def test_a_step_needs_an_episode_that_goes_on(before: list[str]) -> None:
    """A step without an episode would earn a reward that no episode explains."""
    http = client()
    for path in before:
        http.post(path, json={**ROW, "response": text_response("down")})

    assert http.post("/step", json={**ROW, "response": text_response("down")}).status_code == 409


def test_two_sessions_play_their_own_episodes() -> None:
    """Thousands of rollouts use one server at once."""
    app = offline_server(Countdown).setup_webserver()
    ada, bob = TestClient(app), TestClient(app)
    for http in (ada, bob):
        http.post("/reset", json=ROW)

    step(ada)
    assert (step(ada)["observation"], step(bob)["observation"]) == ("1", "2")


def test_a_reset_begins_anew() -> None:
    """A retried rollout must not inherit what the attempt before earned."""
    http = client(Forgetful)
    for _ in range(2):
        http.post("/reset", json=ROW)
        step(http)

    assert verify(http)["reward"] == 0.5


def test_abandoned_episodes_are_dropped() -> None:
    """Agents die; memory has a bound."""
    app = offline_server(Countdown, max_sessions=2).setup_webserver()
    clients = [TestClient(app) for _ in range(3)]
    for http in clients:
        http.post("/reset", json=ROW)

    answers = [http.post("/step", json={**ROW, "response": text_response("x")}) for http in clients]

    assert [answer.status_code for answer in answers] == [409, 200, 200]


class Recorder(Countdown):
    """Stores the fields that `reset` gets."""

    ROW: ClassVar[type[BaseModel]] = GymnasiumServer.ROW

    async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[str | None, dict[str, Any]]:
        await super().reset(metadata, session_id)
        return None, {"fields": sorted(metadata)}


def test_an_environment_gets_the_fields_of_its_row_alone() -> None:
    """Many build their game from them, `Game(**metadata)`; a field of ours would be an unknown argument."""
    reply = client(Recorder).post("/reset", json={**ROW, "_ng_rollout_id": "4-0"})

    assert reply.json()["info"]["fields"] == ["start"]


def test_a_row_without_its_fields_is_a_422() -> None:
    """The data is at fault, on every route."""
    broken = {"responses_create_params": {"input": "x"}, "start": "soon", "response": text_response("down")}

    answers = [client().post(path, json=broken) for path in ("/reset", "/step", "/verify")]

    assert [answer.status_code for answer in answers] == [422, 422, 422]
    assert all("start" in answer.text for answer in answers)


def test_a_reward_that_is_not_a_number_is_a_failure() -> None:
    """NaN must not reach a mean."""
    http = client()
    http.post("/reset", json=ROW)
    answer = http.post("/step", json={**ROW, "response": text_response("explode")})

    assert answer.status_code == 500
    assert "nan" in answer.text


def test_the_items_between_observations_are_one_turn() -> None:
    """A turn may be reasoning, a message and a call; a tool's output ends it as a message of the user does."""
    call = {"type": "function_call", "name": "move", "arguments": "{}", "call_id": "c1"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "moved"}
    user = {"type": "message", "role": "user", "content": "next"}
    items = [item("a"), call, call, output, output, item("b"), item("c"), user, user, item("d"), user]
    response = NeMoGymResponse.model_validate({**text_response(""), "output": items})

    assert [[one.type for one in turn.output] for turn in split_turns(response)] == [
        ["message", "function_call", "function_call"],
        ["message", "message"],
        [],
        ["message"],
        [],
    ]


def test_an_empty_answer_is_a_turn() -> None:
    """An empty answer was a step in the episode, so it is one in the replay."""
    http = client()
    observations = [{"type": "message", "role": "user", "content": left} for left in ("2", "1")]
    episode = {**text_response(""), "output": [item("down"), *observations, item("down")]}
    answer = http.post("/verify", json={**ROW, "response": episode}).json()

    assert (answer["reward"], answer["steps"], answer["terminated"]) == (1.0, 3, True)


def test_where_episodes_can_be_replayed_the_response_decides() -> None:
    """The verdict is the same in its session, without one and in another one."""
    http = client()
    http.post("/reset", json=ROW)
    step(http, "up")

    assert verify(http, "down", "up", "down")["reward"] == verify(client(), "down", "up", "down")["reward"] == 1.0


def test_text_is_read_without_its_reasoning() -> None:
    """An action named while thinking is not taken."""
    read = [
        extract_text(NeMoGymResponse.model_validate(text_response(text)))
        for text in ("<think>x</think>y", "<think>x", "")
    ]

    assert read == ["y", "", ""]


class Guessing(GymnasiumServer):
    """An environment as existing folders write it: a mapping of states, and fields in `verifier_metadata`."""

    async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[str, dict[str, Any]]:
        self.session_state[session_id] = {"number": metadata["number"], "left": 2}
        return "Guess.", {"nested": metadata["verifier_metadata"]}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        state = self.session_state[session_id]
        state["left"] -= 1
        is_right = extract_text(action) == str(metadata["number"]) == str(state["number"])
        return "Again.", float(is_right), is_right, not state["left"], {}


def existing_config() -> BaseResourcesServerConfig:
    return BaseResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="guessing")


def test_a_plain_configuration_of_a_resources_server_is_enough() -> None:
    """Tests of existing environments build their servers with the base class of configurations."""
    server = Guessing(config=existing_config(), server_client=MagicMock(spec=ServerClient))

    assert (server.config.name, server.config.max_sessions) == ("guessing", 10_000)


def test_fields_of_the_verifier_metadata_are_metadata() -> None:
    """Existing rows have their fields there, and environments read them at either level."""
    server = Guessing(config=existing_config(), server_client=MagicMock(spec=ServerClient))
    http = TestClient(server.setup_webserver())
    row = {"responses_create_params": {"input": "?"}, "verifier_metadata": {"number": 4}}

    assert http.post("/reset", json=row).json()["info"] == {"nested": {"number": 4}}
    answers = [
        http.post("/step", json={**row, "response": text_response(text)}).json()["reward"] for text in ("3", "4")
    ]

    assert answers == [0.0, 1.0]
    assert http.post("/verify", json={**row, "response": text_response("4")}).json()["reward"] == 1.0
    assert not server.session_state


def test_the_mapping_of_states_holds_the_states_of_the_episodes() -> None:
    """A state that outlived its episode would fill the memory of a long run."""
    server = Guessing(config=existing_config(), server_client=MagicMock(spec=ServerClient))
    server.session_state["s"] = {"left": 1}

    assert (dict(server.session_state), server.load_state("s")) == ({"s": {"left": 1}}, {"left": 1})
    assert server.session_state.pop("s") == {"left": 1}
    with pytest.raises(KeyError):
        server.session_state.pop("s")
    assert server.session_state.get("missing") is None
