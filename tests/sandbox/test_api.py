"""The sandbox API on a provider in memory."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.sandbox import (
    AsyncSandbox,
    Sandbox,
    SandboxError,
    SandboxExecResult,
    SandboxHandle,
    SandboxProvider,
    SandboxResources,
    SandboxSpec,
    SandboxStatus,
    SandboxUnsupportedError,
    create_provider,
    get_provider_class,
    list_providers,
    register_provider,
)
from nemo_gym.sandbox.providers import registry
from nemo_gym.sandbox.providers.apptainer import ApptainerProvider
from nemo_gym.sandbox.providers.docker import DockerProvider
from nemo_gym.sandbox.utils import CPU_CAP_ENV_VARS, cpu_cap_env


class Memory(SandboxProvider):
    """A provider in memory; its sandboxes are numbers."""

    name = "memory"

    def __init__(self, greeting: str = "hi") -> None:
        self.greeting = greeting
        self.open: dict[str, SandboxSpec] = {}
        self.closed = False

    async def create(self, spec):
        handle = SandboxHandle(str(len(self.open)), self.name)
        self.open[handle.sandbox_id] = spec
        return handle

    async def exec(self, handle, command, *, cwd=None, env=None, timeout_s=180, user=None):
        return SandboxExecResult(stdout=f"{self.greeting} {command} {timeout_s} {user}")

    async def upload_file(self, handle, source, target):
        raise SandboxError("read-only")

    async def download_file(self, handle, source, target):
        raise SandboxError("empty")

    async def status(self, handle):
        return SandboxStatus.RUNNING if handle.sandbox_id in self.open else SandboxStatus.STOPPED

    async def close(self, handle):
        self.open.pop(handle.sandbox_id, None)

    async def aclose(self):
        self.closed = True


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    return None


@pytest.mark.asyncio
async def test_a_sandbox_lives_as_long_as_its_with_block():
    """A sandbox that outlives its block is a leak."""
    provider = Memory()

    async with AsyncSandbox(provider, SandboxSpec(image="a")) as sandbox:
        assert await sandbox.status() is SandboxStatus.RUNNING
        assert (await sandbox.exec("ls", timeout_s=5, user="me")).stdout == "hi ls 5 me"

    assert provider.open == {}
    assert await sandbox.status() is SandboxStatus.STOPPED
    assert provider.closed
    with pytest.raises(SandboxError, match="not started"):
        await sandbox.exec("ls")


@pytest.mark.asyncio
async def test_a_shared_provider_stays_open():
    """Many sandboxes may use one connection to an engine; its creator closes it."""
    provider = Memory()

    async with AsyncSandbox(provider, SandboxSpec(), owns_provider=False):
        pass

    assert not provider.closed


class Duck:
    """A provider of another author: the methods, without our base class."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def create(self, spec):
        self.calls.append(f"create {spec.image} {spec.ports}")
        return SandboxHandle("d", "duck")

    async def upload_file(self, handle, source, target):
        self.calls.append(f"upload {source.read_text()} to {target}")

    async def close(self, handle):
        self.calls.append("close")

    async def aclose(self):
        self.calls.append("aclose")


@pytest.mark.asyncio
async def test_an_object_with_the_methods_of_a_provider_is_one(tmp_path):
    """Folders test their agents with small provider classes; `async with` then waits for `start(spec)`."""
    provider = Duck()
    (tmp_path / "task").write_text("task")

    async with AsyncSandbox(provider) as sandbox:
        assert provider.calls == []
        await sandbox.start(SandboxSpec(image="i", files={"/t": tmp_path / "task", "/n": "note"}, ports=[80]))

    assert provider.calls == ["create i (80,)", "upload task to /t", "upload note to /n", "close", "aclose"]


@pytest.mark.asyncio
async def test_start_inside_a_block_that_started_the_sandbox_is_accepted_once():
    """Code for NeMo Gym enters the block first and then starts; ours starts with the block."""
    provider = Memory()

    async with AsyncSandbox(provider, SandboxSpec(image="a")) as sandbox:
        assert await sandbox.start() is sandbox
        assert len(provider.open) == 1


@pytest.mark.asyncio
async def test_a_failed_stop_can_be_repeated():
    """A sandbox that is not removed costs money, so the caller tries again."""
    provider = Duck()
    sandbox = await AsyncSandbox(provider, SandboxSpec()).start()
    provider.close = fail_once(provider.close)

    with pytest.raises(OSError, match="busy"):
        await sandbox.stop()
    await sandbox.stop()

    assert provider.calls[-2:] == ["close", "aclose"]


def fail_once(method):
    outcomes = iter([OSError("busy")])

    async def call(*arguments):
        for error in outcomes:
            raise error
        return await method(*arguments)

    return call


def test_a_forgotten_blocking_sandbox_does_not_keep_the_process_alive(tmp_path):
    """A test that fails before `stop` must not hang the whole suite."""
    script = """if True:
        from nemo_gym.sandbox import Sandbox, SandboxHandle, SandboxSpec
        class Duck:
            async def create(self, spec): return SandboxHandle("d", "duck")
        Sandbox(Duck(), SandboxSpec()).start()
    """

    done = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.asyncio
