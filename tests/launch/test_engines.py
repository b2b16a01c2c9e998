"""What the engine for clusters decides without a cluster: what is sent, what differs, what an error says."""

import io
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch.engines.base import Placement, choose_engine
from nemo_gym.launch.engines.component_archive import (
    archive_paths,
    code_versions,
    digest_of,
    pack_components,
    unpack_components,
    version_differences,
)
from nemo_gym.launch.engines.ray import connection
from nemo_gym.launch.engines.ray.cluster_options import RayOptions
from nemo_gym.launch.engines.ray.connection import (
    ClusterNode,
    ClusterUnreachable,
    _explain,
    _probe_address,
    check_nodes,
)
from nemo_gym.launch.engines.ray.node_run import share_limits
from nemo_gym.launch.hosted_instances import Instance
from nemo_gym.launch.run import Run

VERSION_MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.58.0
    Python: 3.11.7
This process on node 10.0.0.7 was started with:
    Ray: 2.60.0
    Python: 3.12.4
"""
"""The message of Ray, as `ray._private.utils.check_version_info` writes it."""


def instance_at(folder: Path, name: str = "model", kind: str = "responses_api_models") -> Instance:
    return Instance(name, kind, folder.name, folder, "app.py", "127.0.0.1", -1, "cell")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "resources_servers" / "mine"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test_app.py").write_text("")
    (folder / "data").mkdir()
    (folder / "app.py").write_text("print()")
    (folder / "data" / "table.csv").write_text("1,2")
    return folder


def test_the_local_engine_is_the_run_itself(tmp_path):
    """Nothing is added between a command and its servers."""
    from omegaconf import OmegaConf

    config = OmegaConf.create({})
    assert type(choose_engine(config).create_run(Placement(config, [tmp_path]))) is Run


def test_without_ray_the_option_names_the_extra(monkeypatch):
    """A user must not have to guess which package is missing."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"nemo-gym\[ray\]"):
        choose_engine({"engine": "ray"})


@pytest.mark.parametrize("key", ["num_nodes", "ray_address", "node_resources", "node_shared_path", "node_files"])
def test_keys_of_a_cluster_without_an_engine_are_refused(key):
    """`--nodes 8` alone would silently run on one machine; `--engine local` says that this is wanted."""
    with pytest.raises(ConfigError, match="add --engine ray") as caught:
        choose_engine({key: 8})
    assert caught.value.where == key
    choose_engine({key: 8, "engine": "local"})


def test_a_program_that_is_no_cluster_is_refused_by_its_answer():
    """Ray itself would try for minutes, in a thread that no signal ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer():
            for reply in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        for _ in range(2):
            with pytest.raises(ClusterUnreachable, match="is not the head of a Ray cluster"):
                _probe_address(f"127.0.0.1:{port}")
        thread.join()


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "http://10.0.0.1:8265"])
def test_an_address_with_a_scheme_is_explained(address):
    """The dashboard and Ray Client have such addresses, and every guide of Ray shows them."""
    with pytest.raises(ClusterUnreachable, match="of a dashboard or of Ray Client"):
        _probe_address(address)


def test_a_refused_token_is_explained(monkeypatch):
    """Ray says "Failed to connect" after all its retries, and nothing about the token."""

    class AuthenticationError(Exception):
        """As Ray raises it."""

    attempts = []

    def init(**_):
        attempts.append(1)
        raise ConnectionError("Failed to connect to Ray cluster") from AuthenticationError("InvalidAuthToken")

    monkeypatch.setattr(connection, "import_ray", lambda: SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.setattr(connection, "_probe_address", lambda _: None)
    monkeypatch.setattr(connection, "_log_messages", lambda: None)

    with pytest.raises(ClusterUnreachable, match="requires its token") as caught:
        connection.connect("10.0.0.1:6379")

    assert "RAY_AUTH_TOKEN" in str(caught.value.fix)
    assert len(attempts) == 1


def test_a_head_that_answers_late_is_asked_again(monkeypatch):
    """On a busy machine the first attempt may miss the limit of Ray, which is short."""
    attempts = []

    def init(**_):
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr(connection, "import_ray", lambda: SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.setattr(connection, "_probe_address", lambda _: None)
    monkeypatch.setattr(connection, "_log_messages", lambda: None)
    monkeypatch.setattr(connection, "PAUSE_SECONDS", 0.0)

    assert connection.connect("10.0.0.1:6379")
    assert len(attempts) == 3


@pytest.mark.parametrize("call", [connection.connect_in_time, lambda _: connection.living_nodes_in_time()])
async def test_a_head_that_hangs_ends_the_command(call, monkeypatch):
    """A stopped head accepts connections; without a limit nothing would end the run."""
    release = threading.Event()
    monkeypatch.setattr(connection, "JOIN_SECONDS", 0.05)
    monkeypatch.setattr(connection, "CALL_SECONDS", 0.05)
    monkeypatch.setattr(connection, "connect", lambda _: release.wait(60))
    monkeypatch.setattr(connection, "living_nodes", lambda: release.wait(60))
    try:
        with pytest.raises(ClusterUnreachable, match="does not answer"):
            await call("10.0.0.1:6379")
    finally:
        release.set()


def test_a_node_run_ends_with_its_raylet_even_if_it_stays_a_zombie():
    """Ray asks whether its process id exists: servers of a killed raylet that nothing collected ran for good."""
    child = "import time; from nemo_gym.launch.engines.ray.node_run import end_with_parent_process as end; end(); "
    child += "print('ready', flush=True); time.sleep(600)"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as raylet:
        assert raylet.stdout.readline() == "ready\n"
        raylet.kill()  # not collected before the end of the block
        assert raylet.stdout.read() == ""  # returns when the child has ended, which also has the pipe


def test_component_folders_travel_without_tests_and_arrive_once(folder, tmp_path, monkeypatch):
    """The same content has the same digest, wherever it is; a second node of the machine unpacks nothing."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "extra.json").write_text("{}")
    paths = archive_paths([instance_at(folder, kind="resources_servers")], ["extra.json"], tmp_path)
    digest, archive = digest_of(paths), pack_components(paths)

    root = unpack_components(archive, digest, tuple(paths))

    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == [
        "extra.json",
        "resources_servers/mine/app.py",
        "resources_servers/mine/data/table.csv",
    ]
    assert digest_of({name: root / name for name in paths}) == digest
    assert unpack_components(b"not read", digest, tuple(paths)) == root
    assert list(root.parent.iterdir()) == [root]
    (folder / "app.py").write_text("print(2)")
    assert digest_of(paths) != digest


