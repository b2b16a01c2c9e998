"""Read server instances from a configuration: their addresses (cached), run token, entrypoints and validated blocks."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nemo_gym.config.checks import check_server_block
from nemo_gym.config.instances import is_server_block, server_instances
from nemo_gym.errors import ConfigError, ServerRefNotFoundError
from nemo_gym.serve.correlation import needs_rollout_ids
from nemo_gym.transport import run_token
from nemo_gym.transport.run_token import address_key

logger = logging.getLogger("nemo_gym.serve")

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True)
class Address:
    """Type, host and port of a server instance."""

    name: str
    server_type: str
    host: str
    port: int

    @cached_property
    def is_model(self) -> bool:
        """True for model servers. They keep nothing between calls, so that a call may be sent again."""
        return self.server_type == "responses_api_models"

    @cached_property
    def base_url(self) -> str:
        return base_url(self.host, self.port)

    @cached_property
    def key(self) -> tuple[str, int]:
        """Key of this address in `transport.in_process`."""
        return address_key(self.host, self.port)


class AddressBook(dict[str, Address]):
    """Maps instance names of one configuration to addresses, which are read on first use."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.needs_rollout_ids = needs_rollout_ids(config)

    def __missing__(self, name: str) -> Address:
        address = self[name] = address_of(self.config, name)
        return address


def base_url(host: str, port: int) -> str:
    """Return `http://host:port`, with brackets around an IPv6 address."""
    return f"http://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"http://{host}:{port}"


def server_type_and_block(config: Mapping[str, Any], name: str) -> tuple[str, Any]:
    """Return the server type and the implementation block of an instance; only the first key at each level counts.

    Raises:
        ServerRefNotFoundError: the configuration does not define the instance.
    """
    instance = config.get(name) if isinstance(name, str) else None
    if not isinstance(instance, Mapping) or not instance:
        names = [str(key) for key, value in config.items() if is_server_block(value)]
        raise ServerRefNotFoundError(
            f"unknown server instance {name!r}", fix="one of " + ", ".join(names) if names else "define it"
        )
    server_type = next(iter(instance))
    implementations = instance[server_type]
    return str(server_type), implementations[next(iter(implementations))]


def address_of(config: Mapping[str, Any], name: str) -> Address:
    """Return the address of an instance.

    Raises:
        ServerRefNotFoundError: the configuration does not define the instance.
        ConfigError: the instance has no host or port.
    """
    server_type, block = server_type_and_block(config, name)
    host, port = block.get("host"), block.get("port")
    if not isinstance(host, str) or not isinstance(port, int):
        raise ConfigError("the instance has no host and port", where=name, fix="start the servers or set both")
    return Address(name, server_type, host, port)


def run_addresses(config: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return host and port of the head server and of every instance; None for a value that is not set."""
    blocks = [config.get("head_server") or {}, *(instance.fields for instance in server_instances(config).values())]
    return [(block.get("host"), block.get("port")) for block in blocks]


def adopt_run_token(config: Mapping[str, Any], token: str | None) -> None:
    """Send the run token with the requests of this process to the servers of a configuration."""
    if token:
        run_token.adopt(run_addresses(config), token)


def entrypoint_of(config: Mapping[str, Any], name: str) -> str:
    """Return `<type>/<implementation>/<entrypoint>` of an instance."""
    server_type, block = server_type_and_block(config, name)
    return f"{server_type}/{next(iter(config[name][server_type]))}/{block['entrypoint']}"


def validate_config(config_class: type[ModelT], values: Mapping[str, Any], instance: str) -> ModelT:
    """Return `values`, the block of `instance`, as an object of its config class; log warnings.

    Raises:
        ConfigError: a value is invalid. The message has the field names but not the values, which may be secret.
    """
    for problem in check_server_block((instance,), values, config_class):
        if problem.is_warning:
            logger.warning("%s: %s", instance, problem)
    try:
        return config_class.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors(include_input=False)
        )
        raise ConfigError(f"not a valid {config_class.__name__}: {problems}", where=instance) from None
