"""Rollout ids: from the body, through the path, into the context."""

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict

from nemo_gym.serve.app import create_app
from nemo_gym.serve.correlation import (
    ROLLOUT_ID,
    ROLLOUT_PREFIX_SCOPE_KEY,
    RolloutContextMiddleware,
    apply_rollout_prefix,
    current_rollout_id,
    current_token_capture,
    maybe_rollout_id_from_run_body,
    needs_rollout_ids,
    prefix_for_call,
    rollout_context,
    rollout_path_prefix,
)


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, None),
        ({"_ng_task_index": 3}, None),
        ({"_ng_task_index": 0, "_ng_rollout_index": 0}, "0-0"),
        ({"_ng_task_index": 3, "_ng_rollout_index": 1, "_ng_attempt_index": 0}, "3-1"),
        ({"_ng_task_index": 3, "_ng_rollout_index": 1, "_ng_attempt_index": 2}, "3-1-a2"),
        ({"_ng_rollout_id": "abc.X_1-z"}, "abc.X_1-z"),
        ({"_ng_rollout_id": "abc", "_ng_task_index": 1, "_ng_rollout_index": 1, "_ng_attempt_index": 1}, "abc-a1"),
        ({"_ng_task_index": True, "_ng_rollout_index": 1}, None),
        ({"_ng_task_index": 2.0, "_ng_rollout_index": 1}, "2-1"),
    ],
)
def test_the_id_of_a_run_request(body, expected):
    """Captures and retries are stored under this id; two attempts with one id would be mixed."""
    assert maybe_rollout_id_from_run_body(body) == expected
    assert maybe_rollout_id_from_run_body(Loose(**body)) == expected


@pytest.mark.parametrize("bad", ["", ".hidden", "../etc", "a/b", "a b", "ü", 7, ["x"]])
def test_an_explicit_id_that_is_no_file_name_is_refused(bad):
    """Capture files are called after it."""
    with pytest.raises(ValueError, match="_ng_rollout_id"):
        maybe_rollout_id_from_run_body({"_ng_rollout_id": bad})


def app_client() -> TestClient:
    app = create_app()
    app.add_middleware(RolloutContextMiddleware)

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def show(request: Request) -> dict[str, object]:
        return {
            "path": request.url.path,
            "id": current_rollout_id(),
            "tokens": current_token_capture(),
            "prefix": request.scope.get(ROLLOUT_PREFIX_SCOPE_KEY),
        }

    return TestClient(app)


def test_the_prefix_is_taken_off_and_remembered():
    """Handlers are written without the prefix, and their model calls need the id."""
    client = app_client()

    assert client.get("/ng-rollout/3-1/v1/responses").json() == {
        "path": "/v1/responses",
        "id": "3-1",
        "tokens": False,
        "prefix": "/ng-rollout/3-1",
    }
    assert client.get("/ng-rollout/x/training-token-capture/v1/responses?a=1").json() == {
        "path": "/v1/responses",
        "id": "x",
        "tokens": True,
        "prefix": "/ng-rollout/x/training-token-capture",
    }
    assert client.get("/ng-rollout/x").json()["path"] == "/"


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/ng-rollout", "/ng-rollout//x", "/ng-rollout/.x/y", "/a/ng-rollout/x"]
)
def test_a_path_without_a_proper_prefix_stays_as_it_is(path):
    """A rewritten path would give 404, or attach a call to a rollout that does not exist."""
    answer = app_client().get(path).json()

    assert (answer["path"], answer["id"]) == (path, None)


ONE_CLIENT = app_client()


@given(st.from_regex(ROLLOUT_ID, fullmatch=True), st.booleans())
@settings(max_examples=50, deadline=None)
def test_what_is_put_on_a_path_is_what_is_found_there(rollout_id: str, tokens: bool):
    """Any legal id survives the way through a URL, also one that looks like another part of it."""
    url = apply_rollout_prefix("http://h:1/v1", rollout_id, token_capture=tokens)
    answer = ONE_CLIENT.get(url.removeprefix("http://h:1")).json()

    assert (answer["path"], answer["id"], answer["tokens"]) == ("/v1", rollout_id, tokens)


def test_the_context_ends_where_it_began():
    """A leaked id would attach the calls of one rollout to another."""
    with rollout_context("a", token_capture=True):
        with rollout_context("b"):
            assert (current_rollout_id(), current_token_capture()) == ("b", False)
        assert (current_rollout_id(), current_token_capture()) == ("a", True)
    assert (current_rollout_id(), current_token_capture()) == (None, False)


def test_prefixes_of_nothing_are_nothing():
    """Without observability the URLs must stay those of the configuration."""
    assert rollout_path_prefix(None) == rollout_path_prefix("") == ""
    assert apply_rollout_prefix("http://h:1/v1", None) == "http://h:1/v1"
    assert apply_rollout_prefix("http://h:1", "7-0") == "http://h:1/ng-rollout/7-0"
    assert apply_rollout_prefix("http://h:1/v1/", "7-0") == "http://h:1/ng-rollout/7-0/v1"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, False),
        ({"observability_enabled": True}, True),
        ({"token_id_capture": {"enabled": True}}, True),
        ({"token_id_capture": {"enabled": False}}, False),
    ],
)
def test_rollouts_are_observed_when_something_wants_their_ids(config, expected):
    """Ids in paths cost time; without them captures cannot be assigned to a rollout."""
    assert needs_rollout_ids(config) is expected
    assert needs_rollout_ids(OmegaConf.create(config)) is expected


def test_which_calls_carry_the_rollout():
    """Everything a resources server is asked, the three model endpoints, and nothing else."""
    with rollout_context("3-1", token_capture=True):
        assert prefix_for_call("resources_servers", "/tool", None) == "/ng-rollout/3-1"
        assert (
            prefix_for_call("responses_api_models", "/v1/responses", None) == "/ng-rollout/3-1/training-token-capture"
        )
        assert prefix_for_call("responses_api_models", "/v1/models", None) == ""
        assert prefix_for_call("responses_api_agents", "/run", None) == ""
        assert prefix_for_call("resources_servers", "/ng-rollout/7-7/tool", None) == ""
    assert prefix_for_call("resources_servers", "/tool", None) == ""


def test_verify_may_bring_the_id_in_its_body():
    """Agents that call /verify without a context still get their judge calls captured."""
    body = {"_ng_task_index": 2, "_ng_rollout_index": 0}

    assert prefix_for_call("resources_servers", "/verify", body) == "/ng-rollout/2-0"
    assert prefix_for_call("resources_servers", "/tool", body) == ""
