"""Select the servers that a scoring command needs, and print scores."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym import component_search_roots
from nemo_gym.catalog.metric_hooks import metric_hooks
from nemo_gym.cli.terminal import output
from nemo_gym.config.instances import is_placeholder, is_server_block, server_instances
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config.resolve import ResolvedConfig
from nemo_gym.config.schema_servers import is_server_ref
from nemo_gym.errors import ConfigError
from nemo_gym.launch.hosted_instances import find_instances
from nemo_gym.launch.ports import with_open_head_port
from nemo_gym.metrics.intervals import format_figure, format_interval

Entry = dict[str, Any]
"""The scores and metrics of one agent, as the metrics file stores them."""


def keep_servers(resolved: ResolvedConfig, names: Iterable[str], *, with_references: bool = False) -> DictConfig:
    """Return the configuration with no servers but `names` and, if requested, those they refer to."""
    config = as_dict(with_open_head_port(resolved))
    kept = set(names)
    pending = list(kept) if with_references else []
    while pending:
        referenced = {name for name in _references(config[pending.pop()]) if name in config} - kept
        kept |= referenced
        pending += referenced
    placeholders = [name for name in kept if is_placeholder(config[name])]
    if placeholders:
        raise ConfigError(
            f"verifying needs the model '{placeholders[0]}', which is not configured",
            fix="name it with --model-type and --model, or in --config",
        )
    blocks = {name: block for name, block in config.items() if name in kept or not is_server_block(block)}
    return OmegaConf.create(blocks)


def servers_with_metrics(config: Mapping[str, Any], agents: Iterable[str]) -> dict[str, str]:
    """Map each agent with custom metrics to the server that computes them.

    That is the agent, or the resources server to which the agent forwards the request.
    """
    blocks = {name: block for name, block in as_dict(config).items() if not is_placeholder(block)}
    instances = server_instances(blocks)
    hooks = {
        instance.name: metric_hooks(instance.folder / instance.entrypoint)
        for instance in find_instances(blocks, component_search_roots())
        if instance.kind != "responses_api_models"
    }
    computed_by: dict[str, str] = {}
    for agent in agents:
        if agent not in hooks:
            continue
        resources = instances[agent].reference("resources_server")
        if hooks[agent].own:
            computed_by[agent] = agent
        elif hooks[agent].passes_on and resources is not None and resources in hooks and hooks[resources].own:
            computed_by[agent] = resources
    return computed_by


def _references(value: Any) -> set[str]:
    """Return the names of the servers that a block refers to, at any depth."""
    if isinstance(value, dict):
        reference = is_server_ref(value)
        if reference is not None:
            return {reference.name}
        return {name for part in value.values() for name in _references(part)}
    if isinstance(value, list):
        return {name for part in value for name in _references(part)}
    return set()


def print_scores(entries: Sequence[Entry]) -> None:
    """Print tables for every agent: its scores with intervals, metrics that its server computed, scores of subsets."""
    for entry in entries:
        attrition = entry["attrition"]
        failures = ""
        if attrition["failed"]:
            kinds = ", ".join(f"{kind} {count}" for kind, count in attrition["failed_by_kind"].items())
            failures = f", {attrition['failed']} failed ({kinds})"
        output.write(f"\n{entry['agent_ref']['name']}: {attrition['scored']} rollouts scored{failures}")
        rows = [("", "mean", "95 % interval", "tasks"), *_score_rows(entry["scores"])]
        output.write_table([(f"  {name}", *rest) for name, *rest in rows])
        custom = [(key, value) for key, value in entry["key_metrics"].items() if not key.startswith("mean/")]
        if custom:
            output.write("\n  metrics computed by the server")
            output.write_table([(f"    {key}", format_figure(value)) for key, value in custom if is_number(value)])
        for subset, scores in (entry.get("subsets") or {}).items():
            output.write(f"\n  {subset}")
            output.write_table([(f"    {name}", *rest) for name, *rest in _score_rows(scores, limit=1)])


def summarize_entry(entry: Entry) -> Entry:
    """Return a metrics entry without its long parts, for `--json`."""
    return {key: value for key, value in entry.items() if key not in ("agent_metrics", "group_level_metrics")}


def _score_rows(scores: Mapping[str, Any], limit: int | None = None) -> Iterator[tuple[str, ...]]:
    """Yield table rows of at most `limit` scores, the reward first: of each the mean, pass@k and pass^k (largest k)."""
    for name in sorted(scores, key=lambda name: name != "reward")[:limit]:
        score = scores[name]
        yield _score_row(name, score)
        for kind in ("pass@k", "pass^k"):
            largest = max(score.get(kind) or {"1": None}, key=int)
            if largest != "1":  # for k = 1 both are the mean
                yield _score_row(kind.replace("k", largest), score[kind][largest])
        if "failures_as_zero" in score:
            yield _score_row("failures as zero", score["failures_as_zero"])


def _score_row(name: str, score: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = score.get("ci95") or (None, None)
    interval = "" if low is None or high is None else format_interval(low, high)
    return name, format_figure(score["mean"]) if "mean" in score else "-", interval, str(score["num_tasks"])


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
