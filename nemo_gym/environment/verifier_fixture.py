# ruff: noqa: F403 - the public names of this module are those of `nemo_gym.verifier_fixture`
"""Verifier fixtures under the name of their module in NeMo Gym 0.5."""

from nemo_gym.verifier_fixture import *
