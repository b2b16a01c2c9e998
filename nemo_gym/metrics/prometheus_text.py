"""Metrics in the text format that Prometheus scrapes (version 0.0.4): counters, gauges and histograms.

The format is a few lines of text, so no library is needed in servers; tests read it with the parser of the library.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nemo_gym.metrics.latency import LatencyHistogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]
Values = Sequence[tuple[Labels, float | LatencyHistogram]]


@dataclass(frozen=True)
class MetricFamily:
    """One metric with its values by labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    values: Values


def format_metrics(families: Iterable[MetricFamily]) -> str:
    """Return the page of all metrics; metrics without a value are left out."""
    lines: list[str] = []
    for family in families:
        if not family.values:
            continue
        lines += [f"# HELP {family.name} {_escape(family.meaning)}", f"# TYPE {family.name} {family.kind}"]
        for labels, value in family.values:
            if isinstance(value, LatencyHistogram):
                lines += _histogram_lines(family.name, labels, value)
            else:
                number = int(value) if value.is_integer() else value
                lines.append(f"{family.name}{_format_labels(labels)} {number}")
    return "\n".join([*lines, ""])


def _histogram_lines(name: str, labels: Labels, histogram: LatencyHistogram) -> list[str]:
    buckets = [
        f"{name}_bucket{_format_labels({**labels, 'le': bound})} {count}" for bound, count in histogram.cumulative()
    ]
    own = _format_labels(labels)
    return [*buckets, f"{name}_sum{own} {histogram.total:.6f}", f"{name}_count{own} {histogram.count}"]


def _format_labels(labels: Labels) -> str:
    parts = ",".join(f'{name}="{_escape(text, quotes=True)}"' for name, text in labels.items())
    return f"{{{parts}}}" if parts else ""


def _escape(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
