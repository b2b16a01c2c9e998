"""What a person reads when a configuration is wrong: where, what, the nearest right name, the fix."""

import pytest
from pydantic import ConfigDict

from nemo_gym.config.checks import check_server_block
from nemo_gym.config.schema_servers import BaseRunServerInstanceConfig
from nemo_gym.config.secrets import Secret
from nemo_gym.errors import (
    AlmostServerError,
    ConfigError,
    ConfigInterpolationError,
    ConfigPathNotFoundError,
    MalformedConfigPathsError,
    ServerRefNotFoundError,
)

BOTH = "+config_paths=[model.yaml,weather.yaml]"


@pytest.fixture
def error_after_change(weather):
    """Return the text of the error after one change to the working example."""

    def text(old: str, new: str, *overrides: str, kind: type[ConfigError] = ConfigError) -> str:
        assert old in weather.WEATHER
        weather.write(weather=weather.WEATHER.replace(old, new))
        with pytest.raises(kind) as caught:
            weather.resolve(BOTH, *overrides)
        return str(caught.value)

    return text


def test_an_implementation_name_in_a_reference_is_answered_with_the_instance_id(error_after_change):
    """The seed calls this the common mistake."""
    text = error_after_change("name: weather}", "name: example_weather}", kind=ServerRefNotFoundError)

    assert text == (
        "weather.yaml:10:51: server 'weather_agent': resources_server refers to 'example_weather', "
        "which is an implementation; refer to the instance id\n  try: name: weather"
    )


def test_an_unknown_reference_suggests_similar_names(error_after_change):
    """A misspelt server name otherwise appears as a failed call in the middle of a run."""
    text = error_after_change("name: policy_model", "name: policy_modle", kind=ServerRefNotFoundError)

    assert text.startswith("weather.yaml:13:9: server 'weather_agent': model_server could not find")
    assert "did you mean 'policy_model'?" in text


def test_an_unknown_reference_without_a_similar_name_lists_all_names(error_after_change):
    """Without a suggestion the user would have to read every included file for the right name."""
    assert "available responses_api_models: policy_model" in error_after_change("name: policy_model", "name: zzz")


def test_a_reference_of_the_wrong_type_names_the_right_type(error_after_change):
    """The name is correct, so an error that calls it unknown would mislead."""
    text = error_after_change("{type: resources_servers, name: weather}", "{type: responses_api_models, name: weather}")

    assert "type: resources_servers" in text


def test_missing_policy_values_without_env_yaml_say_what_to_create(weather):
    """The first thing a newcomer runs into."""
    (weather.root / "env.yaml").unlink()

    with pytest.raises(ConfigInterpolationError) as caught:
        weather.resolve(BOTH)

    text = str(caught.value)
    assert text.startswith("model.yaml:5:7: policy_base_url, policy_api_key, policy_model_name are not set")
    assert "env.yaml not found" in text
    assert "create env.yaml with the keys policy_base_url, policy_api_key, policy_model_name" in text
    assert "+policy_base_url=…" in text
    assert "--model-url" in text


def test_one_missing_policy_value_is_requested_in_the_existing_env_yaml(weather):
    """Advice to create a file that exists would make the user overwrite the other keys."""
    weather.write(env="{policy_base_url: u, policy_api_key: k}")

    with pytest.raises(ConfigInterpolationError, match=r"add to env\.yaml the keys policy_model_name, or pass"):
        weather.resolve(BOTH)


def test_a_dangling_interpolation_names_the_value_the_key_and_a_fix(error_after_change):
    """OmegaConf's own error names neither the file nor the key that holds the typo."""
    text = error_after_change(
        "domain: agent", "domain: agent\n      n: ${policy_mdoel_name}", kind=ConfigInterpolationError
    )

    assert text.startswith("weather.yaml:6:7: 'weather.resources_servers.example_weather.n' is ${policy_mdoel_name}")
    assert "did you mean 'policy_model_name'?" in text