async def test_a_provider_passed_as_a_mapping_is_closed_with_the_sandbox():
    """Its owner cannot close it."""
    register_provider("memory", Memory)

    async with AsyncSandbox({"memory": {"greeting": "yo"}}, SandboxSpec()) as sandbox:
        result = await sandbox.exec("x")

    assert result.stdout.startswith("yo x")
    assert sandbox.provider.closed


@pytest.mark.asyncio
async def test_a_sandbox_has_attribution_metadata(monkeypatch):
    """On a shared machine, administrators need to know whose containers these are."""
    monkeypatch.setenv("NEMO_GYM_TEAM", "red")
    monkeypatch.setenv("NEMO_GYM_RUN_ID", "r9")
    provider = Memory()
    spec = SandboxSpec(metadata={"run": "mine"})

    async with AsyncSandbox(provider, spec) as sandbox:
        (made,) = provider.open.values()

    assert made.metadata["team"] == "red"
    assert made.metadata["run"] == "mine"
    assert spec.metadata == {"run": "mine"}, "the caller's spec is not changed"
    assert sandbox.spec is spec


@pytest.mark.asyncio
async def test_a_second_start_is_refused_and_a_second_stop_is_not():
    """Cleanup code may stop a sandbox twice."""
    sandbox = await AsyncSandbox(Memory(), SandboxSpec()).start()

    with pytest.raises(SandboxError, match="already started"):
        await sandbox.start()
    await sandbox.stop()
    await sandbox.stop()


@pytest.mark.asyncio
async def test_unsupported_operations_have_an_error_type():
    """Callers can fall back on it."""
    async with AsyncSandbox(Memory(), SandboxSpec()) as sandbox:
        with pytest.raises(SandboxUnsupportedError, match="memory sandboxes have no terminals"):
            await sandbox.pty.create()
        with pytest.raises(NotImplementedError, match="no reachable ports"):
            await sandbox.endpoint(80)


@pytest.mark.asyncio
async def test_connect_refuses_a_sandbox_of_another_provider():
    """Its id means nothing to this engine."""
    with pytest.raises(SandboxError, match="belongs to docker, not memory"):
        await AsyncSandbox.connect({"provider_name": "docker", "sandbox_id": "0"}, provider=Memory())


@pytest.mark.parametrize("sandbox_id", ["0", "unknown"])
def test_a_connected_blocking_sandbox_closes_the_provider_it_created(monkeypatch, sandbox_id):
    """`stop` and a failed `connect` are the last chance to release the provider's connections."""
    provider = Memory()
    provider.open["0"] = SandboxSpec()
    monkeypatch.setitem(registry._registered, "memory", lambda: provider)

    with contextlib.suppress(SandboxError):
        Sandbox.connect({"provider_name": "memory", "sandbox_id": sandbox_id}, provider={"memory": {}}).stop()

    assert provider.closed


def threads_left(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return new threads that do not end; Python's watcher of a child ends shortly after the child."""
    new = set(threading.enumerate()) - before
    for thread in new:
        if thread.name.startswith("asyncio-waitpid"):
            thread.join(10)
    return [thread for thread in new if thread.is_alive()]


def test_the_blocking_sandbox_ends_its_thread():
    """Every leaked thread holds a loop, its pipes and its memory."""
    before = set(threading.enumerate())
    provider = Memory()

    with Sandbox(provider, SandboxSpec()) as sandbox:
        assert sandbox.exec("ls").stdout == "hi ls 180.0 None"
        assert sandbox.status() is SandboxStatus.RUNNING
        again = Sandbox.connect(sandbox.serialize(), provider=provider, owns_provider=False)
        assert again.sandbox_id == sandbox.sandbox_id
        again.stop()
        with pytest.raises(SandboxError, match="read-only"):
            sandbox.upload("a", "b")
    sandbox.stop()

    assert threads_left(before) == []
    assert provider.open == {}


def test_an_interrupted_start_of_a_blocking_sandbox_removes_what_it_has_created(monkeypatch):
    """Ctrl-C while an image is pulled must not leave a container behind."""
    creating, removed = threading.Event(), threading.Event()

    class Slow(Memory):
        async def create(self, spec):
            creating.set()
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(100):  # the removal takes several turns of the loop
                    await asyncio.sleep(0)
                removed.set()

    def interrupt(_future):
        creating.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupt)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        Sandbox(Slow(), SandboxSpec()).start()

    assert removed.is_set()
    assert threads_left(before) == []


def test_a_blocking_sandbox_that_cannot_start_leaves_no_thread(docker):
    """Scripts retry, and every attempt would leak a thread."""
    before = set(threading.enumerate())
    (docker.state / "down").touch()

    with pytest.raises(RuntimeError, match="docker daemon"):
        Sandbox({"docker": {"binary": str(docker.binary)}}, SandboxSpec(image="a")).start()

    assert threads_left(before) == []


