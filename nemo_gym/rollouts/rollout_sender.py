"""Send a job to its agent, with the deadline, the limits, the captures and the tokens of its run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig

from nemo_gym.capture.store import capture_store
from nemo_gym.keys import AGENT_REF_KEY_NAME
from nemo_gym.rollouts.capture_join import with_captures
from nemo_gym.rollouts.collect import Send
from nemo_gym.rollouts.limit_options import LimitOptions
from nemo_gym.rollouts.node_choice import NODES_KEY, NodeClients
from nemo_gym.rollouts.outcome import Job
from nemo_gym.rollouts.token_delivery import TokenDelivery
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status
from nemo_gym.transport import call_timing, deadlines
from nemo_gym.transport.deadlines import ALLOWANCE_HEADER
from nemo_gym.wire.stored_rollout import Row

_CACHE_NAME = "_node_clients"


def rollout_sender(
    client: ServerClient,
    config: LimitOptions,
    settings: Mapping[str, Any],
    tokens: TokenDelivery | None = None,
    *,
    keep_replies: int | None = None,
    stored: bool = True,
) -> Send:
    """Return the function that sends a job to its agent with deadline and limits.

    It adds captures if they are on in `settings`, and captured tokens with `tokens`. With `keep_replies`, the
    caller's number, a cancelled rollout returns what was generated, and results go to a trainer. Results that are not
    `stored` by this process have their tokens deleted at once.
    """
    seconds = config.rollout_timeout_seconds
    allowance = replace(config.allowance, keep_replies=keep_replies) if keep_replies else config.allowance
    headers = {ALLOWANCE_HEADER: allowance.header_value()}

    async def send(job: Job) -> Any:
        call_timing.set_current_rollout(job.key.rollout_id)
        with deadlines.time_limit(seconds):
            return await run_on_agent(client, job.row, headers=headers)

    captures = capture_store(settings)
    sender = send if tokens is None else tokens.wrap(send, stored=stored and not keep_replies)
    return sender if captures is None else with_captures(sender, captures)


async def run_on_agent(client: ServerClient, row: Row, **options: Any) -> Any:
    """Send a row to its agent, on the least loaded node if there are several, and return the JSON of the answer."""
    nodes = node_clients(client)
    if nodes is not None:
        async with nodes.least_loaded() as node_client:
            return await _post_run(node_client, row, **options)
    return await _post_run(client, row, **options)


def node_clients(client: ServerClient) -> NodeClients | None:
    """Return the clients of the nodes; None if the servers of a client run on one machine."""
    cache = vars(client)  # as `cached_property` does: read for every rollout
    if _CACHE_NAME not in cache:
        config = client.global_config_dict
        has_nodes = isinstance(config, DictConfig) and config.get(NODES_KEY)
        cache[_CACHE_NAME] = NodeClients(client) if has_nodes else None
    clients: NodeClients | None = cache[_CACHE_NAME]
    return clients


async def _post_run(client: ServerClient, row: Row, **options: Any) -> Any:
    response = await client.post(server_name=row[AGENT_REF_KEY_NAME]["name"], url_path="/run", json=row, **options)
    await raise_for_status(response)
    return await get_response_json(response)
