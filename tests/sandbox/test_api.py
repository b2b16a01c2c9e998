"""The sandbox API on a provider that lives in memory."""

import threading
from collections.abc import Iterator

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


class Memory(SandboxProvider):
    """Keeps what it was told; its sandboxes are numbers."""

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

    async def upload(self, handle, source, target):
        raise SandboxError("read-only")

    async def download(self, handle, source, target):
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
    assert not provider.closed, "a provider that was passed in belongs to its owner"
    with pytest.raises(SandboxError, match="not started"):
        await sandbox.exec("ls")


@pytest.mark.asyncio
async def test_a_provider_given_as_a_mapping_is_made_and_closed_here():
    register_provider("memory", Memory)

    async with AsyncSandbox({"memory": {"greeting": "yo"}}, SandboxSpec()) as sandbox:
        said = await sandbox.exec("x")

    assert said.stdout.startswith("yo x")
    assert sandbox.provider.closed


@pytest.mark.asyncio
async def test_a_sandbox_says_who_it_is_for(monkeypatch):
    """On a shared machine somebody will ask whose containers these are."""
    monkeypatch.setenv("NEMO_GYM_TEAM", "red")
    monkeypatch.setenv("NEMO_GYM_RUN_ID", "r9")
    provider = Memory()
    spec = SandboxSpec(metadata={"run": "mine"})

    async with AsyncSandbox(provider, spec) as sandbox:
        (made,) = provider.open.values()

    assert made.metadata["team"] == "red"
    assert made.metadata["run"] == "mine"
    assert spec.metadata == {"run": "mine"}, "the caller's spec is not changed"
    assert sandbox.spec is not spec


@pytest.mark.asyncio
async def test_a_second_start_is_refused_and_a_second_stop_is_not():
    sandbox = await AsyncSandbox(Memory(), SandboxSpec()).start()

    with pytest.raises(SandboxError, match="already started"):
        await sandbox.start()
    await sandbox.stop()
    await sandbox.stop()


@pytest.mark.asyncio
async def test_what_a_provider_cannot_do_has_a_name():
    async with AsyncSandbox(Memory(), SandboxSpec()) as sandbox:
        with pytest.raises(SandboxUnsupportedError, match="memory sandboxes have no terminals"):
            await sandbox.pty.create()
        with pytest.raises(NotImplementedError, match="no reachable ports"):
            await sandbox.endpoint(80)


@pytest.mark.asyncio
async def test_another_providers_sandbox_is_not_connected_to():
    with pytest.raises(SandboxError, match="belongs to docker, not memory"):
        await AsyncSandbox.connect(Memory(), {"provider_name": "docker", "sandbox_id": "0"})


def threads_left(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads that are new and stay. Python's own watcher of a child ends a moment after the child is known to have."""
    new = set(threading.enumerate()) - before
    for thread in new:
        if thread.name.startswith("asyncio-waitpid"):
            thread.join(10)
    return [thread for thread in new if thread.is_alive()]


def test_the_plain_sandbox_ends_its_thread():
    """Every thread left behind holds a loop, its pipes and its memory."""
    before = set(threading.enumerate())
    provider = Memory()

    with Sandbox(provider, SandboxSpec()) as sandbox:
        assert sandbox.exec("ls").stdout == "hi ls 180.0 None"
        assert sandbox.status() is SandboxStatus.RUNNING
        again = Sandbox.connect(provider, sandbox.serialize())
        assert again.sandbox_id == sandbox.sandbox_id
        again.stop()
        with pytest.raises(SandboxError, match="read-only"):
            sandbox.upload("a", "b")
    sandbox.stop()

    assert threads_left(before) == []
    assert provider.open == {}


def test_a_plain_sandbox_that_cannot_start_leaves_no_thread(docker):
    before = set(threading.enumerate())
    (docker.state / "down").touch()

    with pytest.raises(RuntimeError, match="docker daemon"):
        Sandbox({"docker": {"binary": str(docker.binary)}}, SandboxSpec(image="a")).start()

    assert threads_left(before) == []


def test_the_plain_sandbox_runs_real_commands(docker):
    """The child watcher must work on a loop that is not in the main thread."""
    with Sandbox({"docker": {"binary": str(docker.binary)}}, SandboxSpec(image="a")) as sandbox:
        assert sandbox.exec("echo 42").stdout == "42\n"


def test_providers_are_known_by_name():
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
    with pytest.raises(ConfigError, match="no sandbox provider 'dokcer'") as caught:
        create_provider({"dokcer": {}})
    assert caught.value.fix == "docker"
    with pytest.raises(ConfigError, match="unexpected keyword argument 'binry'"):
        create_provider({"docker": {"binry": "x"}})
    with pytest.raises(ConfigError, match="one name with its arguments, not 2"):
        create_provider({"docker": {}, "apptainer": {}})


def test_a_spec_takes_resources_as_a_mapping_and_refuses_times_that_cannot_be():
    assert SandboxSpec(resources={"cpu": 2}).resources == SandboxResources(cpu=2)
    with pytest.raises(ValueError, match="ttl_s must be more than 0"):
        SandboxSpec(ttl_s=0)


def test_installed_packages_can_offer_providers(tmp_path, monkeypatch):
    """How a site adds its own engine without touching ours."""
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
