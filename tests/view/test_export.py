"""A bundle is everything the page needs, in files that open from disk."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_gym.view import export as exporting
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.export import TooMuchToExport, export_bundle
from tests.view.records import failure, record


def load_data(path: Path) -> tuple[str, object]:
    """What a data file hands to the page."""
    text = path.read_text()
    name, data = json.loads("[" + text.removeprefix("gymLoaded(").removesuffix(");\n") + "]")
    return name, data


def test_a_bundle_holds_the_page_the_table_and_every_rollout(index: RunDatabase, tmp_path: Path) -> None:
    """It must open without a server."""
    assert export_bundle([index, index], tmp_path / "bundle") == 12

    bundle = tmp_path / "bundle"
    names = {path.name for path in bundle.iterdir()}
    assert {"index.html", "favicon.svg", "data"} <= names
    name, data = load_data(bundle / "data" / "bundle.js")
    assert name == "bundle"
    assert isinstance(data, dict)
    assert [len(run["rows"]) for run in data["runs"]] == [6, 6]
    assert data["comparisons"]["0-1"]["tasks"] == 3
    name, data = load_data(bundle / "data" / "1" / "2-0.js")
    assert name == "1/2-0"
    assert isinstance(data, dict)
    assert data["raw"]["reward"] == 1.0
    assert "://" not in (bundle / "index.html").read_text(), "nothing is fetched from anywhere"


def test_only_matching_rollouts_are_exported(index: RunDatabase, tmp_path: Path) -> None:
    """Shared bundles should be small."""
    assert export_bundle([index], tmp_path / "bundle", filter_text="reward < 1") == 2


def test_a_bundle_that_is_too_large_is_refused(
    index_of: Callable[..., RunDatabase], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of a million files cannot be opened."""
    monkeypatch.setattr(exporting, "MAX_ROLLOUTS", 1)
    index = index_of(record(0), record(1), failures=(failure(2),))

    with pytest.raises(TooMuchToExport, match="3 rollouts"):
        export_bundle([index], tmp_path / "bundle")

    assert not (tmp_path / "bundle").exists()
