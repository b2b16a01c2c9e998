"""The Docker provider, against a program that behaves like `docker` and notes what it was asked."""

import asyncio
import os

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
from tests.processes import is_gone, until

pytestmark = pytest.mark.asyncio


def provider_of(docker, **arguments):
    return DockerProvider(binary=str(docker.binary), **arguments)


async def test_a_container_is_made_bounded_labelled_and_removed(docker):
    """What is not limited runs away; what is not labelled is never cleaned up."""
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


async def test_a_command_gives_back_output_and_status(docker):
    """The caller judges the command; the sandbox only reports."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 3")
        listed = await sandbox.exec(["printf", "%s|", "a b", "$HOME"])

    assert (result.stdout, result.stderr, result.return_code, result.error_type) == ("out\n", "err\n", 3, None)
    assert listed.stdout == "a b|$HOME|"


async def test_environment_values_are_not_in_the_process_list(docker):
    """Everyone on a machine can read argument lists; keys must not be there."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("echo $API_KEY", env={"API_KEY": "hush-hush"})

    assert result.stdout == "hush-hush\n"
    assert not [call for call in docker.calls if "hush-hush" in " ".join(call)]


async def test_variables_the_client_obeys_do_not_reach_the_client(docker):
    """A sandbox whose PATH differs must not make us run another program."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("echo $DOCKER_HOST", env={"DOCKER_HOST": "tcp://elsewhere"})

    assert result.stdout == "tcp://elsewhere\n"
    assert not [env for env in docker.environments if env.get("DOCKER_HOST") == "tcp://elsewhere"]


async def test_a_command_that_outlives_its_clock_is_killed_with_its_children(docker):
    """A container's process does not die with the client that asked for it."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("echo begun; sleep 300 & sleep 300", timeout_s=2)

        assert result.error_type == "timeout"
        assert result.return_code == 124
        assert result.stdout == "begun\n"
        assert "killed after 2 s" in result.stderr
        await until(lambda: all(map(is_gone, docker.pids)))


async def test_a_command_whose_caller_leaves_is_ended_too(docker):
    """A rollout that is cancelled must not leave its program running until the container goes."""
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        begun = docker.state / "boxes" / sandbox.sandbox_id / "begun"
        os.mkfifo(begun)
        running = asyncio.create_task(sandbox.exec("echo yes > begun; sleep 300"))
        assert await asyncio.to_thread(begun.read_text) == "yes\n"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        await until(lambda: all(map(is_gone, docker.pids)))


async def test_what_cannot_be_passed_to_a_program_is_an_error_not_a_traceback(docker, tmp_path):
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        with pytest.raises(SandboxError, match="null byte"):
            await sandbox.exec("echo a\0b")
        with pytest.raises(SandboxError, match="Argument list too long"):
            await sandbox.exec("x" * 3_000_000)
        with pytest.raises(SandboxError, match="nowhere: cannot be read"):
            await sandbox.upload(tmp_path / "nowhere", "/x")
        with pytest.raises(SandboxError, match="Could not find the file /nothing"):
            await sandbox.download("/nothing", tmp_path / "x")


async def test_a_sandbox_whose_files_cannot_be_placed_is_not_left_behind(docker, tmp_path):
    spec = SandboxSpec(image="a", files={"/x": tmp_path / "nowhere"})

    with pytest.raises(SandboxCreateError, match="a file could not be placed"):
        await AsyncSandbox(provider_of(docker), spec).start()

    assert docker.boxes == []


