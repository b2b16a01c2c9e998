"""The Apptainer provider, against a fake `apptainer` that records its calls."""

import pytest

from nemo_gym.sandbox import (
    AsyncSandbox,
    SandboxCreateError,
    SandboxError,
    SandboxResources,
    SandboxSpec,
    SandboxStatus,
    SandboxUnsupportedError,
)
from nemo_gym.sandbox.providers import apptainer as package
from nemo_gym.sandbox.providers.apptainer import ApptainerProvider
from tests.processes import is_gone, wait_until

pytestmark = pytest.mark.asyncio


def provider_of(apptainer, **arguments):
    return ApptainerProvider(binary=str(apptainer.binary), **arguments)


async def test_an_instance_is_made_contained_named_after_its_run_and_stopped(apptainer):
    """Without containment an instance sees the caller's home directory and environment."""
    spec = SandboxSpec(image="python:3.12", resources=SandboxResources(cpu=2, memory_mib=256))

    async with AsyncSandbox(provider_of(apptainer, run_id="run/7", binds=["/data:/data:ro"]), spec) as sandbox:
        running = await sandbox.status()
        name = sandbox.sandbox_id
    made = apptainer.calls[0]

    joined = " ".join(made)
    assert joined.startswith("instance start --containall --cleanenv --no-home --writable-tmpfs")
    assert "--bind /data:/data:ro" in joined
    assert "--cpus 2 --memory 256M" in joined
    assert made[-2:] == ["docker://python:3.12", name]
    assert name.startswith("nemo-gym-run-7-")
    assert running is SandboxStatus.RUNNING
    assert apptainer.boxes == []


async def test_a_command_has_the_specs_environment_and_directory(apptainer):
    """Values travel in the client's environment: invisible in the process list, with commas and quotes intact."""
    spec = SandboxSpec(image="/images/a.sif", env={"A": "1", "B": "x,y=z 'q'"})

    async with AsyncSandbox(provider_of(apptainer), spec) as sandbox:
        await sandbox.exec("mkdir sub")
        result = await sandbox.exec('echo "$A|$B|${PWD##*/}"', cwd="/sub", env={"A": "2"})

    assert result.stdout == "2|x,y=z 'q'|sub\n"
    assert not [call for call in apptainer.calls if "x,y=z" in " ".join(call)]
    assert "/images/a.sif" in apptainer.calls[0]


async def test_a_command_that_exceeds_its_timeout_is_killed_with_its_children(apptainer):
    """A container's process does not end with the client that started it."""
    async with AsyncSandbox(provider_of(apptainer), SandboxSpec(image="a")) as sandbox:
        result = await sandbox.exec("sleep 300 & sleep 300", timeout_s=1)

    assert (result.error_type, result.return_code) == ("timeout", 124)
    await wait_until(lambda: all(map(is_gone, apptainer.pids)))


async def test_a_command_in_a_stopped_instance_is_a_sandbox_error(apptainer):
    """A verifier must not read an outage as a wrong answer."""
    sandbox = await AsyncSandbox(provider_of(apptainer), SandboxSpec(image="a")).start()
    await sandbox.provider.close(sandbox.handle)

    result = await sandbox.exec("true")

    assert result.error_type == "sandbox"
    assert await sandbox.status() is SandboxStatus.STOPPED


async def test_files_and_folders_are_uploaded_and_downloaded(apptainer, tmp_path):
    """Tasks are folders: binary files, nesting and names with spaces survive."""
    spec = SandboxSpec(image="a", files={"/etc/note": "hello\n"})

    (tmp_path / "task" / "deep").mkdir(parents=True)
    (tmp_path / "task" / "deep" / "x.bin").write_bytes(b"\x00\xff")

    async with AsyncSandbox(provider_of(apptainer), spec) as sandbox:
        await sandbox.upload(tmp_path / "task", "/work")
        await sandbox.download("/work", tmp_path / "work")
        await sandbox.download("/etc/note", tmp_path / "note")
        await sandbox.download("/etc", tmp_path / "etc")
        with pytest.raises(SandboxError, match="no such file"):
            await sandbox.download("/nothing", tmp_path / "nothing")

    assert (tmp_path / "note").read_text() == "hello\n"
    assert (tmp_path / "etc" / "note").read_text() == "hello\n"
    assert (tmp_path / "work" / "deep" / "x.bin").read_bytes() == b"\x00\xff"


async def test_a_download_is_bounded(apptainer, tmp_path):
    """A sparse terabyte in the sandbox must not fill this disk."""
    provider = provider_of(apptainer, max_transfer_bytes=100)

    async with AsyncSandbox(provider, SandboxSpec(image="a", files={"/big": b"x" * 1000})) as sandbox:
        with pytest.raises(SandboxError, match="more than 100 bytes"):
            await sandbox.download("/big", tmp_path / "big")


async def test_ports_are_the_hosts_unless_the_network_is_separate(apptainer):
    """Instances share the host's network by default."""
    shared = provider_of(apptainer)
    apart = provider_of(apptainer, start_arguments=["--net", "--network", "none"])

    async with AsyncSandbox(shared, SandboxSpec(image="a")) as sandbox:
        assert (await sandbox.endpoint(8000)).url == "http://127.0.0.1:8000"
    async with AsyncSandbox(apart, SandboxSpec(image="a")) as sandbox:
        with pytest.raises(SandboxUnsupportedError, match="no reachable ports"):
            await sandbox.endpoint(8000)


async def test_another_user_is_refused_rather_than_ignored(apptainer):
    """Running a program with our rights instead of an unprivileged user's would be a silent hole."""
    async with AsyncSandbox(provider_of(apptainer), SandboxSpec(image="a")) as sandbox:
        with pytest.raises(SandboxUnsupportedError, match="as 'nobody'"):
            await sandbox.exec("id", user="nobody")


async def test_a_missing_program_or_image_is_one_clear_error(apptainer, tmp_path):
    """They are the most common set-up mistakes."""
    with pytest.raises(SandboxCreateError, match="is not installed"):
        await AsyncSandbox(ApptainerProvider(binary=str(tmp_path / "nowhere")), SandboxSpec(image="a")).start()
    with pytest.raises(SandboxCreateError, match="Unable to pull"):
        await AsyncSandbox(provider_of(apptainer), SandboxSpec(image="missing")).start()


async def test_the_module_is_reachable_as_a_name_of_its_package():
    """Existing tests patch things in `nemo_gym.sandbox.providers.apptainer.provider`."""
    assert package.provider.ApptainerProvider is ApptainerProvider
