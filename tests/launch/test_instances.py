"""From a resolved configuration to the servers to run."""

from pathlib import Path
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch.instances import declared_hosting, instances


def write_server(root: Path, kind: str, name: str, source: str = "") -> Path:
    folder = root / kind / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(source)
    (folder / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
    return folder


def block(kind: str, implementation: str, **settings: Any) -> dict[str, Any]:
    return {kind: {implementation: {"entrypoint": "app.py", "host": "127.0.0.1", "port": 1, **settings}}}


def test_every_server_block_becomes_an_instance(tmp_path: Path) -> None:
    """What is not a server (global keys, plain values) is passed over."""
    write_server(tmp_path, "resources_servers", "sums")
    write_server(tmp_path, "responses_api_agents", "looper", "class A:\n    HOSTING = 'cell'\n")
    config = {
        "default_host": "127.0.0.1",
        "head_server": {"host": "127.0.0.1", "port": 2},
        "my_sums": block("resources_servers", "sums", port=7),
        "my_agent": block("responses_api_agents", "looper", port=8),
    }

    found = instances(config, [tmp_path])

    assert [(i.name, i.module, i.port, i.hosting) for i in found] == [
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
def test_a_class_declares_where_it_may_live(tmp_path: Path, source: str, hosting: str) -> None:
    """The file is read, not run: importing a stranger's module in the parent would leak into every server."""
    path = tmp_path / "app.py"
    path.write_text(source)

    assert declared_hosting(path) == hosting


def test_configuration_moves_an_instance(tmp_path: Path) -> None:
    """`hosting` in the configuration has the last word."""
    write_server(tmp_path, "resources_servers", "sums", "class S:\n    HOSTING = 'cell'\n")

    (found,) = instances({"s": block("resources_servers", "sums", hosting="process")}, [tmp_path])

    assert found.hosting == "process"


def test_unmet_requirements_mean_an_environment_of_its_own(tmp_path: Path) -> None:
    """Code that needs other packages cannot live in this interpreter, whatever it declares."""
    folder = write_server(tmp_path, "resources_servers", "sums", "class S:\n    HOSTING = 'cell'\n")
    (folder / "requirements.txt").write_text("no-such-package\n")

    (found,) = instances({"s": block("resources_servers", "sums")}, [tmp_path])

    assert found.hosting == "venv"


def test_a_missing_folder_is_named_with_where_it_was_sought(tmp_path: Path) -> None:
    """The commonest typo: the implementation's folder."""
    with pytest.raises(ConfigError, match=f"^s: there is no folder resources_servers/sum in {tmp_path}"):
        instances({"s": block("resources_servers", "sum")}, [tmp_path])


def test_a_missing_entrypoint_is_named(tmp_path: Path) -> None:
    """The folder is right, the file is not."""
    write_server(tmp_path, "resources_servers", "sums")

    with pytest.raises(ConfigError, match=r"there is no file .*main\.py"):
        instances({"s": block("resources_servers", "sums", entrypoint="main.py")}, [tmp_path])


def test_overrides_of_an_instance_nobody_configured_are_named(tmp_path: Path) -> None:
    """`+simple_agent.….name=x` without the agent's own file: a mistake of the command line, not of ours."""
    write_server(tmp_path, "resources_servers", "sums")

    with pytest.raises(ConfigError, match=r"^s\.resources_servers\.sums: has no entrypoint"):
        instances({"s": {"resources_servers": {"sums": {"domain": "math"}}}}, [tmp_path])


def test_the_first_root_wins(tmp_path: Path) -> None:
    """A user's tree shadows ours."""
    mine = write_server(tmp_path / "mine", "resources_servers", "sums")
    write_server(tmp_path / "ours", "resources_servers", "sums")

    (found,) = instances({"s": block("resources_servers", "sums")}, [tmp_path / "mine", tmp_path / "ours"])

    assert found.folder == mine
