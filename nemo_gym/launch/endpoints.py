"""Whether the endpoints that model servers forward to answer, asked before a run depends on them."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from nemo_gym.errors import ConfigError

DEFAULT_TIMEOUT = 600.0
TIMEOUT_KEY = "model_endpoint_readiness_timeout_seconds"
PAUSE, LONGEST_CALL, FIRST_WORD = 1.0, 5.0, 3.0


@dataclass(frozen=True)
class Endpoint:
    """A URL and the configuration key that names it."""

    key: str
    url: str

    @property
    def probe(self) -> str:
        """Where to ask: something every OpenAI-compatible server answers."""
        return f"{self.url.rstrip('/')}/models" if self.url.rstrip("/").endswith("/v1") else self.url


def model_endpoints(config: Mapping[str, Any]) -> list[Endpoint]:
    """The endpoints of every model server in a resolved configuration (plain data), each URL once."""
    found: dict[str, Endpoint] = {}
    for name, block in config.items():
        models = block.get("responses_api_models") if isinstance(block, Mapping) else None
        for implementation, settings in (models or {}).items():
            for key, url in _urls(settings):
                path = f"{name}.responses_api_models.{implementation}.{key}"
                found.setdefault(url, Endpoint(path, url))
    return list(found.values())


def _urls(settings: Any) -> Iterator[tuple[str, str]]:
    for key, value in settings.items() if isinstance(settings, Mapping) else ():
        if str(key).endswith("base_url"):
            for url in [value] if isinstance(value, str) else value or ():
                if url:
                    yield str(key), str(url)


async def wait_for_endpoints(config: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Return when every model endpoint answers; any HTTP answer counts, also a refusal.

    Raises:
        ConfigError: one does not answer in time, or its host has no address; with the keys that name them.
    """
    given = config.get(TIMEOUT_KEY)
    limit = DEFAULT_TIMEOUT if given is None else float(given)
    endpoints = model_endpoints(config)
    if limit <= 0 or not endpoints:
        return
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LONGEST_CALL)) as session:
        problems = await asyncio.gather(*[_awaited(session, endpoint, limit, say) for endpoint in endpoints])
    asked = zip(endpoints, problems, strict=True)
    silent = [f"{endpoint.url} ({endpoint.key}): {problem}" for endpoint, problem in asked if problem]
    if silent:
        raise ConfigError(
            "the model does not answer: " + "; ".join(silent),
            fix=f"start it, correct the address, or set +{TIMEOUT_KEY}=0 to go on without asking",
        )


async def _awaited(
    session: aiohttp.ClientSession, endpoint: Endpoint, limit: float, say: Callable[[str], None]
) -> str | None:
    """None as soon as the endpoint answers, or why it did not."""
    loop = asyncio.get_running_loop()
    began, told = loop.time(), False
    while True:
        problem = await _problem(session, endpoint)
        waited = loop.time() - began
        if problem is None or isinstance(problem, _NoSuchHost) or waited + PAUSE > limit:
            return problem
        if waited >= FIRST_WORD and not told:
            told = True
            say(f"waiting up to {limit:g} s for the model at {endpoint.url} ({problem})")
        await asyncio.sleep(PAUSE)


class _NoSuchHost(str):
    """A problem that waiting does not cure."""

    __slots__ = ()


async def _problem(session: aiohttp.ClientSession, endpoint: Endpoint) -> str | None:
    try:
        async with session.get(endpoint.probe, allow_redirects=False):
            return None
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError, aiohttp.ClientResponseError):
        return None  # somebody is there; what they think of us is for the first real call to say
    except aiohttp.ClientConnectorDNSError:
        return _NoSuchHost("its host has no address")
    except aiohttp.InvalidURL:
        return _NoSuchHost("not a URL")
    except (aiohttp.ClientError, TimeoutError, socket.gaierror, OSError) as error:
        return str(getattr(error, "strerror", None) or error or type(error).__name__)
