"""Servers in virtual environments: real processes, real interpreters, and where possible a real registry."""

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
from nemo_gym.launch.venv_build import InstallFailed, find_interpreter, uv_executable
from tests.processes import is_gone, wait_until

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
PROCESS_INFO = '{"prefix": sys.prefix, "cwd": os.getcwd(), "pid": os.getpid(), "virtual": os.environ["VIRTUAL_ENV"]}'


def write_folder(root: Path, name: str, *requirements: str, imports: str = "", tells: str = PROCESS_INFO) -> Path:
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


async def call_tell(run: Run, name: str) -> dict[str, Any]:
    address = next(f"http://{one.host}:{one.port}" for one in run.instances if one.name == name)
    async with aiohttp.ClientSession() as session, session.get(f"{address}/tell") as answer:
        return dict(await answer.json())


async def test_an_isolated_server_runs_in_its_venv_and_folder(
    tmp_path: Path, make_venv: Callable[[Path], Path]
) -> None:
    """Its interpreter and working directory are its own, even after a crash."""
    folder = write_folder(tmp_path, "alone")
    made = make_venv(folder / ".venv")

    async with Run(config_for(tmp_path, "alone", skip_venv_if_present=True), [tmp_path]) as run:
        before = await call_tell(run, "alone")
        os.kill(before["pid"], signal.SIGKILL)
        async with asyncio.timeout(30):
            while run.server_instances()[0]["pid"] in (before["pid"], None):  # noqa: ASYNC110 - a foreign process
                await asyncio.sleep(0.02)
        after = await call_tell(run, "alone")

    assert (before["prefix"], before["cwd"], before["virtual"]) == (str(made), str(folder), str(made))
    assert after["prefix"] == str(made) and after["pid"] != before["pid"]


async def test_an_isolated_server_that_does_not_start_is_named(
    tmp_path: Path, make_venv: Callable[[Path], Path]
) -> None:
    """The message must not depend on the interpreter."""
    make_venv(write_folder(tmp_path, "broken", imports="import no_such_module") / ".venv")

    with pytest.raises(ServerDidNotStart, match=r"broken: .*No module named 'no_such_module'"):
        async with Run(config_for(tmp_path, "broken", skip_venv_if_present=True), [tmp_path]):
            pass


async def test_an_isolated_server_ends_with_its_parent(tmp_path: Path, make_venv: Callable[[Path], Path]) -> None:
    """`kill -9` of the command must not leave a server in a venv."""
    make_venv(write_folder(tmp_path, "alone") / ".venv")
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

    await wait_until(lambda: is_gone(pid))


@pytest.fixture(scope="module")
def uv() -> Path:
    try:
        return uv_executable()
    except ConfigError:
        pytest.skip("uv is not installed")


@pytest.fixture(scope="module")
def _registry(uv: Path) -> None:
    """Skip where the package registry does not answer a small request soon."""
    command = [str(uv), "pip", "compile", "--no-deps", "--quiet", "-"]
    try:
        done = subprocess.run(command, input=b"math-verify==0.8.0\n", capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the package registry did not answer within 20 s")
    if done.returncode:
        pytest.skip(f"the package registry did not answer: {done.stderr.decode()[-200:]}")


MATH = """{"version": version("math-verify"), "prefix": sys.prefix,
                    "equal": verify(parse("$1/2$"), parse("$0.5$")), "unequal": verify(parse("$1$"), parse("$2$"))}"""


@pytest.mark.network
@pytest.mark.usefixtures("_registry")
async def test_two_versions_of_one_package_run_side_by_side(tmp_path: Path) -> None:
    """The reason for venvs: graders that need different versions of a library."""
    imports = "from importlib.metadata import version; from math_verify import parse, verify"
    for name, version in (("old", "0.7.0"), ("new", "0.8.0")):
        write_folder(tmp_path, name, f"math-verify=={version}", imports=imports, tells=MATH)
    config = config_for(tmp_path, "old", "new")

    async with Run(config, [tmp_path]) as run:
        answers = await asyncio.gather(call_tell(run, "old"), call_tell(run, "new"))

    assert [answer["version"] for answer in answers] == ["0.7.0", "0.8.0"]
    assert [(answer["equal"], answer["unequal"]) for answer in answers] == [(True, False)] * 2
    assert answers[0]["prefix"] != answers[1]["prefix"]


@pytest.mark.network
@pytest.mark.usefixtures("_registry")
async def test_a_server_runs_on_the_python_it_requires(tmp_path: Path) -> None:
    """Some libraries need an older or newer Python than ours."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    others = [one for one in ("3.11", "3.12", "3.13", "3.14") if one != ours and find_interpreter(one) != one]
    if not others:
        pytest.skip("this machine has one Python")
    folder = write_folder(tmp_path, "pinned", tells='{"version": "%d.%d" % sys.version_info[:2]}')
    (folder / "requirements.txt").unlink()
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "pinned"\nversion = "1"\nrequires-python = "=={others[0]}.*"\ndependencies = ["nemo-gym"]\n'
    )

    async with Run(config_for(tmp_path, "pinned"), [tmp_path]) as run:
        answer = await call_tell(run, "pinned")

    assert answer == {"version": others[0]}


@pytest.mark.network
@pytest.mark.usefixtures("_registry")
async def test_a_requirement_that_does_not_exist_is_explained(tmp_path: Path) -> None:
    """The message keeps the output of uv and adds the server and the fix."""
    write_folder(tmp_path, "greedy", "math-verify==99.0")

    with pytest.raises(InstallFailed, match="requirements cannot be met") as raised:
        async with Run(config_for(tmp_path, "greedy"), [tmp_path]):
            pass

    assert raised.value.where == "greedy"
    assert "math-verify==99.0" in str(raised.value)


@pytest.mark.usefixtures("uv")
async def test_an_unreachable_registry_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cluster nodes often have no network; a closed port stands for that."""
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
