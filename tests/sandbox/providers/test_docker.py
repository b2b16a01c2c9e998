"""The Docker provider, against a fake `docker` that records its calls."""

import asyncio

import pytest

from nemo_gym.sandbox import (
    AsyncSandbox,
    SandboxCreateError,
    SandboxError,
    SandboxResources,
    SandboxSpec,
    SandboxStatus,
)
from nemo_gym.sandbox.providers.docker import DockerCreateConfig, DockerProvider
from tests.processes import is_gone, wait_until

pytestmark = pytest.mark.asyncio


def provider_of(docker, **arguments):
    return DockerProvider(binary=str(docker.binary), **arguments)


async def test_a_container_is_made_bounded_labelled_and_removed(docker):
    """An unlimited container can exhaust the machine; an unlabelled one is never cleaned up."""
    spec = SandboxSpec(
        image="python:3.12",
        ttl_s=60,
        metadata={"team": "red"},
        resources=SandboxResources(cpu=1.5, memory_mib=512),
        ports=[8000],
    )
    provider = provider_of(docker, run_id="r1", create={"network": "none", "cap_drop": ["ALL"]})

    async with AsyncSandbox(provider, spec):
        held = docker.boxes
    made = docker.calls[0]

    joined = " ".join(made)
    assert made[:3] == ["run", "--detach", "--rm"]
    assert "--label nemo-gym.run=r1" in joined
    assert "--label nemo-gym.team=red" in joined
    assert "--network none" in joined
    assert "--cap-drop ALL" in joined
    assert "--pids-limit 4096" in joined
    assert "--security-opt no-new-privileges" in joined
    assert "--cpus 1.5 --memory 512m --memory-swap 512m" in joined
    assert "--publish 127.0.0.1::8000" in joined
    assert joined.endswith("--entrypoint sleep python:3.12 60")
    assert len(held) == 1
    assert docker.boxes == []


async def test_a_command_returns_output_and_status(docker):
    """The caller judges the command; the sandbox only reports."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 3")
        listed = await sandbox.exec(["printf", "%s|", "a b", "$HOME"])

    assert (result.stdout, result.stderr, result.return_code, result.error_type) == ("out\n", "err\n", 3, None)
    assert listed.stdout == "a b|$HOME|"


async def test_environment_values_are_not_in_the_process_list(docker):
    """All users of a machine can read argument lists; keys must not be there."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("echo $API_KEY", env={"API_KEY": "hush-hush"})

    assert result.stdout == "hush-hush\n"
    assert not [call for call in docker.calls if "hush-hush" in " ".join(call)]


async def test_variables_of_the_client_do_not_reach_the_client(docker):
    """A sandbox with another PATH must not make us run another program."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("echo $DOCKER_HOST", env={"DOCKER_HOST": "tcp://elsewhere"})

    assert result.stdout == "tcp://elsewhere\n"
    assert not [env for env in docker.environments if env.get("DOCKER_HOST") == "tcp://elsewhere"]


async def test_a_command_that_exceeds_its_timeout_is_killed_with_its_children(docker):
    """A container's process does not end with the client that started it."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("echo begun; sleep 300 & sleep 300", timeout_s=2)

        assert result.error_type == "timeout"
        assert result.return_code == 124
        assert result.stdout == "begun\n"
        assert "killed after 2 s" in result.stderr
        await wait_until(lambda: all(map(is_gone, docker.pids)))


async def test_a_cancelled_command_is_killed(docker):
    """A cancelled rollout must not leave its program running until the container ends."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        begun = docker.state / "boxes" / sandbox.sandbox_id / "begun"
        running = asyncio.create_task(sandbox.exec("touch begun; sleep 300"))
        await wait_until(begun.exists)  # has an end, unlike a read of a pipe that the command does not open
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        await wait_until(lambda: all(map(is_gone, docker.pids)))


async def test_unusable_arguments_are_sandbox_errors(docker, tmp_path):
    """Callers catch SandboxError, not ValueError or OSError."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        with pytest.raises(SandboxError, match="null byte"):
            await sandbox.exec("echo a\0b")
        with pytest.raises(SandboxError, match="Argument list too long"):
            await sandbox.exec("x" * 3_000_000)
        with pytest.raises(SandboxError, match="nowhere: cannot be read"):
            await sandbox.upload(tmp_path / "nowhere", "/x")
        with pytest.raises(SandboxError, match="Could not find the file /nothing"):
            await sandbox.download("/nothing", tmp_path / "x")


async def test_a_sandbox_without_its_files_is_removed(docker, tmp_path):
    """A failed start must not leak a container."""
    spec = SandboxSpec(image="a", files={"/x": tmp_path / "nowhere"})

    with pytest.raises(SandboxCreateError, match="a file of the spec could not be written"):
        await AsyncSandbox(provider_of(docker), spec).start()

    assert docker.boxes == []


