"""The local provider, through the same API as every other."""

import asyncio
import os
import re
import signal
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_gym.sandbox import (
    AsyncSandbox,
    Sandbox,
    SandboxCreateError,
    SandboxError,
    SandboxResources,
    SandboxSpec,
    SandboxStatus,
    SandboxUnsupportedError,
    create_provider,
    list_providers,
)
from nemo_gym.sandbox.providers.local import LocalProvider, box, execution, probe
from nemo_gym.sandbox.providers.local.cgroups import MEMORY, Cgroups
from nemo_gym.sandbox.providers.local.execution import receive_event
from nemo_gym.sandbox.spec import SandboxConfigError
from tests.processes import wait_until

pytestmark = pytest.mark.skipif(not probe().available, reason=f"no isolation here: {probe().problem}")

SMALL = SandboxSpec(resources=SandboxResources(memory_mib=64, disk_gib=16 / 1024))


@pytest.fixture
async def sandbox():
    async with AsyncSandbox({"local": {}}, SMALL) as made:
        yield made


def test_the_local_provider_is_registered():
    """Configs select it by name."""
    assert "local" in list_providers()
    assert isinstance(create_provider({"local": {"warm": 1}}), LocalProvider)


async def test_the_keys_of_other_local_providers_keep_the_isolation(tmp_path, caplog):
    """In NeMo Gym 0.7 they belong to commands on the host; here they must neither fail nor weaken the box."""
    keys = {"workspace_root": str(tmp_path), "shell": "/bin/bash", "default_timeout_s": 0.5, "concurrency": 1}
    provider = create_provider({"local": keys})
    assert isinstance(provider, LocalProvider)
    async with AsyncSandbox(provider, SMALL) as sandbox:
        result = await sandbox.exec("[[ ab == a* ]] && pwd; ls " + str(tmp_path))
        slow = await sandbox.exec("sleep 60", timeout_s=None)

    assert (result.stdout, result.return_code) == ("/work\n", 2)
    assert (result.detail.isolated, slow.error_type) == (True, "timeout")
    assert "workspace_root has no effect" in caplog.text


async def test_commands_see_the_files_and_variables_of_the_spec():
    """Tasks are set up through them."""
    spec = SandboxSpec(files={"a/b.txt": "text", "/work/c": b"\x00bytes"}, env={"ONE": "1"})
    async with AsyncSandbox({"local": {}}, spec) as sandbox:
        result = await sandbox.exec("cat a/b.txt; wc -c < c; echo $ONE $TWO; pwd", env={"TWO": "2"})

    assert (result.stdout, result.stderr, result.return_code) == ("text6\n1 2\n/work\n", "", 0)
    assert result.error_type is None
    assert result.detail is not None
    assert result.detail.isolated


async def test_a_sandbox_keeps_its_files_between_commands_but_not_its_processes(sandbox):
    """A leftover process would disturb the next command."""
    await sandbox.exec("echo kept > note; sleep 3600 &")

    result = await sandbox.exec(["sh", "-c", "cat note; ls -d /proc/[0-9]* | wc -l"])

    assert result.stdout.split()[0] == "kept"
    assert int(result.stdout.split()[1]) <= 4  # process 1, the shell, ls, wc


async def test_status_and_output_of_a_command_are_returned_unchanged(sandbox):
    """Verifiers compare them."""
    assert (await sandbox.exec("echo no >&2; exit 3")).return_code == 3
    assert (await sandbox.exec(["no-such-program"])).return_code == 127
    missing = await sandbox.exec("true", cwd="/nowhere")
    assert (missing.return_code, missing.stderr) == (126, "/nowhere: No such file or directory\n")


async def test_a_slow_command_is_killed_and_the_sandbox_continues(sandbox):
    """One bad command must not end an episode."""
    late = await sandbox.exec("sleep 3600", timeout_s=0.2)
    after = await sandbox.exec("echo fine")

    assert (late.error_type, after.stdout) == ("timeout", "fine\n")


async def test_the_memory_limit_is_that_of_the_spec(sandbox):
    """Environments choose limits per task."""
    result = await sandbox.exec(["python3", "-c", "x = [bytearray(1 << 20) for _ in range(10 ** 6)]"])

    assert result.error_type == "memory"


async def test_several_commands_of_one_sandbox_take_turns(sandbox):
    """The end of one command kills its processes, which would end a concurrent one."""
    results = await asyncio.gather(*(sandbox.exec(f"echo {n}") for n in range(4)))

    assert [result.stdout for result in results] == [f"{n}\n" for n in range(4)]


