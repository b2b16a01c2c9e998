"""`gym --version` as a function, for scripts of earlier versions."""

from pydantic import Field

from nemo_gym.cli.legacy import command_function
from nemo_gym.config_types import BaseNeMoGymCLIConfig


class VersionConfig(BaseNeMoGymCLIConfig):
    """Print the versions of NeMo Gym, Python and important packages."""

    json_format: bool = Field(default=False, alias="json", description="Print JSON.")


version = command_function("--version")
