"""Benchmarks are discovered by the declarations in their files."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from nemo_gym.benchmarks import BenchmarkConfig, PrepareBenchmarkConfig, discover_benchmarks
from nemo_gym.errors import ConfigError

AGENT = """
sums_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: sums}}
      datasets:
        - name: {name}
          type: benchmark
          jsonl_fpath: benchmarks/sums/data/sums.jsonl
          prepare_script: benchmarks/sums/prepare.py
          num_repeats: 4
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_benchmark_is_described_by_its_file(root):
    """Agent, rows and repeats are what a user needs to know before running it."""
    path = write(root / "benchmarks/sums/config.yaml", AGENT.format(name="sums"))

    benchmark = BenchmarkConfig.from_config_path(path)

    assert (benchmark.name, benchmark.agent_name, benchmark.num_repeats) == ("sums", "sums_agent", 4)
    assert benchmark.path == path
    assert benchmark.dataset.prepare_script == Path("benchmarks/sums/prepare.py")


SERVER = """
sums:
  resources_servers:
    sums:
      entrypoint: app.py
      domain: math
      datasets:
        - name: sums
          type: benchmark
          jsonl_fpath: benchmarks/sums/data/sums.jsonl
          prepare_script: benchmarks/sums/prepare.py
          num_repeats: 4
sums_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: sums}
"""


def test_a_benchmark_of_a_resources_server_is_run_by_the_agent_that_uses_it(root):
    """Release 0.7 declares datasets there; ignored, its benchmarks could be neither listed nor prepared."""
    path = write(root / "benchmarks/sums/config.yaml", SERVER)

    assert BenchmarkConfig.from_config_path(path).agent_name == "sums_agent"
    assert discover_benchmarks()["sums"].dataset.name == "sums"


def test_a_benchmark_of_a_resources_server_with_two_agents_names_one(root):
    """Running it with any of them would report the score of an agent that was not chosen."""
    second = SERVER[SERVER.index("sums_agent:") :].replace("sums_agent", "other_agent")
    path = write(root / "benchmarks/sums/config.yaml", SERVER + second)

    with pytest.raises(ConfigError, match="2 agents use the resources server 'sums'"):
        BenchmarkConfig.from_config_path(path)

    path.write_text((SERVER + second).replace("num_repeats: 4", "agent: other_agent"))
    assert BenchmarkConfig.from_config_path(path).agent_name == "other_agent"


def test_includes_and_inheritance_are_applied(root):
    """Most benchmarks reuse a generic agent and change a line or two."""
    write(root / "resources_servers/sums/configs/sums.yaml", AGENT.format(name="generic"))
    path = write(
        root / "benchmarks/hard/config.yaml",
        "config_paths: [resources_servers/sums/configs/sums.yaml]\n"
        "suite: hard_sums\n"
        "hard_agent:\n"
        "  _inherit_from: sums_agent\n"
        "  responses_api_agents:\n"
        "    simple_agent:\n"
        "      datasets:\n"
        "        - {name: '${suite}', type: benchmark, jsonl_fpath: a.jsonl, prepare_script: p.py}\n",
    )

    benchmark = BenchmarkConfig.from_config_path(path)

    assert (benchmark.name, benchmark.agent_name, benchmark.num_repeats) == ("hard_sums", "hard_agent", 1)


def test_names_come_from_the_path(root):
    """`--benchmark` takes these names."""
    write(root / "benchmarks/sums/config.yaml", AGENT.format(name="a"))
    write(root / "benchmarks/sums/long.yaml", AGENT.format(name="b"))
    write(root / "benchmarks/suite/deep/config.yaml", AGENT.format(name="c"))
    write(root / "benchmarks/sums/prompt.yaml", "user: benchmark {q}\n")
    write(root / "benchmarks/.hidden/config.yaml", AGENT.format(name="d"))

    benchmarks = discover_benchmarks([root])

    assert {name: benchmark.name for name, benchmark in benchmarks.items()} == {
        "suite/deep": "c",
        "sums": "a",
        "sums/long": "b",
    }


def test_the_first_root_wins(root, tmp_path_factory):
    """A user's folder must shadow an installed one."""
    other = tmp_path_factory.mktemp("other")
    write(root / "benchmarks/sums/config.yaml", AGENT.format(name="mine"))
    write(other / "benchmarks/sums/config.yaml", AGENT.format(name="theirs"))

    assert discover_benchmarks([root, other])["sums"].name == "mine"
    assert discover_benchmarks()["sums"].name == "mine"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sums: {}\n", "found: none"),
        (AGENT.format(name="a") + AGENT.format(name="b").replace("sums_agent", "second"), "sums_agent, second"),
        (AGENT.format(name="a").replace("          prepare_script", "          prepare_skript"), "prepare_script"),
        (AGENT.format(name="${nowhere}"), "nowhere"),
        ("a: [\n", "not valid YAML"),
        ("config_paths: [none.yaml]\n", r"none\.yaml"),
        ("a: {_inherit_from: nowhere}\n", "nowhere"),
    ],
)
def test_a_file_that_is_no_benchmark_is_an_error_only_if_strict(root, text, reason):
    """A user who names the file needs the error; a listing continues without it."""
    path = write(root / "benchmarks/sums/config.yaml", text)

    with pytest.raises(ConfigError, match=reason) as caught:
        BenchmarkConfig.from_config_path(path)
    assert "benchmarks/sums/config.yaml" in str(caught.value)
    lenient = BenchmarkConfig.from_config_path(path, strict=False)
    assert lenient is None or lenient.agent_name == "sums_agent"


def test_a_broken_neighbour_does_not_hide_the_others(root, caplog):
    """One broken file must not empty the list, and the user must learn about it."""
    write(root / "benchmarks/bad/config.yaml", "type: benchmark\na: [\n")
    write(root / "benchmarks/sums/config.yaml", AGENT.format(name="a"))

    assert list(discover_benchmarks([root])) == ["sums"]
    assert "skipped: benchmarks/bad/config.yaml" in caplog.text


def test_a_missing_file_is_a_configuration_error(root):
    """A wrong path must not be a traceback."""
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        BenchmarkConfig.from_config_path(root / "none.yaml")


def test_preparing_has_defaults_and_limits():
    """Zero processes would silently prepare nothing."""
    config = PrepareBenchmarkConfig.model_validate({"config_paths": ["x.yaml"]})

    assert (config.use_cached_prepared_benchmarks, config.num_prepare_benchmark_processes) == (False, 1)
    with pytest.raises(ValidationError):
        PrepareBenchmarkConfig.model_validate({"num_prepare_benchmark_processes": 0})
