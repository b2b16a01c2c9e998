"""Check that a resources server keeps the rules of sessions: seeds and closes can be repeated, closed stays closed."""

from typing import Any
from uuid import uuid4

from fastapi import FastAPI
from fastapi.testclient import TestClient

from nemo_gym.keys import CLOSE_PATH
from nemo_gym.wire.session_requests import ResourcesSeedSessionRequest

SEED_PATH = "/seed_session"


def check_resources_session_contract(app: FastAPI, seed: Any, *, keeps_state: bool) -> None:
    """Seed and close sessions of `app` in this process; `seed` is a `ResourcesSeedSessionRequest`.

    A server that keeps state per session must refuse a seed that arrives after the end of its session.

    Raises:
        AssertionError: an answer breaks a rule.
    """
    body = ResourcesSeedSessionRequest.model_validate(
        seed.model_dump() if isinstance(seed, ResourcesSeedSessionRequest) else seed
    )
    other = body.model_copy(update={"resources_session_id": f"never-seeded-{uuid4().hex}"})
    with TestClient(app) as client:
        for _ in range(2):
            _check_answer(client, SEED_PATH, body)
        for _ in range(2):
            _check_answer(client, CLOSE_PATH, body)
        _check_answer(client, CLOSE_PATH, other)
        if keeps_state:
            for closed in (body, other):
                status = client.post(SEED_PATH, json=closed.model_dump(mode="json")).status_code
                assert status >= 400, f"a seed after the end of its session got the status {status}"


def _check_answer(client: TestClient, path: str, session: ResourcesSeedSessionRequest) -> None:
    """Seed or close a session; its answer must be 200 and name the session."""
    fields = None if path == SEED_PATH else {"resources_session_id", "episode_id"}
    answer = client.post(path, json=session.model_dump(mode="json", include=fields))
    assert answer.status_code == 200, f"{path} got the status {answer.status_code}: {answer.text}"
    answered_id = answer.json().get("resources_session_id")
    assert answered_id == session.resources_session_id, f"{path} answered the session {answered_id!r}"