def test_an_interpolation_cycle_is_reported(error_after_change):
    """Two values that refer to each other would otherwise end in a RecursionError."""
    text = error_after_change(
        "domain: agent", "domain: agent\n      a: ${x}", "+x=${y}", "+y=${x}", kind=ConfigInterpolationError
    )

    assert "cyclic reference" in text


SERVER = "\ns: {resources_servers: {s: {entrypoint: a, domain: math, t: '${v30}'}}}"


@pytest.mark.parametrize(
    "step", ["${{v{n}}}${{v{n}}}", "[ '${{v{n}}}', '${{v{n}}}' ]", "{{a: '${{v{n}}}', b: '${{v{n}}}'}}"]
)
def test_values_that_double_and_double_are_refused(workspace, step):
    """Thirty short lines can mean a billion values."""
    lines = ["v0: x", *(f"v{n}: " + step.format(n=n - 1) for n in range(1, 31))]
    workspace.write(a="\n".join(lines) + SERVER)

    with pytest.raises(ConfigInterpolationError, match="more than 50,000 values"):
        workspace.resolve("+config_paths=[a.yaml]")


def test_a_scalar_for_config_paths_is_answered_with_the_list_to_type(weather):
    """Brackets are easy to forget; the error shows the line to type."""
    with pytest.raises(MalformedConfigPathsError) as caught:
        weather.resolve("+config_paths=model.yaml")

    assert "override '+config_paths=model.yaml'" in str(caught.value)
    assert "try: +config_paths=[model.yaml]" in str(caught.value)


def test_a_missing_file_lists_the_searched_paths_and_a_similar_name(weather):
    """The file may exist below another root than the user assumes."""
    with pytest.raises(ConfigPathNotFoundError) as caught:
        weather.resolve("+config_paths=[modle.yaml]")

    assert "did you mean 'model.yaml'?" in str(caught.value)
    assert str(weather.root / "modle.yaml") in str(caught.value)


def test_a_wrong_domain_suggests_the_nearest_and_lists_all(error_after_change):
    """An author cannot guess the closed list of domains."""
    text = error_after_change("domain: agent", "domain: agnet", kind=AlmostServerError)

    assert text.startswith("weather.yaml:5:7: 'domain' cannot be 'agnet' — did you mean 'agent'?")
    assert "'math', 'coding'" in text


def test_a_missing_domain_lists_the_valid_ones(error_after_change):
    """New authors do not know that the field exists."""
    text = error_after_change("      domain: agent\n", "", kind=AlmostServerError)

    assert text.startswith("weather.yaml:3:5: a domain is required for resources servers: one of math, coding")


def test_train_data_without_a_license_is_refused_at_the_dataset(error_after_change):
    """Publishing training data of unknown license is a legal risk; the line shows which dataset it is."""
    text = error_after_change("type: example", "type: train", kind=AlmostServerError)

    assert text.startswith("weather.yaml:15:11: a license is required for train data ('example')")
    assert "license: Apache 2.0" in text


def test_an_unknown_license_suggests_the_nearest(error_after_change):
    """The list has one exact spelling per license, which is easy to miss."""
    text = error_after_change("type: example", "type: train, license: Apache-2.0")

    assert "did you mean 'Apache 2.0'?" in text


def test_two_implementations_in_one_block_are_named(error_after_change):
    """Only one of them would be started, and the user would not know which."""
    text = error_after_change(
        "    example_weather:\n", "    other: {entrypoint: x}\n    example_weather:\n", kind=AlmostServerError
    )

    assert text.startswith("weather.yaml:2:3: server 'weather' has 2 implementations (other, example_weather)")


def test_a_missing_entrypoint_is_reported_once_and_not_as_a_dangling_reference(error_after_change):
    """A second message about the references to that server would point away from the cause."""
    text = error_after_change(
        "      entrypoint: app.py\n      domain: agent", "      domain: agent", kind=AlmostServerError
    )

    assert text == "weather.yaml:3:5: server 'weather' has no entrypoint\n  try: add 'entrypoint: app.py'"


