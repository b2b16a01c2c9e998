"""General commands as functions, for scripts of earlier versions."""

from pydantic import Field

from nemo_gym.cli.scripts import run_command_line
from nemo_gym.config_types import BaseNeMoGymCLIConfig


class VersionConfig(BaseNeMoGymCLIConfig):
    """Print the version and what this installation stands on."""

    json_format: bool = Field(default=False, alias="json", description="Print JSON.")


def version() -> None:
    """`gym --version` with this process's arguments."""
    run_command_line("--version")
