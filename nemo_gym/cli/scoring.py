"""What commands that score share: which servers are needed for it, and how scores are shown."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from nemo_gym import component_search_roots
from nemo_gym.catalog.metric_hooks import MetricHooks, metric_hooks
from nemo_gym.cli import output
from nemo_gym.config.resolve import Resolved
from nemo_gym.config.schema_refs import is_server_ref
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError
from nemo_gym.keys import SERVER_TYPES
from nemo_gym.launch.instances import instances
from nemo_gym.launch.ports import with_open_head_port
from nemo_gym.rollouts.blocks import server_blocks
from nemo_gym.server_utils import ServerClient

STAND_IN = "dummy_model"
RESOURCES_SERVER = "resources_server"
Row = dict[str, Any]
T = TypeVar("T")


def plain_config(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain data."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def only(resolved: Resolved, names: Iterable[str], *, with_others: bool = False) -> DictConfig:
    """The configuration with no servers but `names` and, if asked for, those that they refer to.

    Raises:
        ConfigError: one of them refers to a model and none was named.
    """
    plain = plain_config(with_open_head_port(resolved))
    wanted = set(names)
    waiting = list(wanted) if with_others else []
    while waiting:
        found = {ref for ref in _references(plain[waiting.pop()]) if ref in plain} - wanted
        wanted |= found
        waiting += found
    stand_ins = [name for name in wanted if STAND_IN in (plain[name].get("responses_api_models") or ())]
    if stand_ins:
        raise ConfigError(
            f"verifying needs the model '{stand_ins[0]}', and none is configured",
            fix="name it with --model-type and --model, or in --config",
        )
    kept = {name: block for name, block in plain.items() if name in wanted or not _is_server(block)}
    return OmegaConf.create(kept)


def client_of(config: DictConfig) -> ServerClient:
    """A client for the servers that this process runs."""
    head = BaseServerConfig.model_validate(dict(config["head_server"]))
    return ServerClient(head_server_config=head, global_config_dict=config)


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` gives; None when `stop` was set first, and then it is cancelled and has cleaned up."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        await asyncio.wait({working})
        return None
    return working.result()


def servers_with_metrics(config: Mapping[str, Any], agents: Iterable[str]) -> dict[str, str]:
    """For each agent whose rollouts some server has metrics of its own for: that server.

    It is the agent itself, or the resources server that the agent passes the question on to.
    """
    known = {name: block for name, block in config.items() if _is_server(block) and not _is_stand_in(block)}
    hooks: dict[str, MetricHooks] = {
        instance.name: metric_hooks(instance.folder / instance.entrypoint)
        for instance in instances(known, component_search_roots())
        if instance.kind != "responses_api_models"
    }
    blocks = server_blocks(known)
    asked: dict[str, str] = {}
    for agent in agents:
        found = hooks.get(agent)
        if found is None:
            continue
        resources = blocks[agent].reference(RESOURCES_SERVER)
        if found.own:
            asked[agent] = agent
        elif found.passes_on and resources is not None and resources in hooks and hooks[resources].own:
            asked[agent] = resources
    return asked


def show_scores(entries: Sequence[Row]) -> None:
    """Every agent's scores with their intervals, as tables."""
    for entry in entries:
        attrition = entry["attrition"]
        failed = _failed(attrition)
        output.data(f"\n{entry['agent_ref']['name']}: {attrition['scored']} rollouts scored{failed}")
        rows = [("", "mean", "95 % interval", "tasks"), *_score_rows(entry["scores"], everything=True)]
        output.table([(f"  {name}", *rest) for name, *rest in rows])
        own = [(key, value) for key, value in entry["key_metrics"].items() if not key.startswith("mean/")]
        if own:
            output.data("\n  the server's own metrics")
            output.table([(f"    {key}", _figure(value)) for key, value in own if _is_number(value)])
        for subset, scores in (entry.get("subsets") or {}).items():
            output.data(f"\n  {subset}")
            output.table([(f"    {name}", *rest) for name, *rest in _score_rows(scores, everything=False)])


def shown(entry: Row) -> Row:
    """An entry without its long parts, for `--json`."""
    return {key: value for key, value in entry.items() if key not in ("agent_metrics", "group_level_metrics")}


def _score_rows(scores: Mapping[str, Any], *, everything: bool) -> Iterator[tuple[str, ...]]:
    names = sorted(scores, key=lambda name: name != "reward")
    for name in names if everything else names[:1]:
        score = scores[name]
        yield _row(name, score)
        for kind in ("pass@k", "pass^k"):
            largest = max(score.get(kind) or {"1": None}, key=int)
            if largest != "1":
                yield _row(kind.replace("k", largest), score[kind][largest])
        if "failures_as_zero" in score:
            yield _row("failures as zero", score["failures_as_zero"])


def _row(name: str, score: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = score.get("ci95") or (None, None)
    interval = f"{_figure(low)} to {_figure(high)}" if low is not None else "too few tasks"
    return name, _figure(score["mean"]) if "mean" in score else "-", interval, str(score["num_tasks"])


def _failed(attrition: Mapping[str, Any]) -> str:
    if not attrition["failed"]:
        return ""
    kinds = ", ".join(f"{kind} {count}" for kind, count in attrition["failed_by_kind"].items())
    return f", {attrition['failed']} failed ({kinds})"


def _figure(value: Any) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.1f}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_server(block: Any) -> bool:
    return isinstance(block, Mapping) and any(kind in block for kind in SERVER_TYPES)


def _is_stand_in(block: Mapping[str, Any]) -> bool:
    return STAND_IN in (block.get("responses_api_models") or ())


def _references(value: Any) -> set[str]:
    """The servers that a block refers to, at any depth."""
    if isinstance(value, dict):
        reference = is_server_ref(value)
        if reference is not None:
            return {reference.name}
        return {name for part in value.values() for name in _references(part)}
    if isinstance(value, list):
        return {name for part in value for name in _references(part)}
    return set()
