"""A glance at the source says yes only where importing it would."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.launch.glance import surely_fits

SOURCE = """
    from typing import Literal
    from pydantic import field_validator
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
    from nemo_gym.config_types import ModelServerRef

    class MyConfig(BaseResourcesServerConfig):
        tolerance: float = 0.1
        limit: int
        flag: bool = False
        mode: Literal["fast", "slow"] = "fast"
        tags: list[str] = []
        judge: ModelServerRef | None = None
        anything: dict[str, int] = {}

    class Server(SimpleResourcesServer):
        config: MyConfig
"""
FINE: dict[str, Any] = {"entrypoint": "app.py", "domain": "other", "limit": 3}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(textwrap.dedent(SOURCE))
    return path


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tolerance": 1, "flag": True, "mode": "slow", "tags": ["a"]},
        {"judge": {"type": "responses_api_models", "name": "judge"}},
        {"judge": None},
    ],
)
def test_values_that_plainly_fit_need_no_import(source: Path, more: dict[str, Any]) -> None:
    assert surely_fits(source, {**FINE, **more})


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": "3"},
        {"limit": True},
        {"tolerence": 0.1},
        {"mode": "medium"},
        {"tags": "a"},
        {"tags": [1]},
        {"judge": {"name": "x"}},
        {"anything": {"a": 1}},
        {"tolerance": "${somewhere}"},
    ],
)
def test_at_the_slightest_doubt_the_class_is_asked(source: Path, wrong: dict[str, Any]) -> None:
    """A wrong yes would hide a mistake until the servers start."""
    assert not surely_fits(source, {**FINE, **wrong})


def test_a_missing_value_is_a_doubt(source: Path) -> None:
    assert not surely_fits(source, {"entrypoint": "app.py"})


@pytest.mark.parametrize(
    "change",
    [
        (
            "tolerance: float = 0.1",
            'tolerance: float = 0.1\n\n        @field_validator("limit")\n        def f(cls, v): return v',
        ),
        ("class MyConfig(BaseResourcesServerConfig)", "class MyConfig(Elsewhere)"),
        ("config: MyConfig", "config: Any"),
        ("limit: int", "limit: int ("),
    ],
)
def test_what_cannot_be_read_from_the_source_is_a_doubt(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "app.py"
    path.write_text(textwrap.dedent(SOURCE.replace(*change)))

    assert not surely_fits(path, FINE)


def test_our_own_example_is_told_at_a_glance() -> None:
    """`gym env validate` must stay quick for the first thing people try."""
    assert surely_fits(PARENT_DIR / "resources_servers" / "arithmetic" / "app.py", {"entrypoint": "app.py"})
