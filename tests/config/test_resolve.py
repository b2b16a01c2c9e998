"""From files, env.yaml and overrides to one checked tree."""

import os
import warnings
from importlib import metadata

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.errors import ConfigError, ConfigMissingValuesError, MalformedConfigPathsError

BOTH = "+config_paths=[model.yaml,weather.yaml]"
BLOCK = "weather.resources_servers.example_weather"


def test_the_seed_example_resolves_with_an_address_for_every_server(weather):
    """This is what every user does first."""
    resolved = weather.resolve(BOTH)

    config = resolved.config
    assert isinstance(config, DictConfig)
    assert config.policy_model.responses_api_models.openai_model.openai_api_key == "sk-verysecret"
    assert [instance.name for instance in resolved.instances.valid] == ["policy_model", "weather", "weather_agent"]
    assert config.weather.resources_servers.example_weather.host == "127.0.0.1"
    assert config.disallowed_ports == [11000, 12000, 12001, 12002]
    assert config.head_server == {"host": "127.0.0.1", "port": 11000}
    assert resolved.warnings == []


def test_later_files_win_then_env_yaml_then_the_command_line(workspace):
    """A user who overrides a value must know which source wins without reading code."""
    workspace.write(one="{a: 1, b: 1, c: 1, d: 1}", two="{b: 2, c: 2, d: 2}", env="{c: 3, d: 3}")

    config = workspace.resolve("+config_paths=[one.yaml,two.yaml]", "+d=4").config

    assert [config[key] for key in "abcd"] == [1, 2, 3, 4]


def test_initial_values_rank_with_the_command_line_and_below_its_overrides(workspace):
    """A trainer's values win over files; what a person types wins over the trainer."""
    workspace.write(env="{a: env, b: env}")

    config = workspace.resolve("+b=typed", initial={"a": "trainer", "b": "trainer"}).config

    assert (config.a, config.b) == ("trainer", "typed")


def test_a_file_overrides_the_files_it_includes(workspace):
    """A variant config includes its base and changes a few keys; the base must not win."""
    workspace.write(
        top="{config_paths: [base.yaml], x: top}",
        base="{config_paths: [deep.yaml], x: base, y: base}",
        deep="{y: 0, z: 0}",
    )

    config = workspace.resolve("+config_paths=[top.yaml]").config

    assert (config.x, config.y, config.z) == ("top", "base", 0)
    assert config.config_paths == ["top.yaml", "base.yaml", "deep.yaml"]


def test_a_later_file_wins_over_the_includes_of_an_earlier_one(workspace):
    """Order on the command line decides, however deep the value is written."""
    workspace.write(a="{config_paths: [b.yaml]}", b="x: b", c="{config_paths: [d.yaml]}", d="x: d")

    assert workspace.resolve("+config_paths=[a.yaml,c.yaml]").config.x == "d"


def test_a_file_named_twice_is_read_once_and_reported(workspace):
    """Two benchmarks share one base; the user should know that changes to it affect both."""
    workspace.write(a="{config_paths: [shared.yaml]}", b="{config_paths: [shared.yaml]}", shared="x: 1")

    resolved = workspace.resolve("+config_paths=[a.yaml,b.yaml]")

    assert any("several configs reference 'shared.yaml'" in warning for warning in resolved.warnings)


def test_config_paths_may_point_to_a_list_in_env_yaml(weather):
    """The seed's `'+config_paths=${simple_weather_config_paths}'`."""
    weather.write(env=weather.ENV + "mine: [model.yaml, weather.yaml]\n")

    assert weather.resolve("+config_paths=${mine}").config.config_paths == ["model.yaml", "weather.yaml"]


def test_mappings_merge_deeply_and_lists_replace(workspace):
    """A user changes one nested key without repeating the rest, but can shorten a list."""
    workspace.write(a="{m: {x: 1, l: [1, 2, 3]}}", b="{m: {y: 2, l: [9]}}")

    assert workspace.resolve("+config_paths=[a.yaml,b.yaml]").config.m == {"x": 1, "y": 2, "l": [9]}


@pytest.mark.parametrize(
    ("below", "above"),
    [
        ({"a": {"b": 1}}, {"a": None}),
        ({"a": {"b": 1}}, {"a": "???"}),
        ({"a": 1}, {"a": "???"}),
        ({"a": 1}, {"a": {"b": 2}}),
        ({"a": {"b": {"c": 1}, "d": [1]}}, {"a": {"b": {"e": 2}, "d": []}}),
        ({"a": None}, {"a": {"b": 1}}),
        ({"base": {"x": 1}, "a": "${base}"}, {"a": {"y": 2}}),
        ({"a": [{"x": 1}]}, {"a": [{"y": 1}]}),
    ],
)
def test_merging_follows_omegaconf(below, above):
    """Configs written for the existing implementation keep their meaning."""
    from nemo_gym.config.trees import merge

    expected = OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(below), OmegaConf.create(above)))

    assert merge(below, above) == expected


