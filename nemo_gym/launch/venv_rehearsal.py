"""A dry run: make every environment, import and construct each server in it, one after the other, and serve nothing."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.launch.hosting import boot_message
from nemo_gym.launch.instances import Instance, instances
from nemo_gym.launch.logs import Log, follow
from nemo_gym.launch.spawn import ExecSpawner
from nemo_gym.launch.supervisor import ServerDidNotStart, likely_cause
from nemo_gym.launch.venv import VenvSettings, environments_for, inside
from nemo_gym.launch.venv_build import build_all

MOST_BYTES = 64 * 1024
LONGEST = 600.0
"""Seconds one server may take to be constructed."""


async def rehearse(
    config: DictConfig, roots: Sequence[Path], *, watch: Callable[[str, str], None] | None = None
) -> list[Instance]:
    """Construct every server of `config` without serving; the instances that were constructed.

    Raises:
        ServerDidNotStart: names every server that could not be, with its last lines.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True)
    found = instances({str(key): value for key, value in plain.items()}, roots)
    settings = VenvSettings.from_config(config)
    environments = environments_for(found, settings)
    await build_all(environments.values(), settings, watch)
    rehearsed = OmegaConf.merge(config, {"dry_run": True})
    assert isinstance(rehearsed, DictConfig)
    failures = []
    for instance in found:
        environment = environments.get(instance.name)
        python = environment.python if environment else Path(sys.executable)
        env = inside(environment, instance.folder.parent.parent, os.environ) if environment else dict(os.environ)
        failure = await _construct(instance, rehearsed, python, env, watch)
        failures += [failure] if failure else []
    if failures:
        raise ServerDidNotStart(
            "\n".join(failures), where=f"{len(failures)} of {len(found)} servers", fix="read the lines above"
        )
    return found


async def _construct(
    instance: Instance,
    config: DictConfig,
    python: Path,
    env: Mapping[str, str],
    watch: Callable[[str, str], None] | None,
) -> str | None:
    """Construct one server in a process of its own; why it could not be, if so."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    nothing = os.open(os.devnull, os.O_RDWR)  # stands where a listening socket would: nobody gets that far
    (output, output_write), (ready, ready_write) = os.pipe(), os.pipe()
    log = Log(instance.name, None, watch)
    spoken = await follow(log, output)
    boot = boot_message(config, [instance], {instance.name: nothing}, [], {})
    spawner = ExecSpawner(python, boot, [nothing], env, lambda _, status: ended.set_result(status))
    try:
        try:
            await spawner.spawn({"kind": "process", "instance": instance.name}, output_write, ready_write)
        finally:
            os.close(output_write)
            os.close(ready_write)
        status = await asyncio.wait_for(ended, LONGEST)
        await asyncio.wait_for(spoken, LONGEST)
        return _reason(instance.name, status, os.read(ready, MOST_BYTES), log.tail()) if status else None
    except TimeoutError:
        return f"{instance.name}: not constructed after {LONGEST:g} s; last lines:\n{log.tail()}"
    except OSError as error:
        return f"{instance.name}: {python} cannot be run: {error.strerror}"
    finally:
        await spawner.close()
        os.close(nothing)
        os.close(ready)


def _reason(name: str, status: int, report: bytes, tail: str) -> str:
    """What the process said of its failure, else what its end tells."""
    said = json.loads(report).get("failed") if report else None
    return f"{name}: {said}" if said else f"{name}: {likely_cause(status, tail)}; last lines:\n{tail}"
