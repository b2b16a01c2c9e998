"""Servers in environments of their own: real processes, real interpreters, and once a real registry."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.errors import ConfigError
from nemo_gym.launch.run import Run
from nemo_gym.launch.supervisor import ServerDidNotStart
from nemo_gym.launch.venv_build import InstallFailed, interpreter, uv_executable
from tests.processes import is_gone, until

pytestmark = pytest.mark.asyncio

SERVER = """
    import os, sys
    {imports}
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer

    class Mine(SimpleResourcesServer):
        config: BaseResourcesServerConfig

        def setup_webserver(self):
            app = super().setup_webserver()
            app.get("/tell")(self.tell)
            return app

        async def tell(self) -> dict:
            return {tells}

        async def verify(self, body):
            raise NotImplementedError

    if __name__ == "__main__":
        Mine.run_webserver()
"""
PLACE = '{"prefix": sys.prefix, "cwd": os.getcwd(), "pid": os.getpid(), "virtual": os.environ["VIRTUAL_ENV"]}'


def write_folder(root: Path, name: str, *requirements: str, imports: str = "", tells: str = PLACE) -> Path:
    folder = root / "resources_servers" / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "app.py").write_text(textwrap.dedent(SERVER).format(imports=imports, tells=tells))
    (folder / "requirements.txt").write_text("\n".join(["-e nemo-gym[dev] @ ../../", *requirements, ""]))
    return folder


def config_for(tmp_path: Path, *names: str, **keys: Any) -> DictConfig:
    settings = {"entrypoint": "app.py", "domain": "other", "host": "127.0.0.1", "port": -1, "hosting": "venv"}
    blocks = {name: {"resources_servers": {name: dict(settings)}} for name in names}
    head = {"host": "127.0.0.1", "port": 0}
    return OmegaConf.create({"head_server": head, "cache_dir": str(tmp_path / "cache"), **keys, **blocks})


async def told(run: Run, name: str) -> dict[str, Any]:
    address = next(f"http://{one.host}:{one.port}" for one in run.instances if one.name == name)
    async with aiohttp.ClientSession() as session, session.get(f"{address}/tell") as answer:
        return dict(await answer.json())


async def test_an_isolated_server_runs_in_its_environment_and_folder(
    tmp_path: Path, make_environment: Callable[[Path], Path]
) -> None:
    """Its interpreter, its working directory, its tools; and back again after a crash."""
    folder = write_folder(tmp_path, "alone")
    made = make_environment(folder / ".venv")

    async with Run(config_for(tmp_path, "alone", skip_venv_if_present=True), [tmp_path]) as run:
        before = await told(run, "alone")
        os.kill(before["pid"], signal.SIGKILL)
        async with asyncio.timeout(30):
            while run.server_instances()[0]["pid"] in (before["pid"], None):  # noqa: ASYNC110 - a foreign process
                await asyncio.sleep(0.02)
        after = await told(run, "alone")

    assert (before["prefix"], before["cwd"], before["virtual"]) == (str(made), str(folder), str(made))
    assert after["prefix"] == str(made) and after["pid"] != before["pid"]


async def test_an_isolated_server_that_does_not_come_up_is_named(
    tmp_path: Path, make_environment: Callable[[Path], Path]
) -> None:
    """The message is the same whichever interpreter it was."""
    make_environment(write_folder(tmp_path, "broken", imports="import no_such_module") / ".venv")

    with pytest.raises(ServerDidNotStart, match=r"broken: .*No module named 'no_such_module'"):
        async with Run(config_for(tmp_path, "broken", skip_venv_if_present=True), [tmp_path]):
            pass


async def test_an_isolated_server_ends_with_its_parent(
    tmp_path: Path, make_environment: Callable[[Path], Path]
) -> None:
    """`kill -9` of the command leaves no server in any environment."""
    make_environment(write_folder(tmp_path, "alone") / ".venv")
    script = f"""
        import asyncio, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_venv_run import Path, Run, config_for

        async def main():
            folder = Path({str(tmp_path)!r})
            async with Run(config_for(folder, "alone", skip_venv_if_present=True), [folder]) as run:
                print(run.server_instances()[0]["pid"], flush=True)
                await asyncio.sleep(600)

        asyncio.run(main())
    """
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(script), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())

    parent.kill()
    await parent.wait()

    await until(lambda: is_gone(pid))


@pytest.fixture(scope="module")
def uv() -> Path:
    try:
        return uv_executable()
    except ConfigError:
        pytest.skip("uv is not installed")


@pytest.fixture(scope="module")
def _registry(uv: Path) -> None:
    """Skips where a small question to the package registry is not answered soon."""
    question = [str(uv), "pip", "compile", "--no-deps", "--quiet", "-"]
    try:
        asked = subprocess.run(question, input=b"math-verify==0.8.0\n", capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the package registry did not answer within 20 s")
    if asked.returncode:
        pytest.skip(f"the package registry did not answer: {asked.stderr.decode()[-200:]}")


MATH = """{"version": version("math-verify"), "prefix": sys.prefix,
                    "equal": verify(parse("$1/2$"), parse("$0.5$")), "unequal": verify(parse("$1$"), parse("$2$"))}"""


@pytest.mark.network
@pytest.mark.usefixtures("_registry")
async def test_two_versions_of_one_package_answer_side_by_side(tmp_path: Path) -> None:
    """The reason environments exist: graders that cannot agree on a version of their library."""
    imports = "from importlib.metadata import version; from math_verify import parse, verify"
    for name, wanted in (("old", "0.7.0"), ("new", "0.8.0")):
        write_folder(tmp_path, name, f"math-verify=={wanted}", imports=imports, tells=MATH)
    config = config_for(tmp_path, "old", "new")

    async with Run(config, [tmp_path]) as run:
        answers = await asyncio.gather(told(run, "old"), told(run, "new"))

    assert [answer["version"] for answer in answers] == ["0.7.0", "0.8.0"]
    assert [(answer["equal"], answer["unequal"]) for answer in answers] == [(True, False)] * 2
    assert answers[0]["prefix"] != answers[1]["prefix"]


@pytest.mark.network
@pytest.mark.usefixtures("_registry")
async def test_a_server_runs_on_the_python_it_asks_for(tmp_path: Path) -> None:
    """A library that has not caught up with our Python, or is ahead of it, is no reason to stay away."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    others = [wanted for wanted in ("3.11", "3.12", "3.13", "3.14") if wanted != ours and interpreter(wanted) != wanted]
    if not others:
        pytest.skip("this machine has one Python")
    folder = write_folder(tmp_path, "pinned", tells='{"version": "%d.%d" % sys.version_info[:2]}')
    (folder / "requirements.txt").unlink()
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "pinned"\nversion = "1"\nrequires-python = "=={others[0]}.*"\ndependencies = ["nemo-gym"]\n'
    )

    async with Run(config_for(tmp_path, "pinned"), [tmp_path]) as run:
        answer = await told(run, "pinned")

    assert answer == {"version": others[0]}


@pytest.mark.network
@pytest.mark.usefixtures("_registry")
async def test_a_requirement_that_does_not_exist_is_explained(tmp_path: Path) -> None:
    """uv's own words are kept, the server and the way out are ours."""
    write_folder(tmp_path, "greedy", "math-verify==99.0")

    with pytest.raises(InstallFailed, match="requirements cannot be met") as raised:
        async with Run(config_for(tmp_path, "greedy"), [tmp_path]):
            pass

    assert raised.value.where == "greedy"
    assert "math-verify==99.0" in str(raised.value)


@pytest.mark.usefixtures("uv")
async def test_an_unreachable_registry_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed port stands for every way a network can be down."""
    for name in ("UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    write_folder(tmp_path, "remote", "math-verify==0.8.0")
    config = config_for(tmp_path, "remote", uv_cache_dir=str(tmp_path / "empty"))

    with pytest.raises(InstallFailed, match="the package registry cannot be reached") as raised:
        async with Run(config, [tmp_path]):
            pass

    assert raised.value.where == "remote"
    assert raised.value.status > 0
