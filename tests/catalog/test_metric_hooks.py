"""The metric hooks of a server are found in its source."""

from pathlib import Path

import pytest

from nemo_gym.catalog.metric_hooks import MetricHooks, metric_hooks

ROOT = Path(__file__).resolve().parent.parent.parent
WITHOUT_HOOKS = "class Server(SimpleResourcesServer):\n    async def verify(self, body): ...\n"


def hooks(tmp_path: Path, source: str) -> MetricHooks:
    path = tmp_path / "app.py"
    path.write_text(source)
    return metric_hooks(path)


def test_a_server_that_overrides_nothing_need_not_be_started(tmp_path: Path) -> None:
    """Most servers compute no metrics, and starting them only for that takes seconds."""
    assert hooks(tmp_path, WITHOUT_HOOKS) == MetricHooks(own=False, passes_on=False)


@pytest.mark.parametrize("name", ["compute_metrics", "get_key_metrics", "aggregate_metrics"])
def test_each_hook_counts(tmp_path: Path, name: str) -> None:
    """Each hook changes the metrics file, so none may be missed."""
    assert hooks(tmp_path, f"{WITHOUT_HOOKS}    def {name}(self, x): return {{}}\n").own


def test_a_class_with_a_parent_from_elsewhere_may_have_inherited_hooks(tmp_path: Path) -> None:
    """An unneeded start is better than lost metrics."""
    assert hooks(tmp_path, "class Server(OtherServer):\n    pass\n").own
    assert hooks(tmp_path, "class Server(other.OtherServer[int]):\n    pass\n").own


def test_a_parent_in_the_same_file_is_examined(tmp_path: Path) -> None:
    """Hooks are often in a base class beside the server."""
    child = "class Child(Server):\n    pass\n"

    assert not hooks(tmp_path, WITHOUT_HOOKS + child).own
    assert hooks(tmp_path, f"{WITHOUT_HOOKS}    def compute_metrics(self, tasks): ...\n{child}").own


@pytest.mark.parametrize("source", ["def broken(", "", "x = 1\n"])
def test_an_unreadable_source_counts_as_having_hooks(tmp_path: Path, source: str) -> None:
    """In doubt the server is asked, so that no metrics are lost."""
    assert hooks(tmp_path, source).own


AGENTS = ("simple", "react", "parallel", "orchestrator", "user_simulation", "gymnasium", "harness")


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_that_forwards_to_its_resources_server_is_recognised(name: str) -> None:
    """Then only the resources server decides whether a start is needed; agents inherit the forwarding."""
    agent = metric_hooks(ROOT / "responses_api_agents" / f"{name}_agent" / "app.py")

    assert agent == MetricHooks(own=False, passes_on=True)


def test_a_resources_server_with_metrics_is_recognised() -> None:
    """A server of this repository that overrides a hook has to be started for it."""
    assert metric_hooks(ROOT / "resources_servers" / "arithmetic" / "app.py").own


def test_a_missing_file_counts_as_having_hooks(tmp_path: Path) -> None:
    """Starting the server reports the missing file."""
    assert metric_hooks(tmp_path / "none.py").own
