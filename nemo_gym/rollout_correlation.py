# ruff: noqa: F403 - the public names of this module are those of `serve.correlation`
"""Rollout id of a request. Re-exports `nemo_gym.serve.correlation`."""

from nemo_gym.serve.correlation import *
