"""The former module of `nemo_gym.cli.setup_command`; its names are still available here, with a warning."""

from nemo_gym.cli.legacy import moved_names

__getattr__ = moved_names(__name__, {"nemo_gym.cli.setup_command": ("run_command", "setup_env_command")})
