"""A table that is too large for Weights & Biases is cut, and that is said."""

from typing import Any

import pytest

from nemo_gym.config_types import WANDBConfig
from nemo_gym.exporters import wandb_exporter
from nemo_gym.exporters.wandb_exporter import WandbExporter


class Table:
    """What we use of wandb's."""

    def __init__(self, columns: list[str], log_mode: str) -> None:
        self.columns = columns
        self.rows: list[str] = []

    def add_data(self, text: str) -> None:
        self.rows.append(text)


class Run:
    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)


@pytest.mark.parametrize(("name", "most"), [("MAX_ROWS", 3), ("MAX_CHARACTERS", 3 * len('{"reward":1.0}'))])
def test_a_table_has_room_for_so_much(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """wandb keeps it in memory; a night's rollouts must not end the process that reports them."""
    monkeypatch.setattr(wandb_exporter, name, most)
    exporter = WandbExporter(WANDBConfig())
    exporter._wandb = type("wandb", (), {"Table": Table})
    exporter._run = run = Run()
    taken = 0

    def rollouts() -> Any:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield {"reward": 1.0}

    exporter._log_rollouts(rollouts())

    assert run.logged[0]["Rollouts"].rows == ['{"reward":1.0}'] * 3
    assert taken == 4
    assert "the table has the first 3 rollouts; the output file has all" in caplog.text