async def test_files_are_uploaded_and_downloaded(sandbox, tmp_path):
    """Tasks and results are files."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "file").write_text("there and back")
    await sandbox.upload(tmp_path / "in", "/work/place")
    await sandbox.exec("ln -s deep/file place/link; chmod 777 place/deep/file")

    await sandbox.download("place", tmp_path / "out")
    await sandbox.download("place/deep/file", tmp_path / "single")

    assert (tmp_path / "out" / "link").read_text() == (tmp_path / "single").read_text() == "there and back"
    assert (tmp_path / "out" / "deep" / "file").stat().st_mode & 0o022 == 0


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        ("mkdir d; ln -s /etc/passwd d/x", "outside the target"),
        ("mkdir d; ln -s ../../outside d/x", "outside the target"),
        ("mkdir -p d/e; ln -s . d/s; ln -s s/../../outside d/x", "outside the target"),
        ("mkdir d; mkfifo d/x", "outside the target"),
        ("mkdir d; head -c 3000000 /dev/zero > d/x", "more than"),
        ("true", "no such file"),
        ("ln -s /dev/zero d", "no such file"),
    ],
    ids=["absolute link", "climbing link", "link through a link", "fifo", "too much", "nothing", "device"],
)
async def test_downloads_stay_in_their_folder(tmp_path, make, problem):
    """A link in a sandbox to a file of the host defeated a judge (CVE-2024-28185)."""
    async with AsyncSandbox({"local": {"max_transfer_bytes": 2_000_000}}, SMALL) as sandbox:
        assert (await sandbox.exec(make)).return_code == 0
        with pytest.raises(SandboxError, match=problem):
            await sandbox.download("d", tmp_path / "out" / "here")

    assert {path.name for path in tmp_path.rglob("*")} <= {"out", "here", "e"}


async def test_uploads_follow_links_only_inside(sandbox, tmp_path):
    """A planted link is resolved in the box by the box's user, so it reaches no file of the host."""
    (tmp_path / "file").write_text("x")
    await sandbox.exec("ln -s /etc planted")

    with pytest.raises(SandboxError, match="upload to /work/planted/passwd failed"):
        await sandbox.upload(tmp_path / "file", "planted/passwd")


@pytest.mark.parametrize("target", ["../up", "a/../../b", ""])
async def test_paths_with_dots_are_refused_first(sandbox, tmp_path, target):
    """A path must not leave its folder."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(SandboxError, match="not a path"):
        await sandbox.upload(tmp_path / "file", target)


async def test_files_that_do_not_fit_fail_the_start():
    """A task without its files cannot be solved."""
    with pytest.raises(SandboxCreateError, match="could not be written"):
        await AsyncSandbox({"local": {"disk_mib": 1}}, SandboxSpec(files={"big": bytes(3 << 20)})).start()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (SandboxSpec(image="python:3.12"), "no image"),
        (SandboxSpec(ports=[80]), "no network"),
        (SandboxSpec(entrypoint=["sh"]), "entrypoint"),
        (SandboxSpec(resources=SandboxResources(gpu=1)), "no GPU"),
        (SandboxSpec(workdir="/usr/bin"), "working directory"),
        (SandboxSpec(workdir="relative"), "working directory"),
        (SandboxSpec(provider_options={"privileged": True}), "unknown provider_options: privileged"),
        (SandboxSpec(image="x", ports=[1]), "no image.*no network"),
    ],
)
async def test_unsupported_options_are_refused_at_the_start(spec, problem):
    """An ignored image or port would show up as a strange failure later."""
    with pytest.raises(SandboxCreateError, match=problem):
        await AsyncSandbox({"local": {}}, spec).start()


async def test_zero_bytes_are_refused(sandbox):
    """The kernel would cut the argument there."""
    for command, env in ((["echo", "a\0b"], None), ("true", {"A": "\0"})):
        with pytest.raises(SandboxError, match="zero byte"):
            await sandbox.exec(command, env=env)
    with pytest.raises(SandboxError, match="not a path"):
        await sandbox.exec("true", cwd="a\0b")


@pytest.mark.parametrize(
    "arguments",
    [
        {"memory_mib": 0},
        {"warm": -1},
        {"max_running": 0},
        {"concurrency": 0},
        {"processes": -5},
        {"default_timeout_s": 0},
    ],
)
def test_limits_below_one_are_refused(arguments):
    """A limit of zero would be no limit or no program."""
    with pytest.raises(SandboxConfigError, match=f"positive: {next(iter(arguments))}$"):
        create_provider({"local": arguments})


@pytest.mark.parametrize(
    "message", [b"", b"{", b"[]", b"7", b'{"event": "ended", "status": "x"}', b'{"status": 0}', b"[" * 60_000]
)
async def test_messages_of_process_1_are_not_trusted(message):
    """A program that took it over can only report that the box is broken."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        theirs.send(message)
        theirs.shutdown(socket.SHUT_WR)

        assert await receive_event(SimpleNamespace(control=ours), "ended") is None


