"""A plot is drawn in the right format, or refused before the work begins."""

from pathlib import Path

import pytest

from nemo_gym.data import plot as plotting
from nemo_gym.data.plot import PlotRefused, check_plot, plot
from nemo_gym.data.row_metrics import Metrics


def metrics(*, tokens: bool) -> Metrics:
    metrics_of_rows = Metrics()
    for length in (3, 40, 40, 500):
        metrics_of_rows.words[length] += 1
        metrics_of_rows.turns[1] += 1
        if tokens:
            metrics_of_rows.tokens[length] += 1
    return metrics_of_rows


@pytest.mark.parametrize(
    ("name", "begin", "tokens"), [("a/p.png", b"\x89PNG", True), ("p.svg", b"<?xml", False), ("P.SVG", b"<?xml", True)]
)
def test_the_ending_decides_the_format(tmp_path, name, begin, tokens):
    """Users choose the format by the file name; without a tokenizer the plot shows words."""
    pytest.importorskip("matplotlib")

    plot({"train": metrics(tokens=tokens), "validation": metrics(tokens=tokens)}, tmp_path / name)

    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(begin)


def test_other_formats_are_refused_at_once():
    """An error after an hour of reading rows is an hour late."""
    with pytest.raises(PlotRefused, match=r"written as \.png or \.svg, not as '\.gif'"):
        check_plot(Path("x.gif"))
    with pytest.raises(PlotRefused, match="without suffix"):
        check_plot(Path("x"))


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    """matplotlib is optional, so the message must contain the command that installs it."""
    monkeypatch.setattr(plotting.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(PlotRefused, match=r"pip install 'nemo-gym\[data\]'"):
        check_plot(Path("x.png"))
