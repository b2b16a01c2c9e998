"""The protocol: reset, steps, a verdict over them, one episode for each session."""

from typing import Any, ClassVar

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from nemo_gym.environment.verifier_fixture import offline_server, said
from nemo_gym.openai_utils import NeMoGymResponse
from resources_servers.gymnasium import GymnasiumServer, extract_text
from resources_servers.gymnasium.server import turns

ROW = {"responses_create_params": {"input": "Count down."}, "start": 3}


class Start(BaseModel):
    start: int


class Countdown(GymnasiumServer):
    """Every turn that says "down" earns half a point and counts one down; zero is the end."""

    REPLAYS: ClassVar[bool] = True
    ROW: ClassVar[type[BaseModel]] = Start

    async def reset(self, metadata: dict[str, Any], session_id: str) -> tuple[str | None, dict[str, Any]]:
        self.keep(session_id, metadata["start"])
        return str(metadata["start"]), {"left": metadata["start"]}

    async def step(
        self, action: NeMoGymResponse, metadata: dict[str, Any], session_id: str
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        if extract_text(action) == "explode":
            return None, float("nan"), True, False, {}
        left = self.kept(session_id) - 1
        self.keep(session_id, left)
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
    return said(text)["output"][0]


def whole(*texts: str) -> dict[str, Any]:
    """A response of several turns with an observation between each two."""
    items: list[dict[str, Any]] = []
    for text in texts:
        items += [{"type": "message", "role": "user", "content": "2"}] if items else []
        items.append(item(text))
    return {**said(""), "output": items}


def step(http: TestClient, text: str = "down") -> dict[str, Any]:
    return http.post("/step", json={**ROW, "response": said(text)}).json()


def verify(http: TestClient, *texts: str) -> dict[str, Any]:
    return http.post("/verify", json={**ROW, "response": whole(*texts)}).json()


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


def test_without_its_session_an_episode_is_played_again() -> None:
    """Stored rollouts can be verified again, and get the same verdict."""
    assert verify(client(), "down", "up", "down")["reward"] == 1.0
    assert verify(client(), "down")["truncated"] is True
    assert verify(client(), "down", "down", "down", "down", "down")["steps"] == 3


def test_an_environment_that_cannot_play_again_says_so() -> None:
    """A lost session is a failure, never a reward."""
    answer = client(Forgetful).post("/verify", json={**ROW, "response": whole("down", "down", "down")})

    assert answer.status_code == 409
    assert "no episode" in answer.text


def test_a_response_without_turns_is_one_silent_turn() -> None:
    """Saying nothing must not be worth more than the agent would have got for it."""
    verdict = verify(client())

    assert (verdict["reward"], verdict["steps"]) == (0.0, 1)


@pytest.mark.parametrize("before", [[], ["/reset", "/step", "/step", "/step"]])
def test_a_step_needs_an_episode_that_goes_on(before: list[str]) -> None:
    """Steps into nothing would earn rewards nobody can explain."""
    http = client()
    for path in before:
        http.post(path, json={**ROW, "response": said("down")})

    assert http.post("/step", json={**ROW, "response": said("down")}).status_code == 409


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
    everybody = [TestClient(app) for _ in range(3)]
    for http in everybody:
        http.post("/reset", json=ROW)

    answers = [http.post("/step", json={**ROW, "response": said("x")}) for http in everybody]

    assert [answer.status_code for answer in answers] == [409, 200, 200]


def test_a_row_without_its_fields_is_a_422() -> None:
    """The data is at fault, on every route."""
    broken = {"responses_create_params": {"input": "x"}, "start": "soon", "response": said("down")}

    answers = [client().post(path, json=broken) for path in ("/reset", "/step", "/verify")]

    assert [answer.status_code for answer in answers] == [422, 422, 422]
    assert all("start" in answer.text for answer in answers)


def test_a_reward_that_is_no_number_is_a_failure() -> None:
    """NaN must not reach a mean."""
    http = client()
    http.post("/reset", json=ROW)
    answer = http.post("/step", json={**ROW, "response": said("explode")})

    assert answer.status_code == 500
    assert "nan" in answer.text


def test_what_lies_between_observations_is_one_turn() -> None:
    """A turn may be reasoning, a message and a call; a tool's output ends it as a message of the user does."""
    call = {"type": "function_call", "name": "move", "arguments": "{}", "call_id": "c1"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "moved"}
    user = {"type": "message", "role": "user", "content": "next"}
    items = [item("a"), call, call, output, output, item("b"), item("c"), user, user, item("d"), user]
    response = NeMoGymResponse.model_validate({**said(""), "output": items})

    assert [[one.type for one in turn.output] for turn in turns(response)] == [
        ["message", "function_call", "function_call"],
        ["message", "message"],
        [],
        ["message"],
        [],
    ]


def test_a_model_that_was_silent_had_its_turn() -> None:
    """An empty answer was a step when it was played, so it is one when it is played again."""
    http = client()
    seen = [{"type": "message", "role": "user", "content": left} for left in ("2", "1")]
    played = {**said(""), "output": [item("down"), *seen, item("down")]}
    answer = http.post("/verify", json={**ROW, "response": played}).json()

    assert (answer["reward"], answer["steps"], answer["terminated"]) == (1.0, 3, True)


def test_where_episodes_can_be_played_again_the_response_decides() -> None:
    """The verdict is the same in its session, in none and in somebody else's."""
    http = client()
    http.post("/reset", json=ROW)
    step(http, "up")

    assert verify(http, "down", "up", "down")["reward"] == verify(client(), "down", "up", "down")["reward"] == 1.0


def test_text_is_read_without_its_reasoning() -> None:
    """An action named while thinking is not taken."""
    read = [extract_text(NeMoGymResponse.model_validate(said(text))) for text in ("<think>x</think>y", "<think>x", "")]

    assert read == ["y", "", ""]
