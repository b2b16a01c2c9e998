"""The endpoints that model servers call: wait until they answer, and limit concurrent requests to them.

The limits hold across all processes of a run.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from nemo_gym.config.checks import read_key
from nemo_gym.config.instances import instances_of
from nemo_gym.config.secret_text import mask_text
from nemo_gym.errors import ConfigError
from nemo_gym.launch.hosted_instances import Instance
from nemo_gym.transport import shared_semaphore
from nemo_gym.transport.shared_semaphore import SharedSemaphore

TIMEOUT_KEY = "model_endpoint_readiness_timeout_seconds"
LIMIT_KEY = "max_concurrent_requests"

PAUSE_SECONDS = 1.0
"""Pause between two probes of an endpoint."""
CALL_SECONDS = 5.0
"""Timeout of one probe."""
NOTICE_SECONDS = 3.0
"""Waiting time after which the user is notified."""
REPEATED_NOTICE_SECONDS = 30.0
"""Interval of further notices."""

LimitDescriptors = dict[str, list[tuple[int, int]]]
"""Name of a limited instance -> (counter, ledger) descriptors of the semaphore of each of its endpoints."""


@dataclass(frozen=True)
class Endpoint:
    """The URL of a model endpoint and the path of the configuration key that sets it."""

    key: str
    url: str

    @property
    def probe_url(self) -> str:
        """A URL of this endpoint that every OpenAI-compatible server answers."""
        return f"{self.url.rstrip('/')}/models" if self.url.rstrip("/").endswith("/v1") else self.url


def model_endpoints(config: Mapping[str, Any]) -> list[Endpoint]:
    """Return the endpoints of every model server in a resolved configuration (plain data), each URL once."""
    endpoints: dict[str, Endpoint] = {}
    for model in instances_of(config, "responses_api_models"):
        for key, url in _base_urls(model.fields):
            endpoints.setdefault(url, Endpoint(".".join((*model.path, key)), url))
    return list(endpoints.values())


def _base_urls(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key and the URL of every `…base_url` setting, which has one URL or a list of them."""
    for key, value in settings.items():
        if str(key).endswith("base_url"):
            urls = [value] if isinstance(value, str) else value or ()
            yield from ((str(key), str(url)) for url in urls if url)


async def wait_for_endpoints(config: Mapping[str, Any], notify: Callable[[str], None]) -> None:
    """Return when every model endpoint answers; any HTTP response counts, even an error status.

    Raises:
        ConfigError: endpoints do not answer in time or their hosts have no address; it names their configuration keys.
    """
    timeout = float(read_key(config, TIMEOUT_KEY))
    endpoints = model_endpoints(config)
    if timeout <= 0 or not endpoints:
        return
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_SECONDS)) as session:
        problems = await asyncio.gather(*[_wait_for(session, endpoint, timeout, notify) for endpoint in endpoints])
    pairs = zip(endpoints, problems, strict=True)
    failures = [mask_text(f"{endpoint.url} ({endpoint.key}): {problem}") for endpoint, problem in pairs if problem]
    if failures:
        raise ConfigError(
            "the model does not answer: " + "; ".join(failures),
            fix=f"start it, correct the address, or set +{TIMEOUT_KEY}=0 to skip this check",
        )


async def _wait_for(
    session: aiohttp.ClientSession, endpoint: Endpoint, seconds: float, notify: Callable[[str], None]
) -> str | None:
    """Return None as soon as the endpoint answers; its problem after `seconds`, or at once if the problem is final."""
    loop = asyncio.get_running_loop()
    start, next_notice = loop.time(), NOTICE_SECONDS
    while True:
        problem, is_final = await _probe(session, endpoint)
        waited = loop.time() - start
        if problem is None or is_final or waited + PAUSE_SECONDS > seconds:
            return problem
        if waited >= next_notice:
            next_notice = waited + REPEATED_NOTICE_SECONDS
            notify(mask_text(f"waiting up to {seconds - waited:.0f} s for the model at {endpoint.url} ({problem})"))
        await asyncio.sleep(PAUSE_SECONDS)


async def _probe(session: aiohttp.ClientSession, endpoint: Endpoint) -> tuple[str | None, bool]:
    """Return the problem with an endpoint (None if it answers), and True if waiting would not change this result."""
    try:
        async with session.get(endpoint.probe_url, allow_redirects=False):
            return None, True
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, aiohttp.ClientResponseError):
        return None, True  # a server answers; the first real call reports certificate and protocol errors
    except aiohttp.ClientConnectorDNSError:
        return "its host name cannot be resolved", True
    except aiohttp.InvalidURL:
        return "not a URL", True
    except (aiohttp.ClientError, OSError) as error:  # OSError includes timeouts and failed name lookups
        cause = getattr(error, "os_error", error)
        if isinstance(cause, ConnectionRefusedError) or "Connect call failed" in str(cause):
            return "nothing listens there", False
        return str(getattr(error, "strerror", None) or error or type(error).__name__), False


class SharedLimits:
    """Semaphores for every endpoint of the model servers that have a limit and run in several processes."""

    def __init__(self, config: Mapping[str, Any], instances: Sequence[Instance], cells: int) -> None:
        self._cell_instances = {instance.name for instance in instances if instance.hosting == "cell"}
        self._semaphores: dict[str, list[SharedSemaphore]] = {}
        for instance in instances:
            limit = config[instance.name][instance.kind][instance.implementation].get(LIMIT_KEY)
            holders = cells if instance.hosting == "cell" else instance.num_workers
            if holders > 1 and isinstance(limit, int) and limit > 0:
                # A model server without a configured URL has one endpoint.
                endpoints = max(1, len(model_endpoints({instance.name: config[instance.name]})))
                max_holders = holders + len(self._cell_instances)  # each instance may get a separate cell
                self._semaphores[instance.name] = [SharedSemaphore.create(limit, max_holders) for _ in range(endpoints)]

    def descriptors(self) -> LimitDescriptors:
        """Return the descriptors that server processes inherit."""
        return {name: [(one.counter, one.ledger) for one in group] for name, group in self._semaphores.items()}

    def release(self, request: Mapping[str, Any]) -> None:
        """Release the slots held by a process that has ended; `request` is the spawn request that started it."""
        is_cell = request["kind"] == "cell"
        names = self._cell_instances if is_cell else {request["instance"]}
        for name in names & self._semaphores.keys():
            for semaphore in self._semaphores[name]:
                semaphore.release_holder(request["cell"] if is_cell else request["worker"])

    def close(self) -> None:
        for group in self._semaphores.values():
            for semaphore in group:
                semaphore.close()
        self._semaphores.clear()


def adopt_limits(descriptors: LimitDescriptors, names: set[str], holder: int) -> None:
    """Use the inherited semaphores of the instances `names`; `holder` is the number of this cell or worker."""
    for name in names & descriptors.keys():
        shared_semaphore.adopt_semaphores(
            name, [SharedSemaphore(counter, ledger, holder) for counter, ledger in descriptors[name]]
        )
