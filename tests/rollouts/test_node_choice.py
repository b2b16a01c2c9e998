"""A client of servers on several nodes sends each rollout to the least loaded node, where it stays."""

import asyncio

import pytest
from omegaconf import OmegaConf

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ServerUnreachable
from nemo_gym.rollouts.node_choice import NodeClients
from nemo_gym.rollouts.rollout_sender import node_clients, run_on_agent
from nemo_gym.serve.head import HeadServerUnreachable
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import in_process, run_token

pytestmark = pytest.mark.asyncio
AGENT = {"a": {"responses_api_agents": {"mine": {"entrypoint": "app.py", "host": "127.0.0.1", "port": 1}}}}
NODES = {"node-1": {"a": ["127.0.0.1", 1]}, "node-2": {"a": ["127.0.0.1", 2]}}


def client_of(**config):
    head = BaseServerConfig(host="127.0.0.1", port=31000)
    return ServerClient(head_server_config=head, global_config_dict=OmegaConf.create({**AGENT, **config}))


async def test_rollouts_are_spread_and_a_dead_node_is_avoided():
    """A dead node answers fastest, with an error: it must not get every rollout."""
    now = [0.0]
    nodes = NodeClients(client_of(node_addresses=NODES), clock=lambda: now[0])
    async with nodes.least_loaded() as first, nodes.least_loaded() as second:
        ports = {one.global_config_dict.a.responses_api_agents.mine.port for one in (first, second)}
        assert ports == {1, 2}
        assert set(nodes.in_flight.values()) == {1}

    with pytest.raises(ServerUnreachable):
        async with nodes.least_loaded():
            raise ServerUnreachable("gone", where="a")
    for _ in range(3):
        async with nodes.least_loaded() as other:
            assert other.global_config_dict.a.responses_api_agents.mine.port == 2
    now[0] = 11.0
    async with nodes.least_loaded() as first:
        assert first.global_config_dict.a.responses_api_agents.mine.port == 1


async def test_clients_of_one_machine_have_no_nodes():
    """The path of a single machine stays as it was."""
    assert node_clients(client_of()) is None


async def test_every_node_gets_its_part_of_the_rollouts_with_the_token():
    """Existing trainers call `run_examples`; they need not know that there are several nodes."""
    seen, release = [], asyncio.Event()

    def app(port):
        async def answer(scope, receive, send):
            await receive()
            seen.append(port)
            if len(seen) == 4:
                release.set()
            await release.wait()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/json")]})
            await send({"type": "http.response.body", "body": b'{"reward": 1.0}'})

        return answer

    run_token.adopt([("127.0.0.1", 31000)], "token-of-the-run-1234")
    for port in (1, 2):
        in_process.mount("127.0.0.1", port, app(port))
    try:
        client = client_of(node_addresses=NODES)
        rows = [{"agent_ref": {"name": "a"}, "n": number} for number in range(4)]
        results = await asyncio.gather(*[run_on_agent(client, row) for row in rows])
    finally:
        for port in (1, 2):
            in_process.unmount("127.0.0.1", port)
        token = run_token.token_for("127.0.0.1", 2)
        run_token.forget([("127.0.0.1", port) for port in (1, 2, 31000)])

    assert results == [{"reward": 1.0}] * 4
    assert sorted(seen) == [1, 1, 2, 2]
    assert token == "token-of-the-run-1234"


async def test_a_node_that_returns_with_other_addresses_is_used(monkeypatch):
    """Else a training of days ends on the one node that was never restarted."""
    now, requests = [0.0], []
    later = OmegaConf.to_yaml(
        OmegaConf.create({"node_addresses": {"node-2": NODES["node-2"], "node-1.2": {"a": ["127.0.0.1", 3]}}})
    )

    def fetch(host, port, _timeout):
        requests.append((host, port))
        if len(requests) == 1:
            raise HeadServerUnreachable("restarting", where="head")
        return later

    monkeypatch.setattr("nemo_gym.rollouts.node_choice.fetch_config_yaml", fetch)
    nodes = NodeClients(client_of(node_addresses=NODES), clock=lambda: now[0])
    with pytest.raises(ServerUnreachable):
        async with nodes.least_loaded() as first:
            raise ServerUnreachable("gone", where="a")
    assert first.global_config_dict.a.responses_api_agents.mine.port == 1
    async with nodes.least_loaded():  # the list is read in the background: the head does not answer
        await nodes._reading
    assert nodes.clients.keys() == NODES.keys()
    now[0] = 31.0
    async with nodes.least_loaded() as old, nodes.least_loaded():
        await nodes._reading
        assert nodes.clients.keys() == {"node-2", "node-1.2"}
        async with nodes.least_loaded() as new:
            assert new.global_config_dict.a.responses_api_agents.mine.port == 3

    assert old.global_config_dict.a.responses_api_agents.mine.port == 1
    assert set(nodes.in_flight.values()) == {0}
    assert requests == [("127.0.0.1", 31000)] * 2