def test_offline_resolution_leaves_ports_unassigned(weather):
    """`env validate` must run on a machine without network and not reserve anything."""
    weather.ports = None  # asking for a port would now fail

    config = weather.resolve(BOTH, offline=True).config

    assert config.weather.resources_servers.example_weather.port == -1
    assert config.disallowed_ports == [11000]


def test_what_was_resolved_offline_can_be_resolved_again(weather):
    """`env resolve` prints a config that people feed back."""
    first = weather.resolve(BOTH, offline=True).config

    again = weather.resolve(initial=OmegaConf.to_container(first)).config

    assert again.weather.resources_servers.example_weather.port > 0


def test_nothing_is_written_to_the_working_directory(weather):
    """Hydra creates an outputs folder in every directory it is started in."""
    before = sorted(os.listdir(weather.root))

    weather.resolve(BOTH)

    assert sorted(os.listdir(weather.root)) == before


def test_the_machine_address_is_used_on_request(weather):
    """Servers on other machines cannot reach 127.0.0.1."""
    config = weather.resolve(BOTH, "+use_absolute_ip=true").config

    assert config.head_server.host == config.weather.resources_servers.example_weather.host == "10.0.0.7"


def test_results_and_cache_directories_become_absolute(workspace):
    """Servers run in other working directories and would write elsewhere."""
    config = workspace.resolve("+results_dir=out").config

    assert config.results_dir == str(workspace.root / "out")
    assert config.cache_dir == str(workspace.root / "cache")
    assert config.uv_cache_dir == str(workspace.root / "cache" / "uv")


def test_skip_verification_is_the_default_of_every_agent(weather):
    """A user who only collects rollouts must not have to edit each agent."""
    config = weather.resolve(BOTH, "+skip_verification=true", "+skip_verification_reward=0.5").config

    agent = config.weather_agent.responses_api_agents.simple_agent
    assert (agent.skip_verification, agent.skip_verification_reward) == (True, 0.5)
    assert "skip_verification" not in config.weather.resources_servers.example_weather


def test_the_stand_in_model_yields_to_the_real_one(weather):
    """`validate` needs no model endpoint."""
    stand_in = {
        "policy_base_url": "",
        "policy_api_key": "",
        "policy_model_name": "",
        "policy_model": {"responses_api_models": {"dummy_model": {"entrypoint": "app.py", "extra": 1}}},
    }
    weather.write(env="")

    alone = weather.resolve("+config_paths=[weather.yaml]", initial=stand_in, offline=True).config
    beside = weather.resolve(BOTH, initial=stand_in, offline=True).config

    assert list(alone.policy_model.responses_api_models) == ["dummy_model"]
    assert list(beside.policy_model.responses_api_models) == ["openai_model"]
    assert beside.policy_model.responses_api_models.openai_model.extra == 1


def test_all_missing_values_are_listed_with_their_position(workspace):
    """One missing value per attempt would cost a run for each; the listed overrides can be pasted."""
    workspace.write(a="x: ???\nlist:\n  - y: ???\n")

    with pytest.raises(ConfigMissingValuesError) as caught:
        workspace.resolve("+config_paths=[a.yaml]")

    text = str(caught.value)
    assert "x  (a.yaml:1:1)" in text
    assert "list[0].y  (a.yaml:3:5)" in text
    assert "++x=<value> ++list[0].y=<value>" in text


def test_a_missing_value_is_filled_from_the_command_line(workspace):
    """`???` marks values that only the user knows; typing one must be enough."""
    workspace.write(a="x: ???")

    assert workspace.resolve("+config_paths=[a.yaml]", "+x=3").config.x == 3


def test_secrets_are_hidden_on_request_and_settings_stay_readable(weather):
    """A printed configuration is shared in bug reports: without keys, but still useful."""
    config = weather.resolve(BOTH, f"+{BLOCK}.max_output_tokens=4096", hide_secrets=True).config

    text = OmegaConf.to_yaml(config, resolve=True)
    assert "sk-verysecret" not in text
    assert "max_output_tokens: 4096" in text


def test_broken_server_blocks_can_be_reduced_to_warnings(weather):
    """A user can run the servers that work while another block is still being written."""
    weather.write(weather=weather.WEATHER.replace("domain: agent", "domain: agnet"))

    resolved = weather.resolve(BOTH, "+error_on_almost_servers=false")

    assert any("did you mean 'agent'" in warning for warning in resolved.warnings)


