"""`gym dev`: work on NeMo Gym itself, one module per command."""

from nemo_gym.cli.legacy import command_function

dev_test = command_function("dev", "test")
"""For scripts written for earlier versions."""