async def test_a_flood_of_output_is_cut_and_reported(docker):
    """A program can print faster than we have memory."""
    provider = provider_of(docker, max_output_bytes=1000)

    async with AsyncSandbox(provider, SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("head -c 1000000 /dev/zero | tr '\\0' x")

    assert result.error_type == "output_limit"
    assert len(result.stdout) < 2000
    assert result.return_code == 0


async def test_a_command_in_a_dead_container_is_a_sandbox_error(docker):
    """A verifier must not read an outage as a wrong answer."""
    sandbox = await AsyncSandbox(provider_of(docker), SandboxSpec(image="a")).start()
    await sandbox.provider.close(sandbox.handle)

    result = await sandbox.exec("true")

    assert result.error_type == "sandbox"
    assert result.return_code != 0
    assert "No such container" in result.stderr
    assert await sandbox.status() is SandboxStatus.STOPPED


async def test_files_and_folders_are_uploaded_and_downloaded(docker, tmp_path):
    """Tasks are folders: binary files, nesting and names with spaces survive."""
    source = tmp_path / "task"
    (source / "deep er").mkdir(parents=True)
    (source / "deep er" / "x.bin").write_bytes(bytes(range(256)))
    spec = SandboxSpec(image="a", workdir="/work", files={"/etc/note": "hello", "/raw": b"\x00\xff"})

    async with AsyncSandbox(provider_of(docker), spec) as sandbox:
        await sandbox.upload(source, "/work/in")
        await sandbox.upload(source / "deep er" / "x.bin", "flat.bin")
        await sandbox.download("/work", tmp_path / "out")
        await sandbox.download("/etc/note", tmp_path / "note")
        await sandbox.download("/raw", tmp_path / "raw")

    assert (tmp_path / "out" / "in" / "deep er" / "x.bin").read_bytes() == bytes(range(256))
    assert (tmp_path / "out" / "flat.bin").read_bytes() == bytes(range(256))
    assert (tmp_path / "note").read_text() == "hello"
    assert (tmp_path / "raw").read_bytes() == b"\x00\xff"


async def test_a_download_is_bounded(docker, tmp_path):
    """A sparse terabyte in the sandbox must not fill this disk."""
    provider = provider_of(docker, max_transfer_bytes=4096)

    async with AsyncSandbox(provider, SandboxSpec(image="a", files={"/big": b"x" * 100_000})) as sandbox:
        with pytest.raises(SandboxError, match="more than 4096 bytes"):
            await sandbox.download("/big", tmp_path / "big")

    assert not (tmp_path / "big").exists()


@pytest.mark.parametrize("path", ["../up", "", "/a/../../b"])
async def test_a_path_with_dots_is_refused(docker, tmp_path, path):
    """A path must not leave its folder."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        with pytest.raises(SandboxError, match="not a path in the sandbox"):
            await sandbox.download(path, tmp_path / "x")


async def test_an_endpoint_is_the_published_port(docker):
    """Engines choose the port of the host."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a", ports=[8000])) as sandbox:
        assert (await sandbox.endpoint(8000)).url == "http://127.0.0.1:49153"
        with pytest.raises(SandboxError, match="port 9 is not published"):
            await sandbox.endpoint(9)


async def test_a_missing_engine_is_one_clear_error(tmp_path):
    """A machine without docker is the most common set-up mistake."""
    provider = DockerProvider(binary=str(tmp_path / "nowhere"))

    with pytest.raises(SandboxCreateError, match="is not installed") as caught:
        await AsyncSandbox(provider, SandboxSpec(image="a")).start()

    assert isinstance(caught.value, RuntimeError)
    assert "install docker" in str(caught.value)


async def test_the_error_of_a_stopped_daemon_is_reported(docker):
    """The engine's message names the fix."""
    (docker.state / "down").touch()

    with pytest.raises(SandboxCreateError, match="Is the docker daemon running"):
        await AsyncSandbox(provider_of(docker), SandboxSpec(image="a")).start()


async def test_a_missing_image_is_named(docker):
    """The user has to know which image to pull."""
    with pytest.raises(SandboxCreateError, match=r"docker missing:latest: .*no such image"):
        await AsyncSandbox(provider_of(docker), SandboxSpec(image="missing:latest")).start()


async def test_a_container_that_is_not_ready_in_time_is_removed(docker):
    """The engine may finish after we stopped waiting."""
    with pytest.raises(SandboxCreateError, match="not ready within 2 s"):
        await AsyncSandbox(provider_of(docker), SandboxSpec(image="slow:latest", ready_timeout_s=2)).start()

    assert docker.boxes == []
    assert docker.calls[-1][:2] == ["rm", "--force"]


async def test_images_can_come_from_a_mirror(docker):
    """Clusters without internet access pull from a mirror."""
    provider = provider_of(docker, image_rewrites=[{"from": "python:", "to": "mirror.test/python:"}])

    async with AsyncSandbox(provider, SandboxSpec(image="python:3.12")):
        pass

    assert "mirror.test/python:3.12" in docker.calls[0]


async def test_a_missing_image_name_is_refused_first(docker):
    """The engine's message would be about arguments."""
    with pytest.raises(SandboxCreateError, match="an image is required"):
        await AsyncSandbox(provider_of(docker)).start()


async def test_connect_finds_a_running_sandbox(docker):
    """An agent may start a sandbox that its verifier inspects."""
    sandbox = await AsyncSandbox(provider_of(docker), SandboxSpec(image="a")).start()

    descriptor = await sandbox.serialize()
    again = await AsyncSandbox.connect(descriptor, provider=provider_of(docker))
    result = await again.exec("echo here")
    await again.stop()

    assert result.stdout == "here\n"
    with pytest.raises(SandboxError, match="stopped, not running"):
        await AsyncSandbox.connect(descriptor, provider=provider_of(docker))


async def test_create_options_become_engine_arguments():
    """A misspelled argument would silently weaken a container."""
    config = DockerCreateConfig(user="1000", read_only=True, tmpfs=["/tmp"], shm_size_mib=64, no_new_privileges=False)

    arguments = " ".join(config.arguments())

    assert "--user 1000" in arguments
    assert "--shm-size 64m" in arguments
    assert "--read-only" in arguments
    assert "--tmpfs /tmp" in arguments
    assert "no-new-privileges" not in arguments