@pytest.fixture
def unpacked_component(folder, tmp_path, monkeypatch):
    """The arguments of `unpack_components` for a component that is unpacked already, and its folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    paths = archive_paths([instance_at(folder, kind="resources_servers")], [], tmp_path)
    arguments = (pack_components(paths), digest_of(paths), tuple(paths))
    return arguments, unpack_components(*arguments)


def test_an_unpacked_folder_that_was_changed_is_not_used_again(unpacked_component):
    """Cleaners of temporary folders remove old files one by one: a node would run without them."""
    arguments, root = unpacked_component
    (root / "resources_servers" / "mine" / "data" / "table.csv").unlink()

    second = unpack_components(*arguments)

    assert second != root
    assert (second / "resources_servers" / "mine" / "data" / "table.csv").read_text() == "1,2"
    assert unpack_components(*arguments) == second


def test_an_archive_that_cannot_be_unpacked_leaves_nothing(unpacked_component):
    """Every failed start would leave up to 512 MB."""
    (_, _, names), root = unpacked_component
    with pytest.raises(ConfigError, match="cannot unpack"):
        unpack_components(b"no archive", "0" * 24, names)
    assert list(root.parent.iterdir()) == [root]


def test_the_node_that_unpacks_second_leaves_no_copy(unpacked_component, monkeypatch):
    """Several nodes of one machine start at the same time."""
    arguments, root = unpacked_component
    away = root.rename(root.with_name("away"))
    make = tempfile.mkdtemp

    def unpack_first_elsewhere(**options):
        if away.exists():
            away.rename(root)
        return make(**options)

    monkeypatch.setattr("tempfile.mkdtemp", unpack_first_elsewhere)

    assert unpack_components(*arguments) == root
    assert list(root.parent.iterdir()) == [root]


def test_data_in_folders_named_like_those_of_developers_is_sent(folder, tmp_path):
    """A coding environment keeps hidden tests in its data; without them every rollout of a cluster would fail."""
    (folder / "data" / "tests").mkdir()
    (folder / "data" / "tests" / "hidden.py").write_text("")
    (tmp_path / "rows" / "results").mkdir(parents=True)
    (tmp_path / "rows" / "results" / "one.jsonl").write_text("{}")
    paths = archive_paths([instance_at(folder, kind="resources_servers")], ["rows"], tmp_path)
    with tarfile.open(fileobj=io.BytesIO(pack_components(paths))) as archive:
        names = archive.getnames()
    assert "resources_servers/mine/data/tests/hidden.py" in names
    assert "rows/results/one.jsonl" in names
    assert not any("test_app" in name for name in names)


def test_links_to_parents_and_of_virtual_environments_are_left_out(folder):
    """Two links to a parent would be followed 2^40 times."""
    for name in ("one", "two"):
        (folder / "data" / name).symlink_to("..")
    (folder / ".venv").symlink_to("gone")
    with tarfile.open(fileobj=io.BytesIO(pack_components({"responses_api_models/mine": folder}))) as archive:
        assert archive.getnames() == ["responses_api_models/mine/app.py", "responses_api_models/mine/data/table.csv"]


def test_a_pipe_does_not_stop_the_digest(folder):
    """The digest is computed first: to open a pipe would wait for a writer without end."""
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError, match="no ordinary file"):
        digest_of({"responses_api_models/mine": folder})


def test_a_program_has_another_digest_than_the_same_text(folder):
    """Else a node with the earlier copy would not run the script that was made executable."""
    before = digest_of({"mine": folder})
    (folder / "app.py").chmod(0o755)
    assert digest_of({"mine": folder}) != before


def test_what_cannot_be_sent_is_named(folder, tmp_path, monkeypatch):
    """The error names the file and the way around it."""
    paths = archive_paths([instance_at(folder)], [], tmp_path)
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError, match=r"(?s)no ordinary file.*node_shared_path"):
        pack_components(paths)
    (folder / "pipe").unlink()
    monkeypatch.setattr("nemo_gym.launch.engines.component_archive.MAX_ARCHIVE_BYTES", 5)
    with pytest.raises(ConfigError, match="more than 0 MB"):
        pack_components(paths)
    with pytest.raises(ConfigError, match="is not below the working directory"):
        archive_paths([], [".."], tmp_path)


def test_a_node_with_other_code_is_refused_by_what_differs():
    """Nothing in an output says which version of the code made a rollout."""
    here = code_versions()
    assert version_differences(here, dict(here)) == []
    (difference,) = version_differences(here, {**here, "python": "3.9.0"})
    assert difference == f"python: {here['python']} here, 3.9.0 there"
    assert "missing there" in version_differences(here, {})[0]


def test_the_message_of_ray_about_versions_becomes_one_line():
    """The message of Ray has five lines and does not say what to do."""
    error = _explain(VERSION_MISMATCH, "10.0.0.1:6379")

    assert "Ray 2.58.0 there, 2.60.0 here; Python 3.11.7 there, 3.12.4 here" in str(error)
    assert "\n" not in error.problem


def test_too_few_nodes_and_missing_resources_are_told_apart():
    """One is cured by more nodes, the other by another reservation."""
    nodes = [
        ClusterNode("a", "10.0.0.1", {"CPU": 8.0, "node:10.0.0.1": 1.0}),
        ClusterNode("b", "10.0.0.2", {"GPU": 1.0}),
    ]
    check_nodes(nodes, 1, {"CPU": 4.0})
    with pytest.raises(ClusterUnreachable, match="2 nodes are wanted, but the cluster has 1 with CPU 4"):
        check_nodes(nodes, 2, {"CPU": 4.0})
    with pytest.raises(ClusterUnreachable, match=r"no node has CPU 16; nodes: 10.0.0.1 \(CPU 8\)"):
        check_nodes(nodes, None, {"CPU": 16.0})


def test_servers_that_need_a_machine_are_placed_only_there():
    """A judge on a GPU would otherwise start on every node, and fail on those without one."""
    block = {"entrypoint": "app.py", "resources": {"GPU": 1, "CPU": 2}}
    config = {"judge": {"responses_api_models": {"mine": block}}, "other": {"resources_servers": {"own": {}}}}

    assert RayOptions.from_config(config).resources == {"CPU": 3.0, "GPU": 1.0}
    block["resources"] = "a text of another folder's own field"
    assert RayOptions.from_config(config).resources == {"CPU": 1.0}
    block["resources"] = {"GPU": "all"}
    with pytest.raises(ConfigError, match="GPU must be a positive number") as caught:
        RayOptions.from_config(config)
    assert caught.value.where == "judge.resources"


def test_reservations_are_positive_numbers():
    """A reservation of nothing would place every run on one node."""
    assert RayOptions.from_config({}).resources == {"CPU": 1.0}
    with pytest.raises(ConfigError, match="CPU must be a positive number"):
        RayOptions.from_config({"node_resources": {"CPU": True}})


def test_a_limit_on_requests_is_divided_so_that_it_holds_for_all_nodes(folder):
    """The endpoint does not know that its callers are several machines."""
    config = {"model": {"responses_api_models": {"mine": {"max_concurrent_requests": 8}}}}
    parts = [
        share_limits(config, [instance_at(folder)], number, 3)["model"]["responses_api_models"]["mine"]
        for number in range(3)
    ]

    assert [part["max_concurrent_requests"] for part in parts] == [3, 3, 2]
    assert config["model"]["responses_api_models"]["mine"]["max_concurrent_requests"] == 8
    with pytest.raises(ConfigError, match="cannot be shared by 9 nodes"):
        share_limits(config, [instance_at(folder)], 0, 9)
