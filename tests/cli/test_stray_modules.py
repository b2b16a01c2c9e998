"""Commands import nothing from the working directory: it may be a download that the user only wants to look at."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAP = "import os, pathlib\npathlib.Path(os.environ['TRAP_FILE']).open('a').write(__file__ + '\\n')\n"
STRAY_MODULES = """
    json yaml logging asyncio orjson pydantic omegaconf aiohttp uvloop hydra rich app prepare sitecustomize
    usercustomize wandb mlflow mcp ray yappi numpy pandas torch tests conftest responses_api_agents
"""
SERVER = TRAP + (
    "from nemo_gym import SimpleResourcesServer, BaseResourcesServerConfig\n"
    "class C(BaseResourcesServerConfig):\n    level: int\n"
    "class S(SimpleResourcesServer):\n    HOSTING = 'cell'\n    config: C\n"
    "    async def verify(self, body): ...\n"
    "if __name__ == '__main__':\n    S.run_webserver()\n"
)
CONFIG = "bait:\n  resources_servers:\n    bait:\n      entrypoint: app.py\n      domain: math\n      level: 3\n"
MODEL = ("+policy_base_url=http://127.0.0.1:9/v1", "+policy_api_key=k1", "+policy_model_name=m")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in STRAY_MODULES.split():
        (tmp_path / f"{name}.py").write_text(TRAP)
    metadata = tmp_path / "stray-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stray\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[nemo_gym.exporters]\nwandb2 = app:X\n")
    server = tmp_path / "resources_servers" / "bait"
    server.mkdir(parents=True)
    (server / "app.py").write_text(SERVER)
    (tmp_path / "bait.yaml").write_text(CONFIG)
    return tmp_path


def _run(folder: Path, *words: str) -> tuple[str, str]:
    """Run the command in the folder; return the stray modules that were imported, and the output."""
    trap = folder / "imported.txt"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "NEMO_GYM"))}
    env |= {"TRAP_FILE": str(trap), "XDG_CACHE_HOME": str(folder / "cache")}
    gym = Path(sys.executable).with_name("gym")
    done = subprocess.run([gym, *words], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr
    return trap.read_text() if trap.exists() else "", done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("list", "environments"),
        ("env", "validate", "--config", "bait.yaml"),
        ("env", "resolve", "--config", "bait.yaml", "--model-type", "openai_model", *MODEL),
        ("env", "status"),
        ("env", "doctor", "--offline"),
        ("eval", "run", "--dry-run", "--environment", "arithmetic", "--model-type", "openai_model", *MODEL),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_no_command_imports_a_stray_module_of_the_working_directory(folder, command):
    """A `json.py`, or a package with an entry point, in a downloaded folder ran as the user."""
    imported, _ = _run(folder, *command)

    assert imported == ""


def test_validate_imports_a_server_of_the_working_directory_only_on_request(folder):
    """The check of its fields needs its code, so the user decides, and the output names what was not checked."""
    _, output = _run(folder, "env", "validate", "--config", "bait.yaml")
    assert "--import" in output and "bait" in output

    imported, output = _run(
        folder, "env", "validate", "--import", "--config", "bait.yaml", "++bait.resources_servers.bait.level=x"
    )
    assert imported.splitlines() == [str(folder / "resources_servers" / "bait" / "app.py")]
    assert "'level'" in output
