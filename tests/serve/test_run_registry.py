"""Find the runs of this machine: the only one, a named one, and never a dead one."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nemo_gym.serve.run_registry import (
    NoRunFound,
    RunNotChosen,
    UnsafeRegistry,
    choose_run,
    live_runs,
    registering,
    registry_folder,
)
from nemo_gym.transport import run_token

CONFIG = {
    "head_server": {"host": "127.0.0.1", "port": 11000},
    "policy_model": {"responses_api_models": {"scripted_model": {"api_key": "hush"}}},
    "sums": {"resources_servers": {"arithmetic": {}}},
    "policy_model_name": "x",
}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def two_runs() -> Iterator[None]:
    with ExitStack() as runs:
        runs.enter_context(registering(CONFIG))
        runs.enter_context(registering({**CONFIG, "head_server": {"host": "127.0.0.1", "port": 12345}}))
        yield


def test_the_only_run_is_found_without_being_named():
    """`gym eval run --no-serve` should just work beside one `gym env start`."""
    with registering(CONFIG) as entry:
        run = choose_run()

    assert run == entry
    assert (run.address, list(run.servers)) == ("127.0.0.1:11000", ["policy_model", "sums"])
    assert live_runs() == []


def test_nothing_running_is_an_infrastructure_problem_with_a_next_step():
    """The user forgot to start the servers; the message says how."""
    with pytest.raises(NoRunFound, match="gym env start") as caught:
        choose_run()

    assert caught.value.exit_status == 3


@pytest.mark.usefixtures("two_runs")
def test_several_runs_are_listed_and_none_is_picked():
    """Choosing the newest silently could send a trainer's rollouts to another user's model."""
    with pytest.raises(RunNotChosen, match="2 runs are running") as caught:
        choose_run()

    assert "127.0.0.1:11000" in str(caught.value) and "127.0.0.1:12345" in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.usefixtures("two_runs")
@pytest.mark.parametrize("selector", ["12345", ":12345", "127.0.0.1:12345", "http://127.0.0.1:12345/"])
def test_a_run_is_named_by_its_port_or_address(selector: str):
    """Users copy whatever form of the address they see."""
    assert choose_run(selector).port == 12345


def test_a_run_is_named_by_its_process():
    """Process lists show ids."""
    with registering(CONFIG):
        assert choose_run(str(os.getpid())).port == 11000


def test_a_head_on_another_machine_can_be_named():
    """Runs of other machines are not registered here; the first call shows whether the head answers."""
    run = choose_run("gpu7.lan:11000")

    assert (run.host, run.port, run.pid) == ("gpu7.lan", 11000, None)


@pytest.mark.usefixtures("two_runs")
@pytest.mark.parametrize("selector", ["nonsense", "1", "host:port", "host:99999"])
def test_a_name_that_fits_no_run_lists_the_existing_ones(selector: str):
    """The user can copy the right one from the message."""
    with pytest.raises(RunNotChosen, match="unknown run") as caught:
        choose_run(selector)

    assert "127.0.0.1:12345" in str(caught.value)


def test_an_entry_whose_process_id_was_reused_is_deleted():
    """After a reboot or a busy day a process id alone proves nothing."""
    with registering(CONFIG):
        path = next(registry_folder().glob("*.json"))
        path.write_text(json.dumps({**json.loads(path.read_text()), "born": 1}))

        assert live_runs() == []
        assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"unknown": 1}'])
def test_a_damaged_entry_is_deleted(text: str):
    """A crash while writing must not break every later command."""
    path = registry_folder() / "1-1.json"
    path.write_text(text)

    assert live_runs() == []
    assert not path.exists()


def test_entries_hold_no_configuration_values():
    """API keys must not be on disk, even in a private folder."""
    with registering(CONFIG):
        assert "hush" not in next(registry_folder().glob("*.json")).read_text()


def test_the_token_of_a_run_is_read_by_its_user_only():
    """Commands of the user call the run with its token; other users must not read it."""
    run_token.adopt([("127.0.0.1", 11000)], "token-of-the-run-1")
    try:
        with registering(CONFIG):
            run_token.forget([("127.0.0.1", 11000)])
            path = next(registry_folder().glob("*.json"))
            run = choose_run()
        assert (run.token, run_token.token_for("localhost", 11000)) == ("token-of-the-run-1", "token-of-the-run-1")
    finally:
        run_token.forget([("127.0.0.1", 11000)])
    assert (path.parent.stat().st_mode if path.parent.exists() else 0o700) & 0o077 == 0
    assert "token-of-the-run-1" not in f"{run} {run!r}"


def test_an_entry_is_written_for_the_user_only():
    """The mode must not depend on the umask of the shell."""
    previous = os.umask(0)
    try:
        with registering(CONFIG):
            path = next(registry_folder().glob("*.json"))
            modes = [path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777]
    finally:
        os.umask(previous)

    assert modes == [0o600, 0o700]


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path):
    """Another user can put a link to any folder of ours into the shared temporary directory."""
    documents = tmp_path / "documents"
    documents.mkdir(mode=0o700)
    for name in ("settings.json", "7-7.json"):
        (documents / name).write_text("{}")
    (tmp_path / f"nemo-gym-{os.geteuid()}").symlink_to(documents)

    with pytest.raises(UnsafeRegistry, match="XDG_RUNTIME_DIR") as caught:
        live_runs()
    with registering(CONFIG):
        pass

    assert caught.value.exit_status == 3
    assert sorted(path.name for path in documents.iterdir()) == ["7-7.json", "settings.json"]


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_a_folder_that_other_users_can_use_is_refused(mode: int):
    """They could read tokens, or write entries that lead to their own head server."""
    folder = registry_folder()
    folder.chmod(mode)

    with pytest.raises(UnsafeRegistry, match="open to other users"):
        live_runs()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_stops_no_run(caplog: pytest.LogCaptureFixture):
    """Its name is predictable, so any user can create it first; an evaluation must still run."""
    os.chown(registry_folder(), 65534, 65534)

    with registering(CONFIG), pytest.raises(UnsafeRegistry, match="belongs to another user"):
        live_runs()

    assert "this run is not registered" in caplog.text


def test_only_entries_are_deleted(tmp_path: Path):
    """Whatever else is in the folder is not ours to delete."""
    folder = registry_folder()
    (tmp_path / "notes").write_text("keep")
    names = ["notes.json", "1-1.json.bak", "x1-1.json", "1-1.JSON", "1-123456.json", "99999999999-1.json"]
    for name in names:
        (folder / name).write_text("{}")
    (folder / "2-2.json").symlink_to(tmp_path / "notes")
    (folder / "3-3.json").mkdir()
    os.mkfifo(folder / "4-4.json")
    os.link(tmp_path / "notes", folder / "5-5.json")

    assert live_runs() == []
    assert {path.name for path in folder.iterdir()} == {*names, "2-2.json", "3-3.json", "4-4.json", "5-5.json"}
    assert (tmp_path / "notes").read_text() == "keep"


def test_of_several_runs_the_one_of_this_folder_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer beside a colleague's run must find its own servers without a flag."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        folder.mkdir()
    with ExitStack() as runs:
        monkeypatch.chdir(other)
        runs.enter_context(registering({**CONFIG, "head_server": {"host": "127.0.0.1", "port": 12345}}))
        monkeypatch.chdir(mine)
        runs.enter_context(registering(CONFIG))

        assert choose_run().port == 11000
        monkeypatch.chdir(tmp_path)
        with pytest.raises(RunNotChosen, match="2 runs are running"):
            choose_run()
