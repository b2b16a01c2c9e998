# ruff: noqa: F403 - the public names of this module are those of `wire.observations`
"""Observations that agents report, under their public names. A facade over `wire.observations`."""

from nemo_gym.wire.observations import *
