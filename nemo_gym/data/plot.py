"""Draw histograms of dataset rows by input length and by number of turns (`gym dataset collate --plot FILE`)."""

import importlib
import importlib.util
from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.catalog.row_problems import DataError
from nemo_gym.data.row_metrics import TOKENS, TURNS, WORDS, Metrics

FORMATS = (".png", ".svg")
BARS = 40


class PlotRefused(DataError):
    """The plot cannot be drawn."""

    exit_status = 2


def check_plot(path: Path) -> None:
    """Check that the plot can be drawn; called before a long collation.

    Raises:
        PlotRefused: the format is not supported, or matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        suffix = f"'{path.suffix}'" if path.suffix else "a file without suffix"
        raise PlotRefused(f"a plot is written as {' or '.join(FORMATS)}, not as {suffix}", where=str(path))
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotRefused("plots need matplotlib, which is not installed", fix="pip install 'nemo-gym[data]'")


def plot(metrics_by_type: Mapping[str, Metrics], path: Path) -> None:
    """Draw the input lengths (in words if tokens were not counted) and the turns of all dataset types, side by side."""
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(11, 4), layout="constrained")  # pyplot would change global state
    left, right = figure.subplots(1, 2)
    if all(metrics.tokens for metrics in metrics_by_type.values()):
        _draw_histograms(left, TOKENS, {kind: metrics.tokens for kind, metrics in metrics_by_type.items()})
    else:
        _draw_histograms(left, WORDS, {kind: metrics.words for kind, metrics in metrics_by_type.items()})
    _draw_histograms(right, TURNS, {kind: metrics.turns for kind, metrics in metrics_by_type.items()})
    image = BytesIO()
    figure.savefig(image, format=path.suffix.lower().removeprefix("."), dpi=150)
    with whole_file(path) as stream:
        stream.write(image.getvalue())


def _draw_histograms(axes: Any, title: str, lengths: Mapping[str, Counter[int]]) -> None:
    """Draw the histogram of each dataset type on the same axes."""
    values = [length for histogram in lengths.values() for length in histogram]
    edges = _bar_edges(min(values, default=0), max(values, default=0))
    for kind, histogram in lengths.items():
        counts = list(histogram.values())
        axes.hist(list(histogram), bins=edges, weights=counts, label=f"{kind} ({sum(counts)} rows)", alpha=0.6)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(title)
    axes.set_ylabel("rows")
    axes.legend()


def _bar_edges(shortest: int, longest: int) -> list[float]:
    """Return the edges of the bars: one bar per length for a small range, else `BARS` bars of equal width."""
    if longest - shortest < BARS:
        return [length - 0.5 for length in range(shortest, longest + 2)]
    return [shortest + (longest - shortest) * number / BARS for number in range(BARS + 1)]
