"""The parts of `gym train demo` that work without torch: its error, and the curve in the terminal."""

import importlib.util
from typing import Any

import pytest

from nemo_gym.cli.main import main
from nemo_gym.cli.train.demo import curve


def test_without_torch_there_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch is an extra, so this is the first thing that many users see."""
    find_spec = importlib.util.find_spec

    def find_all_but_torch(name: str, *args: Any) -> Any:
        return None if name == "torch" else find_spec(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", find_all_but_torch)

    assert main(["train", "demo"]) == 1
    error = capsys.readouterr().err
    assert "the package torch is not installed" in error
    assert "pip install 'nemo-gym[train]'" in error


def test_the_curve_fits_its_width_and_shows_the_rise() -> None:
    """A hundred steps must fit into one line."""
    assert curve([0.0, 0.5, 1.0], width=10) == " ▄█"
    line = curve([step / 99 for step in range(100)], width=40)
    assert len(line) == 40
    assert (line[0], line[-1]) == (" ", "█")
