"""The head server: who is there, and what the configuration says — without its secrets."""

import pytest
from fastapi.testclient import TestClient
from omegaconf import OmegaConf

from nemo_gym.cli.shared.live_file import MAX_QUERIED
from nemo_gym.serve.head import HeadServerUnreachable, fetch_config_yaml, head_app

CONFIG = OmegaConf.create(
    {
        "policy_api_key": "sk-secret-1",
        "policy_base_url": "http://h/v1",
        "max_output_tokens": 5,
        "env": {"resources_servers": {"sums": {"host": "127.0.0.1", "port": 1, "key": "${policy_api_key}"}}},
    }
)


@pytest.fixture
def client() -> TestClient:
    return TestClient(head_app(lambda: CONFIG, lambda: [{"process_name": "env", "port": 1}]))


def fetch_yaml(client: TestClient):
    text = client.get("/global_config_dict_yaml").json()
    assert isinstance(text, str)
    return OmegaConf.create(text)


def test_hosts_and_ports_are_told_and_secrets_are_not(client):
    """A client needs only addresses; servers of the run get the keys from their launcher, never from the head."""
    config = fetch_yaml(client)

    assert config.env.resources_servers.sums.port == 1
    assert config.max_output_tokens == 5
    assert config.policy_api_key == "****"
    assert "sk-secret-1" not in client.get("/global_config_dict_yaml").text


def test_instances_and_liveness(client):
    """`gym env status` and start-up polling depend on these two paths."""
    assert client.get("/server_instances").json() == [{"process_name": "env", "port": 1}]
    assert client.get("/").json() == {"status": "ok"}


def test_nobody_at_the_address_is_a_value_error_that_says_what_to_do():
    """The contract promises ValueError; a person needs to know which address was tried."""
    with pytest.raises(HeadServerUnreachable, match=r"127\.0\.0\.1:1\b") as caught:
        fetch_config_yaml("127.0.0.1", 1, 1.0)

    assert isinstance(caught.value, ValueError)
    assert "try: start the servers first" in str(caught.value)


def test_a_collector_elsewhere_can_ask_what_its_rollouts_wait_for():
    """A user sees which server a stuck rollout waits for, also from another process."""
    questions = []

    async def waiting_for(places):
        questions.append(places)
        return {(3, 1): "policy_model /v1/responses"}

    client = TestClient(head_app(lambda: CONFIG, list, waiting_for))
    answer = client.post("/rollouts_waiting_for", json=[[3, 1], [4, 0]])

    assert questions == [[(3, 1), (4, 0)]]
    assert answer.json() == [{"task": 3, "rollout": 1, "call": "policy_model /v1/responses"}]


def test_a_head_that_cannot_tell_says_nothing(client):
    """The progress display must go on without the detail, and a wrong question must not reach the servers."""
    assert client.post("/rollouts_waiting_for", json=[[0, 0]]).json() == []
    assert client.post("/rollouts_waiting_for", json="everything").status_code == 422
    assert client.post("/rollouts_waiting_for", json=[[n, 0] for n in range(1025)]).status_code == 422
    assert client.post("/rollouts_waiting_for", json=[[n, 0] for n in range(MAX_QUERIED)]).status_code == 200
