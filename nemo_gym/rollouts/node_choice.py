"""Choose a node for each rollout, for clients of servers that run on several nodes (`gym env start --engine ray`).

The head server lists the addresses on every node in its configuration, which is read again every `READ_SECONDS`. A
rollout goes to the node to which this client has the fewest rollouts in flight, and stays there: its agent calls the
servers of the same node. Clients that do not know the list use the addresses of one node, which the configuration has
for every server.
"""

import asyncio
import copy
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.config.instances import server_instances
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.errors import GymError, ServerUnreachable
from nemo_gym.serve.addresses import adopt_run_token
from nemo_gym.serve.head import fetch_config_yaml
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import run_token

logger = logging.getLogger("nemo_gym.rollouts")

NODES_KEY = "node_addresses"
"""Key of the head's configuration: node -> instance -> [host, port]."""
AVOID_SECONDS = 10.0
"""A node that did not answer gets no rollouts for this long, if there are others."""

READ_SECONDS = 30.0
"""Age of the list of nodes from which it is read again: nodes join, and those that return have other addresses."""


class NodeClients:
    """One client for each node, with its rollouts in flight."""

    def __init__(self, client: ServerClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = as_dict(client.global_config_dict)
        self._head = client.head_server_config
        self._clock = clock
        self._read_at = clock()
        self._reading: asyncio.Task[None] | None = None
        self.clients: dict[str, ServerClient] = {}
        self.in_flight: dict[str, int] = {}
        """Also of nodes that ended: they may have rollouts that did not notice it yet."""
        self._avoided_until: dict[str, float] = {}
        self._adopt_nodes(self._config[NODES_KEY])

    def _adopt_nodes(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """Use these nodes and no others. A node that was started again has another name."""
        new = {name: self._client_of(addresses) for name, addresses in nodes.items() if name not in self.clients}
        self.clients = {name: one for name, one in {**self.clients, **new}.items() if name in nodes}
        self.in_flight |= {name: self.in_flight.get(name, 0) for name in new}

    def _client_of(self, addresses: Mapping[str, Any]) -> ServerClient:
        own = copy.deepcopy(self._config)
        for instance in server_instances(own).values():
            name, kind, implementation = instance.path
            if name in addresses:
                own[name][kind][implementation] |= dict(zip(("host", "port"), addresses[name], strict=True))
        own_config = OmegaConf.create(own)
        assert isinstance(own_config, DictConfig)
        adopt_run_token(own_config, run_token.token_for(self._head.host, self._head.port))
        return ServerClient(head_server_config=self._head, global_config_dict=own_config)

    def _read_again_if_due(self) -> None:
        """Start reading the nodes from the head server: every READ_SECONDS, and after a node did not answer."""
        is_reading = self._reading is not None and not self._reading.done()
        if not is_reading and self._clock() - self._read_at > READ_SECONDS:
            self._read_at = self._clock()
            self._reading = asyncio.create_task(self._read_nodes())

    async def _read_nodes(self) -> None:
        try:
            text = await asyncio.to_thread(fetch_config_yaml, self._head.host, self._head.port, AVOID_SECONDS)
            nodes = as_dict(OmegaConf.create(text)).get(NODES_KEY)
        except (GymError, OmegaConfBaseException, yaml.YAMLError) as error:
            logger.debug("the nodes cannot be read: %s", error)  # the nodes known so far may still answer
            return
        if nodes:
            self._adopt_nodes(nodes)

    @asynccontextmanager
    async def least_loaded(self) -> AsyncIterator[ServerClient]:
        """Yield the client of the node with the fewest rollouts in flight."""
        self._read_again_if_due()
        now = self._clock()
        node = min(self.clients, key=lambda one: (self._avoided_until.get(one, 0.0) > now, self.in_flight[one]))
        client = self.clients[node]
        self.in_flight[node] += 1
        try:
            yield client
        except ServerUnreachable:
            self._avoided_until[node] = self._clock() + AVOID_SECONDS
            self._read_at = float("-inf")
            raise
        finally:
            self.in_flight[node] -= 1
