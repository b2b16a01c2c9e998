"""Write the results of `gym train demo`: steps and rollouts as JSON lines, the curve as PNG and HTML."""

import importlib
import importlib.util
from dataclasses import asdict
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.training.demo import TARGET_REWARD, DemoRun
from nemo_gym.training.types import Rollout

WIDTH, HEIGHT, MARGIN = 720, 300, 40
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>gym train demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 760px; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b }}
table {{ border-collapse: collapse }}
td, th {{ padding: 0.2rem 0.8rem; text-align: left; border-bottom: 1px solid #ddd }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums }}
</style>
<h1>A tiny transformer learns to use a tool</h1>
<p>Mean reward of each step: the model must ask a tool for a digit and then say it.</p>
{curve}
<table>{figures}</table>
<h2>A conversation of the last step</h2>
<table><tr><th>who</th><th>what</th></tr>{conversation}</table>
</html>
"""


class DemoFiles:
    """The files of a run in one folder. Steps are written as they end, so an interrupted run keeps them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._steps: BinaryIO | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._steps = (self.folder / "steps.jsonl").open("wb")
        return self

    def __exit__(self, *error: object) -> None:
        if self._steps is not None:
            self._steps.close()

    def append_newest_step(self, run: DemoRun) -> None:
        """Append the newest step of the run to `steps.jsonl`."""
        assert self._steps is not None
        self._steps.write(orjson.dumps(asdict(run.steps[-1])) + b"\n")
        self._steps.flush()

    def write_results(self, run: DemoRun) -> list[Path]:
        """Write everything but the steps; return the paths of all files. The PNG needs matplotlib."""
        contents = {
            "rollouts.jsonl": b"".join(orjson.dumps(dict(rollout.result)) + b"\n" for rollout in run.last_rollouts),
            "summary.json": orjson.dumps(run.summary(), option=orjson.OPT_INDENT_2) + b"\n",
            "curve.html": html_page(run).encode(),
        }
        if run.steps and importlib.util.find_spec("matplotlib") is not None:
            contents["curve.png"] = png_image(run)
        for name, content in contents.items():
            with whole_file(self.folder / name) as stream:
                stream.write(content)
        return [self.folder / name for name in ("steps.jsonl", *contents)]


def png_image(run: DemoRun) -> bytes:
    """Draw the curve with matplotlib."""
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(9, 4), layout="constrained")  # pyplot would change global state
    axes = figure.subplots()
    axes.plot(run.rewards, label="mean reward")
    axes.plot([step.asked for step in run.steps], label="asked the tool", alpha=0.5)
    axes.axhline(TARGET_REWARD, color="gray", linewidth=0.8, linestyle="--")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("step")
    axes.set_title(f"gym train demo, seed {run.settings.seed}")
    axes.legend(loc="lower right")
    image = BytesIO()
    figure.savefig(image, format="png", dpi=120)
    return image.getvalue()


def html_page(run: DemoRun) -> str:
    """Return a page without external parts: the curve, the figures and one conversation."""
    facts = {"seed": run.settings.seed, **run.summary()}
    figures = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{"–" if value is None else f"{value:g}"}</td></tr>'
        for name, value in facts.items()
    )
    best = max(run.last_rollouts, key=lambda rollout: rollout.reward or 0.0, default=None)
    return PAGE.format(curve=svg_curve(run), figures=figures, conversation=_conversation_rows(best))


def svg_curve(run: DemoRun) -> str:
    """Draw the rewards as SVG."""
    count = max(1, len(run.steps) - 1)
    points = " ".join(
        f"{MARGIN + step.step / count * (WIDTH - 2 * MARGIN):.1f},{_height(step.reward):.1f}" for step in run.steps
    )
    lines = "".join(
        f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{_height(level):.1f}" y2="{_height(level):.1f}" stroke="#ddd"/>'
        f'<text x="4" y="{_height(level) + 4:.1f}" font-size="12">{level:.1f}</text>'
        for level in (0.0, 0.5, 1.0)
    )
    label = f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 8}" font-size="12" text-anchor="end">step {len(run.steps)}</text>'
    curve = f'<polyline points="{points}" fill="none" stroke="#2a6fbb" stroke-width="2"/>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="reward by step">{lines}{curve}{label}</svg>'


def _height(reward: float) -> float:
    return HEIGHT - MARGIN - reward * (HEIGHT - 2 * MARGIN)


def _conversation_rows(rollout: Rollout | None) -> str:
    """Return the items of a rollout's response as rows of a table."""
    response = rollout.result.get("response") if rollout is not None else None
    items = response.get("output") or [] if isinstance(response, dict) else []
    rows = []
    for item in items:
        if item.get("type") == "function_call":
            who, what = "model", f"calls {item.get('name')}({item.get('arguments')})"
        elif item.get("type") == "function_call_output":
            who, what = "tool", str(item.get("output"))
        else:
            who, what = "model", " ".join(str(part.get("text", "")) for part in item.get("content") or [])
        rows.append(f"<tr><td>{who}</td><td>{escape(what)}</td></tr>")
    return "".join(rows)
