"""The server instances of a resolved configuration."""

from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch.hosted_instances import declared_hosting, find_instances


def write_server(root: Path, kind: str, name: str, source: str = "") -> Path:
    folder = root / kind / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(source)
    (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
    return folder


def block(kind: str, implementation: str, **settings: Any) -> dict[str, Any]:
    return {kind: {implementation: {"entrypoint": "app.py", "host": "127.0.0.1", "port": 1, **settings}}}


def test_every_server_block_becomes_an_instance(tmp_path: Path) -> None:
    """Global keys and plain values are not servers."""
    write_server(tmp_path, "resources_servers", "sums")
    write_server(tmp_path, "responses_api_agents", "looper", "class A:\n    HOSTING = 'cell'\n")
    config = {
        "default_host": "127.0.0.1",
        "head_server": {"host": "127.0.0.1", "port": 2},
        "my_sums": block("resources_servers", "sums", port=7),
        "my_agent": block("responses_api_agents", "looper", port=8),
    }

    instances = find_instances(config, [tmp_path])

    assert [(i.name, i.module, i.port, i.hosting) for i in instances] == [
        ("my_sums", "resources_servers.sums.app", 7, "process"),
        ("my_agent", "responses_api_agents.looper.app", 8, "cell"),
    ]


@pytest.mark.parametrize(
    ("source", "hosting"),
    [
        ("class S:\n    HOSTING = 'cell'\n", "cell"),
        ("class S:\n    HOSTING: str = 'cell'\n", "cell"),
        ("class S:\n    pass\n", "process"),
        ("HOSTING = 'cell'\n", "process"),
        ("class S:\n    HOSTING = 'moon'\n", "process"),
        ("class S(:\n", "process"),
    ],
)
def test_a_class_declares_its_hosting(tmp_path: Path, source: str, hosting: str) -> None:
    """The file is parsed, not run: importing any module in the parent would affect every server."""
    path = tmp_path / "app.py"
    path.write_text(source)

    assert declared_hosting(path) == hosting


def test_the_configuration_overrides_the_declared_hosting(tmp_path: Path) -> None:
    """Users must be able to isolate a server without editing it."""
    write_server(tmp_path, "resources_servers", "sums", "class S:\n    HOSTING = 'cell'\n")

    (instance,) = find_instances({"s": block("resources_servers", "sums", hosting="process")}, [tmp_path])

    assert instance.hosting == "process"


def test_unmet_requirements_mean_a_venv(tmp_path: Path) -> None:
    """Code that needs other packages cannot run in this interpreter, whatever it declares."""
    folder = write_server(tmp_path, "resources_servers", "sums", "class S:\n    HOSTING = 'cell'\n")
    (folder / "requirements.txt").write_text("no-such-package\n")

    (instance,) = find_instances({"s": block("resources_servers", "sums")}, [tmp_path])

    assert instance.hosting == "venv"


def test_a_missing_folder_is_named_with_the_searched_roots(tmp_path: Path) -> None:
    """The most frequent typo is the name of the folder."""
    with pytest.raises(ConfigError, match=f"^s: folder resources_servers/sum not found in {tmp_path}"):
        find_instances({"s": block("resources_servers", "sum")}, [tmp_path])


def test_a_missing_entrypoint_is_named(tmp_path: Path) -> None:
    """The folder is right, the file is not."""
    write_server(tmp_path, "resources_servers", "sums")

    with pytest.raises(ConfigError, match=r"file not found: .*main\.py"):
        find_instances({"s": block("resources_servers", "sums", entrypoint="main.py")}, [tmp_path])


def test_overrides_of_an_unconfigured_instance_are_named(tmp_path: Path) -> None:
    """`+simple_agent.….name=x` without the agent's file is a mistake on the command line."""
    write_server(tmp_path, "resources_servers", "sums")

    with pytest.raises(ConfigError, match=r"^s\.resources_servers\.sums: has no entrypoint"):
        find_instances({"s": {"resources_servers": {"sums": {"domain": "math"}}}}, [tmp_path])


def test_the_first_root_wins(tmp_path: Path) -> None:
    """A user's tree overrides ours."""
    mine = write_server(tmp_path / "mine", "resources_servers", "sums")
    write_server(tmp_path / "ours", "resources_servers", "sums")

    (instance,) = find_instances({"s": block("resources_servers", "sums")}, [tmp_path / "mine", tmp_path / "ours"])

    assert instance.folder == mine
