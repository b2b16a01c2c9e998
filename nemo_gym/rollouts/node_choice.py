"""Choose a node for each rollout, for clients of servers that run on several nodes (`gym env start --engine ray`).

The head server lists the addresses on every node in its configuration. A rollout goes to the node to which this client
has the fewest rollouts in flight, and stays there: its agent calls the servers of the same node. Clients that do not
know the list use the addresses of one node, which the configuration has for every server.
"""

import copy
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.instances import server_instances
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.errors import ServerUnreachable
from nemo_gym.serve.addresses import adopt_run_token
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import run_token

NODES_KEY = "node_addresses"
"""Key of the head's configuration: node -> instance -> [host, port]."""
_CACHE_NAME = "_node_clients"
AVOID_SECONDS = 10.0
"""A node that did not answer gets no rollouts for this long, if there are others."""


class NodeClients:
    """One client for each node, with its rollouts in flight."""

    def __init__(self, client: ServerClient, clock: Callable[[], float] = time.monotonic) -> None:
        config = as_dict(client.global_config_dict)
        head = client.head_server_config
        token = run_token.token_for(head.host, head.port)
        self._clock = clock
        self.clients: dict[str, ServerClient] = {}
        self.in_flight: dict[str, int] = {}
        self._avoided_until: dict[str, float] = {}
        for node, addresses in config[NODES_KEY].items():
            own = copy.deepcopy(config)
            for instance in server_instances(own).values():
                name, kind, implementation = instance.path
                if name in addresses:
                    own[name][kind][implementation] |= dict(zip(("host", "port"), addresses[name], strict=True))
            own_config = OmegaConf.create(own)
            assert isinstance(own_config, DictConfig)
            adopt_run_token(own_config, token)
            self.clients[node] = ServerClient(head_server_config=head, global_config_dict=own_config)
            self.in_flight[node] = 0

    @asynccontextmanager
    async def least_loaded(self) -> AsyncIterator[ServerClient]:
        """Yield the client of the node with the fewest rollouts in flight."""
        now = self._clock()
        node = min(self.clients, key=lambda one: (self._avoided_until.get(one, 0.0) > now, self.in_flight[one]))
        self.in_flight[node] += 1
        try:
            yield self.clients[node]
        except ServerUnreachable:
            self._avoided_until[node] = self._clock() + AVOID_SECONDS
            raise
        finally:
            self.in_flight[node] -= 1


def node_clients(client: ServerClient) -> NodeClients | None:
    """Return the clients of the nodes; None if the servers of a client run on one machine."""
    cache = vars(client)  # as `cached_property` does: read for every rollout
    if _CACHE_NAME not in cache:
        config = client.global_config_dict
        has_nodes = isinstance(config, DictConfig) and config.get(NODES_KEY)
        cache[_CACHE_NAME] = NodeClients(client) if has_nodes else None
    clients: NodeClients | None = cache[_CACHE_NAME]
    return clients
