"""Whether a server has metrics of its own, told from its source."""

from pathlib import Path

import pytest

from nemo_gym.catalog.metric_hooks import MetricHooks, metric_hooks

ROOT = Path(__file__).resolve().parent.parent.parent
PLAIN = "class Server(SimpleResourcesServer):\n    async def verify(self, body): ...\n"


def hooks(tmp_path: Path, source: str) -> MetricHooks:
    path = tmp_path / "app.py"
    path.write_text(source)
    return metric_hooks(path)


def test_a_server_that_overrides_nothing_need_not_be_started(tmp_path: Path) -> None:
    """Most servers: their scores come from the files alone."""
    assert hooks(tmp_path, PLAIN) == MetricHooks(own=False, passes_on=False)


@pytest.mark.parametrize("name", ["compute_metrics", "get_key_metrics", "aggregate_metrics"])
def test_each_hook_counts(tmp_path: Path, name: str) -> None:
    """Leaving any of them out would change the file."""
    assert hooks(tmp_path, f"{PLAIN}    def {name}(self, x): return {{}}\n").own


def test_a_class_with_a_parent_from_elsewhere_may_have_inherited_hooks(tmp_path: Path) -> None:
    """Better to start one server too many than to lose its metrics."""
    assert hooks(tmp_path, "class Server(OtherServer):\n    pass\n").own
    assert hooks(tmp_path, "class Server(other.OtherServer[int]):\n    pass\n").own


def test_a_parent_in_the_same_file_is_looked_at(tmp_path: Path) -> None:
    """A base class with hooks, and one without."""
    child = "class Child(Server):\n    pass\n"

    assert not hooks(tmp_path, PLAIN + child).own
    assert hooks(tmp_path, f"{PLAIN}    def compute_metrics(self, tasks): ...\n{child}").own


@pytest.mark.parametrize("source", ["def broken(", "", "x = 1\n"])
def test_what_cannot_be_told_counts_as_having_its_own(tmp_path: Path, source: str) -> None:
    """Doubt is resolved by asking the server."""
    assert hooks(tmp_path, source).own


def test_an_agent_that_asks_its_resources_server_passes_the_question_on() -> None:
    """As our own agent does: then only the resources server matters."""
    agent = metric_hooks(ROOT / "responses_api_agents" / "simple_agent" / "app.py")

    assert agent == MetricHooks(own=False, passes_on=True)
    assert metric_hooks(ROOT / "resources_servers" / "arithmetic" / "app.py").own


def test_a_file_that_is_not_there_counts_as_having_its_own(tmp_path: Path) -> None:
    """The start of the server will say what is wrong."""
    assert metric_hooks(tmp_path / "none.py").own
