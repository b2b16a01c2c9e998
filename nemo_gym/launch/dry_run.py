"""A dry run: build every virtual environment and construct each server in it, one after the other, without serving."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.launch.hosting import Instance, find_instances
from nemo_gym.launch.logs import LineCallback
from nemo_gym.launch.server_process import ServerBoot
from nemo_gym.launch.settings import VenvSettings
from nemo_gym.launch.start_process import ExecSpawner
from nemo_gym.launch.supervisor import ServerDidNotStart, ServerUnit, Supervisor
from nemo_gym.launch.venv import instance_venvs, venv_process_env
from nemo_gym.launch.venv_build import build_venvs
from nemo_gym.launch.zygote import ZygoteSpec

CONSTRUCT_SECONDS = 600.0
"""Timeout for constructing one server."""


async def construct_servers(
    config: DictConfig, roots: Sequence[Path], *, watch: LineCallback | None = None
) -> list[Instance]:
    """Construct every server of `config` without serving and return the instances.

    Raises:
        ServerDidNotStart: servers could not be constructed, with their names and last lines.
    """
    instances = find_instances(as_dict(config), roots)
    settings = VenvSettings.from_config(config)
    venvs = instance_venvs(instances, settings)
    await build_venvs(venvs.values(), settings, watch)
    dry_config = OmegaConf.merge(config, {"dry_run": True})
    assert isinstance(dry_config, DictConfig)
    supervisor = Supervisor(on_line=watch, start_timeout=CONSTRUCT_SECONDS)
    null = os.open(os.devnull, os.O_RDWR)  # in place of the listening socket, which a dry run does not use
    failures = []
    try:
        for instance in instances:
            venv = venvs.get(instance.name)
            python = venv.python if venv else Path(sys.executable)
            env = venv_process_env(venv, instance.folder.parent.parent, os.environ) if venv else os.environ
            boot = ServerBoot(dry_config, {instance.name: instance}, {instance.name: null})
            spec = ZygoteSpec(boot.to_json(), boot.descriptors(), env)
            spawner = ExecSpawner(python, spec, supervisor.handle_exit)
            request = {"kind": "process", "instance": instance.name}
            try:
                await supervisor.start([ServerUnit(instance.name, request, spawner, ends_when_ready=True)])
            except ServerDidNotStart as failure:
                failures.append(str(failure))
            except OSError as error:
                failures.append(f"{instance.name}: {python} cannot be run: {error.strerror}")
    finally:
        await supervisor.stop()
        os.close(null)
    if failures:
        raise ServerDidNotStart(
            "\n".join(failures), where=f"{len(failures)} of {len(instances)} servers", fix="read the lines above"
        )
    return instances