def test_an_unknown_hosting_suggests_the_nearest(error_after_change):
    """A typo would otherwise start the server in the default way, with other isolation."""
    text = error_after_change("domain: agent", "domain: agent\n      hosting: proces", kind=AlmostServerError)

    assert text.startswith("weather.yaml:6:7: 'hosting' cannot be 'proces' — did you mean 'process'?")


def test_a_port_out_of_range_is_refused(error_after_change):
    """The server would fail to bind after minutes of setup."""
    text = error_after_change("domain: agent", "domain: agent\n      port: 99999")

    assert text == "weather.yaml:6:7: port 99999 of 'weather' is not between 1 and 65535"


def test_two_instances_at_one_address_are_reported_with_the_cause(error_after_change):
    """Calls meant for one server would reach the other and be graded."""
    text = error_after_change(
        "domain: agent",
        "domain: agent\n      port: 5000",
        "+weather_agent.responses_api_agents.simple_agent.port=5000",
    )

    assert "override '+weather_agent.responses_api_agents.simple_agent.port=5000'" in text
    assert "'weather_agent' and 'weather' are both at 127.0.0.1:5000" in text


def test_an_instance_on_the_head_servers_port_is_refused(error_after_change):
    """Neither of them would start properly, and the bind error would not name the other."""
    assert "the head server" in error_after_change("domain: agent", "domain: agent\n      port: 11000")


def test_cyclic_includes_show_the_cycle(workspace):
    """The user cannot see which include closes the cycle from one file name."""
    workspace.write(a="config_paths: [b.yaml]", b="config_paths: [a.yaml]")

    with pytest.raises(ConfigError, match=r"^a\.yaml: the file includes itself: a\.yaml → b\.yaml → a\.yaml"):
        workspace.resolve("+config_paths=[a.yaml]")


def test_cyclic_inheritance_shows_the_cycle(error_of_config):
    """The user cannot see which block closes the cycle from one name."""
    text = error_of_config("a: {_inherit_from: b}\nb: {_copy: a}\n")

    assert text.startswith("bad.yaml:1:1: cyclic inheritance: a → b → a")


def test_several_problems_come_together(error_after_change):
    """Repairing a config one run at a time wastes time."""
    text = error_after_change(
        "domain: agent",
        "domain: agent\n      port: 99999",
        "weather_agent.responses_api_agents.simple_agent.model_server.name=nope",
    )

    assert "2 problems in the configuration" in text
    assert "1. override 'weather_agent.responses_api_agents.simple_agent.model_server.name=nope'" in text
    assert "2. weather.yaml:6:7: port 99999" in text


def test_an_inherited_value_is_located_where_it_was_written(workspace):
    """The block that inherits it does not contain the mistake."""
    workspace.write(
        base="base:\n  resources_servers:\n    s:\n      entrypoint: app.py\n      domain: mth\n",
        use="mine:\n  _inherit_from: base\n",
    )

    with pytest.raises(AlmostServerError, match=r"base\.yaml:5:7: 'domain' cannot be 'mth'"):
        workspace.resolve("+config_paths=[base.yaml,use.yaml]")


def test_a_value_from_env_yaml_is_located_there(weather):
    """The files that the user named are all correct; without the position they would be searched first."""
    weather.write(env=weather.ENV + "weather:\n  resources_servers:\n    example_weather:\n      domain: 7\n")

    with pytest.raises(AlmostServerError, match=r"env\.yaml:7:7: 'domain' cannot be 7"):
        weather.resolve(BOTH)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("+use_absolute_ip=yess", "'use_absolute_ip' must be true or false, not 'yess'"),
        ("+port_range_low=0", "'port_range_low' must be a port from 1 to 65535, not 0"),
        ("+results_dir=''", "'results_dir' must be a non-empty text, not ''"),
        ("+cache_dir=5", "'cache_dir' must be a non-empty text, not 5"),
        ("+allow_openai_version_skew=maybe", "'allow_openai_version_skew' must be true or false"),
        ("+observability_enabled=true", "needs 'model_call_capture_dir'"),
        ("+head_server={host: x,port: 70000}", "'head_server.port' must be a port"),
        ("+hf_token=[secret-value]", "'hf_token' must be text, not a list"),
        ("+disallowed_ports=[a]", "'disallowed_ports' must be a list of whole numbers"),
    ],
)
def test_global_keys_of_the_wrong_type_name_the_override(workspace, token, expected):
    """A wrong value would surface later as a bare ValueError far from the command line."""
    with pytest.raises(ConfigError) as caught:
        workspace.resolve(token)

    assert expected in str(caught.value)
    assert "override '" in str(caught.value)
    assert "secret-value" not in str(caught.value)