def test_the_blocking_sandbox_runs_real_commands(docker):
    """The child watcher must work on a loop outside the main thread."""
    with Sandbox({"docker": {"binary": str(docker.binary)}}, SandboxSpec(image="a")) as sandbox:
        assert sandbox.exec("echo 42").stdout == "42\n"


def test_providers_are_found_by_name():
    """Configs name them."""
    register_provider("memory", Memory)

    assert {"apptainer", "docker", "memory"} <= set(list_providers())
    assert get_provider_class("memory") is Memory
    assert get_provider_class("docker").name == "docker"
    assert create_provider({"memory": None}).greeting == "hi"


def test_a_name_is_not_taken_over_by_accident():
    """A plug-in that silently replaces `docker` would change where code runs."""
    register_provider("memory", Memory)
    register_provider("memory", Memory)

    with pytest.raises(ValueError, match="already registered"):
        register_provider("docker", Memory)
    register_provider("docker", Memory, override=True)
    assert get_provider_class("docker") is Memory


def test_an_unknown_provider_or_argument_is_a_configuration_error():
    """The user can fix it, so it needs no traceback."""
    with pytest.raises(ConfigError, match="unknown sandbox provider 'dokcer'") as caught:
        create_provider({"dokcer": {}})
    assert caught.value.fix == "docker"
    with pytest.raises(ConfigError, match="unexpected keyword argument 'binry'"):
        create_provider({"docker": {"binry": "x"}})
    with pytest.raises(ConfigError, match="expected one sandbox provider, found 2"):
        create_provider({"docker": {}, "apptainer": {}})


@pytest.mark.parametrize("name", ["opensandbox", "daytona", "e2b", "ecs_fargate", "enroot", "openshell"])
def test_a_known_engine_that_is_not_here_says_what_it_needs(name):
    """Configurations for NeMo Gym name these engines; "unknown" would send their users searching for a typing error."""
    assert issubclass(get_provider_class(name), SandboxProvider)
    with pytest.raises(ConfigError, match=f"{name}' is not available here: it needs"):
        create_provider({name: {"create": {}}})


def test_resources_come_from_configurations():
    """YAML and the command line give numbers as text."""
    assert SandboxResources.from_mapping({"cpu": "2", "memory_mib": "512"}) == SandboxResources(cpu=2.0, memory_mib=512)
    assert SandboxResources.from_mapping(None) == SandboxResources()
    with pytest.raises(ValueError, match=r"^Unknown sandbox resource keys: ram"):
        SandboxResources.from_mapping({"ram": 1})


def test_programs_are_limited_to_the_processors_of_their_sandbox():
    """A build on a machine with 200 processors starts 200 compilers in a container that may use two."""
    assert cpu_cap_env(None) == {}
    assert set(cpu_cap_env(2.7)) == set(CPU_CAP_ENV_VARS)
    assert cpu_cap_env(0.5)["OMP_NUM_THREADS"] == "1"


def test_engines_take_the_blocks_of_existing_configurations(caplog):
    """Unknown keys of another version are reported, not fatal."""
    exec_block = {"default_timeout_s": 7, "default_binds": ["/d"], "extra_exec_args": ["--nv"], "concurrency": 3}
    provider = ApptainerProvider(
        exec=exec_block, create={"start_timeout_s": 9, "extra_start_args": ["--x"]}, probe={}, bin_path="/no/apptainer"
    )
    docker = DockerProvider(
        exec=exec_block, create={"extra_run_args": ["--y"], "new_option": 1}, probe={"command": "x"}
    )

    assert (provider.binary, provider.binds, provider.start_timeout_s) == ("/no/apptainer", ["/d"], 9)
    assert provider.start_arguments[-1] == "--x"
    assert docker.create_config.arguments()[-1] == "--y"
    assert "sandbox docker.create: these keys have no effect here: new_option" in caplog.text
    with pytest.raises(ConfigError, match="netwrok"):  # a misspelled limit would be no limit
        DockerProvider(create={"netwrok": "none"})


def test_a_spec_accepts_resource_mappings_and_refuses_times_below_zero():
    """Specs come from YAML."""
    assert SandboxSpec(resources={"cpu": 2}).resources == SandboxResources(cpu=2)
    with pytest.raises(ValueError, match="ttl_s must be more than 0"):
        SandboxSpec(ttl_s=0)


def test_installed_packages_can_offer_providers(tmp_path, monkeypatch):
    """Sites add an engine without changing this package."""
    (tmp_path / "site_engine.py").write_text(
        "from nemo_gym.sandbox.providers.docker import DockerProvider\nclass Site(DockerProvider):\n    name = 'site'\n"
    )
    described = tmp_path / "site_engine-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: site-engine\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[nemo_gym.sandbox_providers]\nsite = site_engine:Site\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert "site" in list_providers()
    assert create_provider({"site": {"binary": "x"}}).name == "site"