async def test_a_folder_of_packages_can_be_imported(tmp_path):
    """Programs need libraries such as numpy."""
    (tmp_path / "greeting.py").write_text("text = 'hello'")
    tmp_path.chmod(0o755)
    provider = LocalProvider(packages=[str(tmp_path)])

    outcome = await provider.run_once(
        SandboxSpec(), {"action": "program", "code": "import greeting; print(greeting.text)"}, timeout_s=20
    )
    await provider.aclose()

    assert outcome.result.stdout == "hello\n"


async def test_a_folder_of_packages_must_be_readable_for_all(tmp_path):
    """Programs run as another user: an unreadable folder would be an import error in every program."""
    tmp_path.chmod(0o700)

    with pytest.raises(SandboxCreateError, match="all users may read"):
        await LocalProvider(packages=[str(tmp_path)]).create(SandboxSpec())


async def test_another_user_is_refused(sandbox):
    """Running as the wrong user silently would hide a mistake."""
    with pytest.raises(SandboxUnsupportedError, match="unknown user 'root'"):
        await sandbox.exec("id", user="root")
    assert "uid=1000" in (await sandbox.exec("id", user=1000)).stdout


async def test_a_sandbox_ends_with_its_time_to_live():
    """Abandoned sandboxes must not accumulate."""
    async with AsyncSandbox({"local": {}}, SandboxSpec(ttl_s=0.05)) as sandbox:
        await wait_until(lambda: not sandbox.handle.raw.box.alive)
        status = await sandbox.status()
        result = await sandbox.exec("true")

    assert (status, result.error_type) == (SandboxStatus.STOPPED, "sandbox")


async def test_connect_finds_a_sandbox_of_the_same_provider(sandbox):
    """An agent and its verifier share a sandbox that way."""
    again = await AsyncSandbox.connect(await sandbox.serialize(), provider=sandbox.provider)
    assert (await again.exec("echo same")).stdout == "same\n"

    with pytest.raises(SandboxError, match="stopped"):
        await AsyncSandbox.connect({"provider_name": "local", "sandbox_id": "local-0"}, provider=sandbox.provider)


async def cancel_at_its_turn(sandbox, command):
    running = asyncio.ensure_future(sandbox.exec(command))
    await wait_until(lambda: sandbox.handle.raw.lock.locked())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_cancelled_command_ends_its_box():
    """The caller does not wait, and the program must not continue unnoticed."""
    provider = LocalProvider()
    sandbox = await AsyncSandbox(provider, SMALL).start()
    box = sandbox.handle.raw.box
    await cancel_at_its_turn(sandbox, "echo begun > f; sleep 3600")

    await wait_until(lambda: not box.alive)
    await sandbox.stop()
    await provider.aclose()


async def test_a_command_cancelled_before_its_start_never_starts(sandbox):
    """The order is already sent, and a slow box must not run it later."""
    box = sandbox.handle.raw.box
    os.kill(box.pid, signal.SIGSTOP)
    await cancel_at_its_turn(sandbox, "sleep 3600")

    await wait_until(lambda: not box.alive)


async def test_a_box_that_does_not_start_in_time_is_killed(sandbox, monkeypatch):
    """It would run the program when its result is no longer read."""
    monkeypatch.setattr(execution, "START_S", 0.05)
    box = sandbox.handle.raw.box
    os.kill(box.pid, signal.SIGSTOP)

    result = await sandbox.exec("echo late")

    assert result.error_type == "sandbox"
    await wait_until(lambda: not box.alive)


async def test_a_box_is_ended_if_its_caller_was_cancelled_meanwhile(monkeypatch):
    """Every timeout at this moment would leak a box until the server ends."""
    begun, go, made = threading.Event(), threading.Event(), []

    def launch_slowly(*arguments, **options):
        begun.set()
        assert go.wait(60)
        made.append(box.launch(*arguments, **options))
        return made[-1]

    monkeypatch.setattr("nemo_gym.sandbox.providers.local.provider.launch", launch_slowly)
    provider = LocalProvider(warm=0)
    taking = asyncio.ensure_future(AsyncSandbox(provider, SMALL, owns_provider=False).start())
    await wait_until(begun.is_set)
    pool = await provider.open()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    go.set()

    await wait_until(lambda: made and not made[0].alive and not pool._boxes)
    await provider.aclose()