def test_env_yaml_may_speak_of_servers_that_are_not_used(workspace):
    """It is shared by many runs."""
    workspace.write(env="other: {responses_api_models: {vllm_model: {temperature: 1}}}")

    resolved = workspace.resolve()

    assert any("'other' has no entrypoint" in warning for warning in resolved.warnings)


def test_older_dataset_identifiers_are_warnings_not_errors(weather):
    """Existing configs must keep running, also where warnings are errors."""
    weather.write(
        weather=weather.WEATHER.replace(
            "jsonl_fpath: data/example.jsonl", "jsonl_fpath: a.jsonl, huggingface_identifier: {repo_id: org/x}"
        )
    )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolved = weather.resolve(BOTH)

    assert any("huggingface_identifier" in warning for warning in resolved.warnings)


def test_parent_versions_are_shared_with_servers_only_if_installed(workspace, monkeypatch):
    """A server with another ray or openai version than its head fails in ways that are hard to trace."""
    versions = {"ray": "2.60.0", "openai": "2.8.0"}

    def installed_version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", installed_version)

    assert workspace.resolve().config.head_server_deps == ["ray[default]==2.60.0", "openai==2.8.0"]
    assert workspace.resolve("+allow_openai_version_skew=true").config.head_server_deps == ["ray[default]==2.60.0"]
    versions.clear()
    assert workspace.resolve().config.head_server_deps == []


def test_a_mapping_for_config_paths_is_refused(workspace):
    """Its keys would otherwise be taken as paths, or no server would be configured."""
    with pytest.raises(MalformedConfigPathsError, match="not a mapping"):
        workspace.resolve("+config_paths={a: b}")


def test_an_explicit_env_path_replaces_the_default_env_yaml(workspace, tmp_path):
    """A test run must not pick up the personal keys of the working directory."""
    workspace.write(env="x: found", mine="x: given")

    assert workspace.resolve(env_path=tmp_path / "mine.yaml").config.x == "given"
    assert workspace.resolve(read_env=False).config.get("x") is None


def test_a_dangling_interpolation_outside_servers_is_only_a_warning(workspace):
    """env.yaml holds notes for other runs; they must not stop this one."""
    resolved = workspace.resolve("+note=${nothing_here}")

    assert any("nothing_here" in warning for warning in resolved.warnings)


def test_environment_variables_are_read_through_oc_env(weather, monkeypatch):
    """Containers pass settings as variables; an unset one must fail before the servers start."""
    monkeypatch.setenv("WEATHER_UNITS", "celsius")

    config = weather.resolve(BOTH, f"+{BLOCK}.units=${{oc.env:WEATHER_UNITS}}").config

    assert config.weather.resources_servers.example_weather.units == "celsius"
    with pytest.raises(ConfigError, match="NOT_THERE"):
        weather.resolve(BOTH, f"+{BLOCK}.units=${{oc.env:NOT_THERE}}")


SEED = """\
multineedle_resources_server:
  resources_servers:
    multineedle: {entrypoint: app.py, domain: agent, verified: false}
multineedle_simple_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server:
        type: resources_servers
        name: multineedle_resources_server
      model_server:
        type: responses_api_models
        name: openai_model
      datasets:
      - name: train
        type: train
        license: Apache 2.0
        jsonl_fpath: resources_servers/multineedle/data/train.jsonl
        gitlab_identifier:
          dataset_name: multineedle
          version: 0.0.1
          artifact_fpath: multineedle/train.jsonl
        license: Apache 2.0
openai_model:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_api_key: ${policy_api_key}
"""


def test_the_readmes_own_config_resolves_as_it_stands(workspace):
    """It repeats `license` and uses the older identifier and model instance; people paste it."""
    workspace.write(seed=SEED, env=workspace.ENV)

    resolved = workspace.resolve("+config_paths=[seed.yaml]")

    assert len(resolved.instances.valid) == 3
    assert resolved.instances.valid[1].datasets[0].source.version == "0.0.1"
    assert any("'license' is given twice with the same value" in warning for warning in resolved.warnings)


def test_nothing_in_a_resolved_configuration_shows_a_secret_by_accident(weather):
    """Tracebacks and debuggers print such objects."""
    resolved = weather.resolve(BOTH, "+judge_api_key=sk-typed-in")

    for thing in (resolved, resolved.locations.sources, resolved.instances.valid, resolved.locations.overrides):
        assert "sk-" not in repr(thing)
