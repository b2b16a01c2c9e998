"""Pictures of how long the inputs are and how many turns they have."""

import importlib
import importlib.util
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from nemo_gym.catalog.files import whole_file
from nemo_gym.data.measure import TOKENS, TURNS, WORDS, Metrics
from nemo_gym.data.numbers import Lengths
from nemo_gym.data.problems import DataError

FORMATS = (".png", ".svg")
BARS = 40


class PlotRefused(DataError):
    """The picture that was asked for cannot be drawn."""

    exit_status = 2


def check_plot(path: Path) -> None:
    """Refuse what could not be drawn at the end of a long run.

    Raises:
        PlotRefused: the format is not one we draw, or matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        ending = f"'{path.suffix}'" if path.suffix else "a file without ending"
        raise PlotRefused(f"a plot is written as {' or '.join(FORMATS)}, not as {ending}", where=str(path))
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotRefused("plots need matplotlib, which is not installed", fix="pip install 'nemo-gym[data]'")


def plot(measured: Mapping[str, Metrics], path: Path) -> None:
    """Draw the lengths and turns of each type into one picture."""
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(11, 4), layout="constrained")  # without pyplot nothing global is touched
    left, right = figure.subplots(1, 2)
    counted = all(metrics.tokens.seen for metrics in measured.values())
    _draw(left, TOKENS if counted else WORDS, {k: m.tokens if counted else m.words for k, m in measured.items()})
    _draw(right, TURNS, {kind: metrics.turns for kind, metrics in measured.items()})
    drawn = BytesIO()
    figure.savefig(drawn, format=path.suffix.lower().removeprefix("."), dpi=150)
    with whole_file(path) as stream:
        stream.write(drawn.getvalue())


def _draw(axes: Any, title: str, lengths: Mapping[str, Lengths]) -> None:
    seen = [length for found in lengths.values() for length in found.seen]
    edges = _edges(min(seen, default=0), max(seen, default=0))
    for kind, found in lengths.items():
        label = f"{kind} ({sum(found.seen.values())} rows)"
        axes.hist(list(found.seen), bins=edges, weights=list(found.seen.values()), label=label, alpha=0.6)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(title)
    axes.set_ylabel("rows")
    axes.legend()


def _edges(shortest: int, longest: int) -> list[float]:
    """One bar for each length while there are few of them, else bars of equal width."""
    if longest - shortest < BARS:
        return [length - 0.5 for length in range(shortest, longest + 2)]
    return [shortest + (longest - shortest) * place / BARS for place in range(BARS + 1)]