def test_misspelt_global_keys_are_reported_with_the_right_name(workspace):
    """A misspelt setting has no effect and no other symptom; unknown keys stay allowed."""
    workspace.write(a="dafault_host: x\nmy_own_note: 1\ndefault_hots: y\nz: ${default_hots}\n")

    warnings = workspace.resolve("+config_paths=[a.yaml]", "+num_sample_in_parallel=3").warnings

    assert warnings == [
        "a.yaml:1:1: 'dafault_host' is not a known key — did you mean 'default_host'?",
        (
            "override '+num_sample_in_parallel=3': 'num_sample_in_parallel' is not a known key"
            " — did you mean 'num_samples_in_parallel'?"
        ),
    ]


def test_a_key_of_the_newest_release_without_effect_is_reported(workspace):
    """A run that counts failures as zero there must not be compared with one that silently does not."""
    workspace.write(a="count_missing_rollouts_as_zero: true\ninterleave_repeats: false\n")

    warnings = workspace.resolve("+config_paths=[a.yaml]", "+environment_routing_mode=agent").warnings

    assert warnings == ["a.yaml:1:1: 'count_missing_rollouts_as_zero' is a key of NeMo Gym 0.7 that has no effect here"]


def test_a_secret_in_a_harmless_key_is_masked_in_the_error(weather):
    """The key name does not reveal that the value is secret; the source of the value does."""
    with pytest.raises(ConfigError) as caught:
        weather.resolve(BOTH, "+port_range_low=${policy_api_key}")

    assert "'port_range_low' must be a port from 1 to 65535, not '****'" in str(caught.value)


def test_a_malformed_interpolation_is_located_without_its_secret(error_of_config):
    """The text may be a pasted key that happens to contain a brace."""
    text = error_of_config("a:\n  - b: 'x ${'\n")
    assert text.startswith("bad.yaml:2:5: 'a[0].b':")

    assert "sk-oops" not in error_of_config("api_key: '${sk-oops {'\n")


def test_an_unresolvable_reference_names_the_server(weather):
    """The broken value is in env.yaml; the user needs to know which server depends on it."""
    weather.write(env="{policy_base_url: u, policy_model_name: m, policy_api_key: ['${nobody}']}")

    with pytest.raises(ConfigInterpolationError, match=r"server 'policy_model' cannot be resolved: .*nobody"):
        weather.resolve(BOTH)


def test_config_paths_with_a_dangling_interpolation_are_reported(workspace):
    """Treating it as an empty list would start nothing and explain nothing."""
    with pytest.raises(ConfigInterpolationError, match=r"'config_paths' is \$\{mine\}, but 'mine' is not set"):
        workspace.resolve("+config_paths=${mine}")


def test_a_block_with_two_server_types_is_judged_by_the_first(weather):
    """Errors about a type that the user did not mean would hide the real one."""
    broken = weather.WEATHER.replace("domain: agent", "domain: nonsense")
    broken = broken.replace(
        "  resources_servers:\n", "  responses_api_models: {m: {entrypoint: a, port: x}}\n  resources_servers:\n"
    )
    weather.write(weather=broken)

    with pytest.raises(AlmostServerError) as caught:
        weather.resolve(BOTH)

    assert str(caught.value) == (
        "weather.yaml:2:45: 'port': input should be a valid integer, unable to parse string as an integer, not 'x'"
    )