async def test_a_flood_of_output_is_cut_and_said_to_be(docker):
    """A program can print faster than we have memory."""
    provider = provider_of(docker, max_output_bytes=1000)

    async with AsyncSandbox(provider, SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("head -c 1000000 /dev/zero | tr '\\0' x")

    assert result.error_type == "output_limit"
    assert len(result.stdout) < 2000
    assert result.return_code == 0


async def test_a_command_in_a_dead_container_is_the_sandboxs_failure(docker):
    """A verifier must not read an outage as a wrong answer."""
    sandbox = await AsyncSandbox(provider_of(docker), SandboxSpec(image="a")).start()
    await sandbox.provider.close(sandbox.handle)

    result = await sandbox.exec("true")

    assert result.error_type == "sandbox"
    assert result.return_code != 0
    assert "No such container" in result.stderr
    assert await sandbox.status() is SandboxStatus.STOPPED


async def test_files_and_folders_go_in_and_come_out(docker, tmp_path):
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
async def test_a_path_inside_does_not_climb(docker, tmp_path, path):
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a")) as sandbox:
        with pytest.raises(SandboxError, match="not a path in the sandbox"):
            await sandbox.download(path, tmp_path / "x")


async def test_a_port_is_reachable_where_the_engine_put_it(docker):
    async with AsyncSandbox(provider_of(docker), SandboxSpec(image="a", ports=[8000])) as sandbox:
        assert (await sandbox.endpoint(8000)).url == "http://127.0.0.1:49153"
        with pytest.raises(SandboxError, match="port 9 is not published"):
            await sandbox.endpoint(9)


async def test_a_missing_program_is_said_in_one_line(tmp_path):
    """The commonest set-up mistake: no docker at all."""
    provider = DockerProvider(binary=str(tmp_path / "nowhere"))

    with pytest.raises(SandboxCreateError, match="is not installed") as caught:
        await AsyncSandbox(provider, SandboxSpec(image="a")).start()

    assert isinstance(caught.value, RuntimeError)
    assert "install docker" in str(caught.value)


async def test_a_daemon_that_is_down_is_said_in_its_own_words(docker):
    (docker.state / "down").touch()

    with pytest.raises(SandboxCreateError, match="Is the docker daemon running"):
        await AsyncSandbox(provider_of(docker), SandboxSpec(image="a")).start()


async def test_a_missing_image_is_named(docker):
    with pytest.raises(SandboxCreateError, match=r"docker missing:latest: .*no such image"):
        await AsyncSandbox(provider_of(docker), SandboxSpec(image="missing:latest")).start()


async def test_a_container_that_is_not_ready_in_time_is_not_left_behind(docker):
    """The engine may finish the order after we stopped waiting."""
    with pytest.raises(SandboxCreateError, match="not ready within 2 s"):
        await AsyncSandbox(provider_of(docker), SandboxSpec(image="slow:latest", ready_timeout_s=2)).start()

    assert docker.boxes == []
    assert docker.calls[-1][:2] == ["rm", "--force"]


async def test_images_can_come_from_a_mirror(docker):
    provider = provider_of(docker, image_rewrites=[{"from": "python:", "to": "mirror.test/python:"}])

    async with AsyncSandbox(provider, SandboxSpec(image="python:3.12")):
        pass

    assert "mirror.test/python:3.12" in docker.calls[0]


async def test_no_image_is_an_error_before_anything_runs(docker):
    with pytest.raises(SandboxCreateError, match="no image is named"):
        await AsyncSandbox(provider_of(docker)).start()


async def test_a_sandbox_can_be_found_again(docker):
    """An agent may start a sandbox that its verifier looks into."""
    sandbox = await AsyncSandbox(provider_of(docker), SandboxSpec(image="a")).start()

    again = await AsyncSandbox.connect(provider_of(docker), sandbox.serialize())
    result = await again.exec("echo here")
    await again.stop()

    assert result.stdout == "here\n"
    with pytest.raises(SandboxError, match="stopped, not running"):
        await AsyncSandbox.connect(provider_of(docker), sandbox.serialize())


async def test_create_options_are_given_in_the_engines_words():
    config = DockerCreateConfig(user="1000", read_only=True, tmpfs=["/tmp"], shm_size_mib=64, no_new_privileges=False)

    arguments = " ".join(config.arguments())

    assert "--user 1000" in arguments
    assert "--shm-size 64m" in arguments
    assert "--read-only" in arguments
    assert "--tmpfs /tmp" in arguments
    assert "no-new-privileges" not in arguments
