"""A dry run constructs every server in its virtual environment and serves nothing."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.launch.run import construct_servers
from nemo_gym.launch.supervisor import ServerDidNotStart

pytestmark = pytest.mark.asyncio

SERVER = """
    import sys
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer

    class Mine(SimpleResourcesServer):
        {hosting}
        config: BaseResourcesServerConfig

        def model_post_init(self, context):
            super().model_post_init(context)
            print("constructed in", sys.prefix)
            {then}

        def setup_webserver(self):
            raise AssertionError("a dry run must not get here")

        async def verify(self, body):
            raise NotImplementedError

    if __name__ == "__main__":
        Mine.run_webserver()
"""


def write_server(root: Path, name: str, then: str = "", hosting: str = "") -> Path:
    folder = root / "resources_servers" / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(textwrap.dedent(SERVER).format(then=then, hosting=hosting))
    (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
    return folder


def config_for(root: Path, *names: str) -> DictConfig:
    settings = {"entrypoint": "app.py", "domain": "other", "host": "127.0.0.1", "port": -1}
    blocks = {name: {"resources_servers": {name: dict(settings)}} for name in names}
    head = {"host": "127.0.0.1", "port": 11000}
    return OmegaConf.create({"head_server": head, "skip_venv_if_present": True, **blocks})


async def test_every_server_is_constructed_where_it_would_run(
    tmp_path: Path, make_venv: Callable[[Path], Path]
) -> None:
    """A container image is checked before it is shipped: a wrong import or setting must show now."""
    made = make_venv(write_server(tmp_path, "alone", hosting='HOSTING = "venv"') / ".venv")
    write_server(tmp_path, "shared", hosting='HOSTING = "cell"')
    lines: list[tuple[str, str]] = []

    instances = await construct_servers(
        config_for(tmp_path, "alone", "shared"), [tmp_path], watch=lambda name, line: lines.append((name, line))
    )

    assert [instance.name for instance in instances] == ["alone", "shared"]
    assert ("alone", f"constructed in {made}") in lines
    assert [name for name, line in lines if line.startswith("constructed")] == ["alone", "shared"]


async def test_every_server_that_cannot_be_constructed_is_named(tmp_path: Path) -> None:
    """One round of fixes must be enough."""
    write_server(tmp_path, "first", then="raise RuntimeError('no licence')")
    write_server(tmp_path, "second")
    write_server(tmp_path, "third", then="import no_such_module")
    write_server(tmp_path, "fourth")
    config = config_for(tmp_path, "first", "second", "third", "fourth")
    config.fourth.resources_servers.fourth.domain = "no such domain"

    with pytest.raises(ServerDidNotStart, match="3 of 4 servers") as raised:
        await construct_servers(config, [tmp_path])

    assert "first: " in str(raised.value) and "no licence" in str(raised.value)
    assert "third: ModuleNotFoundError: No module named 'no_such_module'" in str(raised.value)
    assert "fourth" in str(raised.value) and "domain" in str(raised.value)