async def test_closing_a_provider_ends_all_its_boxes():
    """A server that stops must leave no process behind."""
    provider = LocalProvider(warm=2)
    sandbox = await AsyncSandbox(provider).start()
    pool = await provider.open()
    await pool.wait_until_full()
    boxes = set(pool._boxes)
    assert len(boxes) >= 3

    await provider.aclose()
    await provider.aclose()

    assert not [box for box in boxes if box.alive]
    assert not [folder for box in boxes if box.group for folder in box.group.folders.values() if folder.exists()]
    assert await sandbox.status() is SandboxStatus.STOPPED


async def test_every_box_is_used_once():
    """Warm means started early, never used before."""
    provider = LocalProvider(warm=1)
    pool = await provider.open()
    await pool.wait_until_full()
    seen = set()
    for _ in range(3):
        handle = await provider.create(SandboxSpec())
        seen.add(handle.raw.box.name)
        await provider.close(handle)
    await provider.aclose()

    assert len(seen) == 3


def test_the_blocking_api_works():
    """Scripts have no event loop."""
    with Sandbox({"local": {}}, SandboxSpec()) as sandbox:
        assert sandbox.exec("echo sync").stdout == "sync\n"


async def test_programs_run_as_a_user_that_owns_nothing(sandbox):
    """As root, each box gets an unused user id outside; otherwise it has our id in a namespace."""
    task = asyncio.ensure_future(sandbox.exec("sleep 3600", timeout_s=60))
    if not probe().own_user:
        pytest.skip("only root can map a separate user")
    folder = sandbox.handle.raw.box.group.folders[MEMORY]
    processes = folder / "cgroup.procs"
    await wait_until(lambda: len(processes.read_text().split()) >= 2)
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in processes.read_text().split()]  # noqa: ASYNC240
    task.cancel()

    owners = {int(owner) for text in statuses for owner in re.findall(r"^[UG]id:\s+(\d+)", text, re.MULTILINE)}
    assert len(owners) == 1
    assert min(owners) >= 1_900_000_000


CHILDREN_WITH_MEMORY = """
import os, time
for _ in range(12):
    if os.fork() == 0:
        x = bytearray(16 << 20)
        time.sleep(4)
        os._exit(0)
while True:
    os.wait()
"""

FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


@pytest.mark.parametrize("without", ["groups", "user mapping", "both"])
async def test_programs_are_isolated_without_groups_or_user_mapping(monkeypatch, without):
    """Unprivileged machines have fewer layers and must return the same results."""
    if without in ("groups", "both"):
        monkeypatch.setattr(Cgroups, "find", lambda: None)
    if without in ("user mapping", "both"):
        monkeypatch.setattr(box, "can_map_users", lambda: False)
    async with AsyncSandbox({"local": {}}, SMALL) as sandbox:
        assert "uid=1000" in (await sandbox.exec("id")).stdout
        late = await sandbox.exec("sleep 60", timeout_s=0.2)
        large = await sandbox.exec(["python3", "-c", "x = [bytearray(1 << 20) for _ in range(10 ** 6)]"])
        shut = await sandbox.exec(["python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 1))"])
        closed = await sandbox.exec("echo x > /usr/x; cat /proc/1/environ")
        shared = await sandbox.exec(["python3", "-c", CHILDREN_WITH_MEMORY], timeout_s=60)
        if without != "both":  # there, as root, nothing counts: rlimits do not hold for root
            many = await sandbox.exec(["python3", "-c", FORK_BOMB], timeout_s=3)
            assert many.error_type == "processes"

    assert [late.error_type, large.error_type, shut.error_type] == ["timeout", "memory", "forbidden"]
    assert shared.error_type == "memory"
    assert closed.return_code != 0


async def test_an_archive_bomb_from_inside_is_bounded(tmp_path):
    """A sparse terabyte takes no space inside and would fill this disk."""
    async with AsyncSandbox({"local": {"max_transfer_bytes": 1 << 20}}, SMALL) as sandbox:
        await sandbox.exec("mkdir d; truncate -s 10M d/sparse")
        with pytest.raises(SandboxError, match="more than 1048576 bytes"):
            await sandbox.download("d", tmp_path / "out")
