# mypy: implicit-reexport
# ruff: noqa: F401 - the imported names are the public names of this package
"""Manifests, and `verifier_fixture`, under their public names; the implementation is in `nemo_gym.authoring`."""

from nemo_gym.authoring.manifest import (
    EnvironmentManifest,
    dump_manifest,
    manifest_json_schema,
    resolve_manifest_config_path,
)
from nemo_gym.authoring.manifest import Kind as EnvironmentKind
from nemo_gym.authoring.manifest import Profile as IntegrationProfile
from nemo_gym.authoring.manifest import read_manifest as load_manifest
