"""A bundle is everything the page needs, in files that open from disk."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.view import export as exporting
from nemo_gym.view.export import TooMuchToExport, export
from nemo_gym.view.index import RunIndex
from tests.view.records import failure, record


def loaded(path: Path) -> tuple[str, object]:
    """What a data file hands to the page."""
    text = path.read_text()
    name, data = json.loads("[" + text.removeprefix("gymLoaded(").removesuffix(");\n") + "]")
    return name, data


def test_a_bundle_holds_the_page_the_table_and_every_rollout(index: RunIndex, tmp_path: Path) -> None:
    assert export([index, index], tmp_path / "bundle") == 12

    bundle = tmp_path / "bundle"
    assert {path.name for path in bundle.iterdir()} == {"index.html", "app.js", "filter.js", "style.css", "data"}
    name, data = loaded(bundle / "data" / "bundle.js")
    assert name == "bundle"
    assert isinstance(data, dict)
    assert [len(run["rows"]) for run in data["runs"]] == [6, 6]
    assert data["comparisons"]["0-1"]["tasks"] == 3
    name, data = loaded(bundle / "data" / "1" / "2-0.js")
    assert name == "1/2-0"
    assert isinstance(data, dict)
    assert data["raw"]["reward"] == 1.0
    assert "://" not in (bundle / "index.html").read_text(), "nothing is fetched from anywhere"


def test_only_what_was_asked_for_is_exported(index: RunIndex, tmp_path: Path) -> None:
    assert export([index], tmp_path / "bundle", where="reward < 1") == 2


def test_a_bundle_nobody_could_open_is_refused(
    index_of: Callable[..., RunIndex], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "MOST_ROLLOUTS", 1)
    index = index_of(record(0), record(1), failures=(failure(2),))

    with pytest.raises(TooMuchToExport, match="3 rollouts"):
        export([index], tmp_path / "bundle")

    assert not (tmp_path / "bundle").exists()