def test_wrong_types_in_fields_of_a_server_are_all_reported(error_after_change):
    """One wrong field per attempt would cost a run for each."""
    text = error_after_change(
        "entrypoint: app.py\n      domain", "entrypoint: 5\n      num_workers: many\n      domain"
    )

    assert "weather.yaml:5:7: 'num_workers': input should be a valid integer" in text
    assert "weather.yaml:4:7: 'entrypoint': input should be a valid string, not 5" in text


class SumsConfig(BaseRunServerInstanceConfig):
    tolerance: float = 1e-9
    judge_api_key: Secret = Secret("")


class StrictConfig(SumsConfig):
    model_config = ConfigDict(extra="forbid")


BLOCK = {"entrypoint": "app.py", "domain": "math", "description": "adds", "verified": False}


def test_a_misspelt_field_of_a_servers_config_class_is_named():
    """The server would run with the default value and the results would be wrong, not missing."""
    problems = check_server_block(("sums",), {**BLOCK, "tolerence": 1}, SumsConfig)

    assert [problem.what for problem in problems] == [
        "'tolerence' is not a field of SumsConfig — did you mean 'tolerance'?"
    ]
    assert problems[0].is_warning


@pytest.mark.parametrize(("key", "is_reported"), [("tolerence", True), ("tolerance_2", False), ("tolerance2", False)])
def test_a_misspelt_key_is_named_although_the_field_is_set(key, is_reported):
    """An override that misspells a field of the file changes nothing; a numbered key is meant as it is written."""
    problems = check_server_block(("sums",), {**BLOCK, "tolerance": 1, key: 2}, SumsConfig)

    assert [problem.fix for problem in problems] == (["tolerance"] if is_reported else [])


def test_an_undeclared_key_unlike_any_field_is_accepted():
    """Servers read keys of their choice from their block; a warning for each would be noise."""
    assert check_server_block(("sums",), {**BLOCK, "blackboard": 1}, SumsConfig) == []


def test_a_class_that_forbids_extra_keys_reports_each_once():
    """A warning and an error about the same key would look like two mistakes."""
    problems = check_server_block(("sums",), {"entrypoint": "app.py", "blackboard": 1}, StrictConfig)

    assert [(problem.what, problem.kind, problem.is_warning) for problem in problems] == [
        ("'blackboard' is not a field of StrictConfig", AlmostServerError, False)
    ]


def test_a_field_of_the_wrong_type_is_reported_without_a_secret_value():
    """The message is logged; a key given as a list must not be in it."""
    problems = check_server_block(("sums",), {**BLOCK, "tolerance": "high", "judge_api_key": ["sk-hidden"]}, SumsConfig)

    text = "\n".join(map(str, problems))
    assert "'tolerance': input should be a valid number, unable to parse string as a number, not 'high'" in text
    assert "'judge_api_key'" in text
    assert "sk-hidden" not in text


def test_a_field_problem_is_located_in_its_file(weather):
    """Only the resolved configuration knows the file of a value; the check itself sees a plain block."""
    weather.write(weather=weather.WEATHER.replace("domain: agent", "domain: agent\n      tolerence: 3"))
    resolved = weather.resolve(BOTH)
    instance = resolved.instances.valid[1]

    problems = check_server_block(instance.key_path, instance.get_inner_run_server_config_dict(), SumsConfig)

    assert str(resolved.locations.locate(problems)[0]).startswith("weather.yaml:6:7: 'tolerence' is not a field")


@pytest.mark.parametrize("url", ["127.0.0.1:9001/v1", "localhost/v1", "ftp://host/v1"])
def test_a_model_url_without_a_scheme_is_refused_at_once(weather, url):
    """Otherwise the run waits ten minutes for an endpoint that no request can reach."""
    with pytest.raises(ConfigError, match="begins with neither http:// nor https://"):
        weather.resolve(BOTH, f"++policy_base_url={url}")
