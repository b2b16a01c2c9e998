"""What kind of server a failure is attributed to: an instance's name, or the address of a model's provider."""

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from yarl import URL

from nemo_gym.keys import SERVER_TYPES
from nemo_gym.rollouts.classify import TypeOf

MODELS = "responses_api_models"


def server_types(config: Mapping[str, Any]) -> TypeOf:
    """Tells the server type of an instance of `config`.

    The address or URL of an endpoint that a model server forwards to (`*base_url`) counts as a model.
    """
    types: dict[str, str] = {}
    for name in config:
        block = _value(config, name)
        kind = next((kind for kind in SERVER_TYPES if isinstance(block, Mapping) and kind in block), None)
        if kind is None:
            continue
        types[str(name)] = kind
        if kind == MODELS:
            types.update(dict.fromkeys(_providers(_value(block, kind)), MODELS))

    def type_of(whom: str) -> str | None:
        return types.get(whom) or types.get(_address(whom) or "")

    return type_of


def _providers(implementations: Any) -> Iterator[str]:
    """Addresses of the endpoints that the implementations of a model server name."""
    for implementation in implementations.values() if isinstance(implementations, Mapping) else ():
        for key in implementation if isinstance(implementation, Mapping) else ():
            if not str(key).endswith("base_url"):
                continue
            value = _value(implementation, key)
            for url in [value] if isinstance(value, str) else value or ():
                address = _address(str(url))
                if address is not None:
                    yield address


def _address(text: str) -> str | None:
    """`host:port` of a URL, or of what already is that."""
    try:
        url = URL(text if "://" in text else f"http://{text}")
        return f"{url.host}:{url.port}" if url.host and url.port else None
    except ValueError:
        return None


def _value(container: Any, key: Any) -> Any:
    """A value, or None where it cannot be resolved: telling failures apart must not fail."""
    try:
        return container[key]
    except OmegaConfBaseException:
        return None
