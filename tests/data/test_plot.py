"""Pictures are drawn as asked, or refused before the work begins."""

from pathlib import Path

import pytest

from nemo_gym.data import plot as plotting
from nemo_gym.data.measure import Metrics
from nemo_gym.data.plot import PlotRefused, check_plot, plot


def metrics(*, tokens: bool) -> Metrics:
    found = Metrics()
    for length in (3, 40, 40, 500):
        found.words.add(length)
        found.turns.add(1)
        if tokens:
            found.tokens.add(length)
    return found


@pytest.mark.parametrize(
    ("name", "begin", "tokens"), [("a/p.png", b"\x89PNG", True), ("p.svg", b"<?xml", False), ("P.SVG", b"<?xml", True)]
)
def test_the_ending_decides_the_format(tmp_path, name, begin, tokens):
    """As everywhere else; without a tokenizer the picture shows words."""
    pytest.importorskip("matplotlib")

    plot({"train": metrics(tokens=tokens), "validation": metrics(tokens=tokens)}, tmp_path / name)

    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(begin)


def test_other_formats_are_refused_at_once():
    """Not after an hour of rows."""
    with pytest.raises(PlotRefused, match=r"written as \.png or \.svg, not as '\.gif'"):
        check_plot(Path("x.gif"))
    with pytest.raises(PlotRefused, match="without ending"):
        check_plot(Path("x"))


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    """One line, and it can be typed."""
    monkeypatch.setattr(plotting.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(PlotRefused, match=r"pip install 'nemo-gym\[data\]'"):
        check_plot(Path("x.png"))
