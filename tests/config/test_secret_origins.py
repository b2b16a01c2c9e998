"""A secret is recognised by its origin, its name or its form, and appears on no surface."""

import json
import logging
import string
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_gym.cli.shared.report import resume_command
from nemo_gym.config.omegaconf_adapter import as_dict, register_resolvers, resolve_leaves
from nemo_gym.config.secret_text import (
    MaskingFormatter,
    forget_secrets,
    is_public_value,
    known_secrets,
    mask_assignments,
    mask_text,
    remember_secrets,
    scrub_text,
)
from nemo_gym.config.secrets import MaskedRepr, mask_secrets
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.run_identity import server_fields

BLOCK = "weather.resources_servers.example_weather"


@dataclass
class Entry:
    """One way of a secret into the configuration."""

    block: dict = field(default_factory=dict)
    env_yaml: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)
    words: list = field(default_factory=list)


def _flow(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


ENTRIES: dict[str, Callable[[str], Entry]] = {
    "a variable under a harmless name": lambda s: Entry({"note": "${oc.env:SEED}"}, variables={"SEED": s}),
    "a variable inside a text": lambda s: Entry({"h": {"X-A": "Token ${oc.env:SEED};v=1"}}, variables={"SEED": s}),
    "a variable in a list": lambda s: Entry({"items": ["a", "${oc.env:SEED}"]}, variables={"SEED": s}),
    "a variable in env.yaml": lambda s: Entry({"n": "${mine}"}, {"mine": "${oc.env:SEED}"}, {"SEED": s}),
    "a variable on the command line": lambda s: Entry(variables={"SEED": s}, words=[f"+{BLOCK}.n=${{oc.env:SEED}}"]),
    "a decoded list": lambda s: Entry({"d": "${oc.decode:${oc.env:SEED}}"}, variables={"SEED": f"[1, {_flow(s)}]"}),
    "a decoded mapping": lambda s: Entry(
        {"d": "${oc.decode:${oc.env:SEED}}"}, variables={"SEED": f"{{a: {_flow(s)}}}"}
    ),
    "a user-defined resolver": lambda s: Entry({"n": "x ${seed_vault:SEED}"}, variables={"SEED": s}),
    "a default of a secret variable": lambda s: Entry({"n": f"${{oc.env:NO_DB_PASSWORD,{_flow(s)}}}"}),
    "a list of credentials": lambda s: Entry({"auth": ["me", s]}),
    "a connection string": lambda s: Entry({"connection_string": f"Server=db;User=me;Pwd={s}"}),
    "a webhook": lambda s: Entry({"alert_webhook_url": f"https://hooks.example.com/services/{s}"}),
    "a misspelt name": lambda s: Entry({"pasword": s, "api_kye": s, "acess_tokne": s, "secert": s}),
    "env.yaml by name": lambda s: Entry({"n": "${my_password}"}, {"my_password": s}),
    "a nested override": lambda s: Entry(words=[f"+{BLOCK}.opts={{login: me, smtp_password: {_flow(s)}}}"]),
    "an override by name": lambda s: Entry(words=[f"+{BLOCK}.client_secret={_flow(s)}"]),
    "a block of credentials": lambda s: Entry({"credentials": {"user": "me", "value": s}}),
}

NUMBER_ENTRIES: dict[str, Callable[[int], Entry]] = {
    "a number by name": lambda n: Entry({"password": n, "api_key": -n, "n": "${my_pin_secret}"}, {"my_pin_secret": n}),
    "a fraction by name": lambda n: Entry({"access_token": n + 0.5}),
    "a list of numbers by name": lambda n: Entry({"auth": [n, {"deep": [n]}]}),
    "numbers in a block of credentials": lambda n: Entry({"credentials": {"account": n, "more": {"pin": n}}}),
    "an override with a number": lambda n: Entry(words=[f"+{BLOCK}.client_secret={n}"]),
    "a secret that another key repeats": lambda n: Entry({"password": n, "account": n, "note": f"call {n}"}),
    "a decoded number": lambda n: Entry({"n": "${oc.decode:${oc.env:SEED}}"}, variables={"SEED": str(n)}),
    "a decoded list of numbers": lambda n: Entry(
        {"n": "${oc.decode:${oc.env:SEED}}", "m": "${.n}"}, variables={"SEED": f"[1, [{n}], {n}.25]"}
    ),
    "a decoded mapping of numbers": lambda n: Entry(
        {"n": "${oc.decode:${oc.env:SEED}}"}, variables={"SEED": f"{{a: {{b: {n}}}}}"}
    ),
    "a number of a user-defined resolver": lambda n: Entry(
        {"n": "${oc.decode:${seed_vault:SEED}}"}, variables={"SEED": f"{n}"}
    ),
}

cores = st.text(string.ascii_letters + string.digits, min_size=9, max_size=30).map(lambda text: f"q7{text}")
edges = st.text("äß\"'\\@:/%#?&=+-_ !~|<>*^", max_size=6)


@st.composite
def seeded_secrets(draw: st.DrawFn) -> tuple[str, str]:
    """Return a part that must not appear anywhere, and the secret, in which odd characters surround it."""
    core = draw(cores)
    return core, draw(edges).lstrip() + core + draw(edges).rstrip()


@pytest.fixture(autouse=True)
def _user_defined_resolver():
    import os

    OmegaConf.register_new_resolver("seed_vault", lambda name: os.environ[name])
    yield
    OmegaConf.clear_resolver("seed_vault")
    forget_secrets()


def _surfaces(weather, entry: Entry) -> dict[str, str]:
    """Return what every surface shows of the configuration of `entry`."""
    texts: dict[str, str] = {}
    resolved = weather.resolve("+config_paths=[model.yaml,weather.yaml]", *entry.words, offline=True)
    plain = as_dict(resolved.config)
    texts["warnings"] = "\n".join(resolved.warnings)
    texts["head"] = OmegaConf.to_yaml(mask_secrets(resolved.config))
    texts["run.json"] = json.dumps(server_fields(plain), ensure_ascii=False)
    texts["exporters"] = json.dumps(mask_secrets(plain), ensure_ascii=False)
    texts["repr"] = repr([MaskedRepr(resolved.config), *resolved.instances.valid])
    texts["resume"] = resume_command(["eval", "run", *entry.words])
    values = plain["weather"]["resources_servers"]["example_weather"]
    record = logging.LogRecord("n", logging.ERROR, "p", 1, "bad values %r", (values,), None)
    texts["log"] = MaskingFormatter().format(record)
    texts["message"] = mask_text(f"cannot use {json.dumps(values)}")
    hidden = weather.resolve("+config_paths=[model.yaml,weather.yaml]", *entry.words, offline=True, hide_secrets=True)
    texts["env resolve"] = OmegaConf.to_yaml(OmegaConf.create(resolve_leaves(hidden.config)))
    try:
        weather.resolve("+config_paths=[model.yaml,weather.yaml]", *entry.words, f"++{BLOCK}.domain=${{{BLOCK}}}")
    except ConfigError as error:
        texts["error"] = str(error)
    return texts


@pytest.mark.parametrize("way", ENTRIES)
@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.generate],  # shrinking a failure would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=seeded_secrets())
def test_a_seeded_secret_appears_on_no_surface(weather, way, seed):
    """run.json, bundles and logs are shared with others; `env resolve` is pasted into bug reports."""
    core, secret = seed
    _check_hidden(weather, ENTRIES[way](secret), core)


@pytest.mark.parametrize("way", NUMBER_ENTRIES)
@pytest.mark.parametrize("number", [7309461, 58203746152938])
def test_a_secret_number_appears_on_no_surface(weather, way, number):
    """YAML reads an unquoted PIN or account number as a number; it is as secret as a text."""
    _check_hidden(weather, NUMBER_ENTRIES[way](number), str(number))


def _check_hidden(weather, entry: Entry, core: str) -> None:
    """Check that `core`, a part of the secret of `entry`, is on no surface."""
    block = {"entrypoint": "app.py", "domain": "agent", **entry.block}
    weather.write(
        weather=yaml.safe_dump({"weather": {"resources_servers": {"example_weather": block}}}),
        env=weather.ENV + (yaml.safe_dump(entry.env_yaml) if entry.env_yaml else ""),
    )
    forget_secrets()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in entry.variables.items():
            patch.setenv(name, value)
        texts = _surfaces(weather, entry)

    assert not [surface for surface, text in texts.items() if core in text]
    assert "example_weather" in texts["env resolve"]


@pytest.mark.parametrize("text", ["?sv=2024&sig={}&se=1", "/files/a.bin?x=1&access_token={}", "a=1&signature={}"])
def test_the_signature_of_a_query_without_its_url_is_masked(text):
    """Storage services give the query of a signed URL on its own, to be appended to any file name."""
    assert mask_text(text.format("Zm9vYmFyMTIz")) == text.format("****")


@pytest.mark.parametrize("secret", ["q7ZCarBpWmhM", 'a-b"c\\d/e7', "sk+x|y=z9"])
def test_a_secret_in_json_text_appears_on_no_surface(weather, secret):
    """Options of clients are often passed on as JSON text under a harmless name."""
    options = json.dumps({"user": "me", "api_key": secret})

    _check_hidden(weather, Entry({"options": options}), json.dumps(secret)[1:-1])


OPTIONS = {"user": "me", "api_key": "vK3mP8xQ2nL5"}


@pytest.mark.parametrize("text", [json.dumps({"client": json.dumps(OPTIONS)}), str(OPTIONS)])
def test_a_secret_in_nested_json_text_or_a_python_dictionary_appears_on_no_surface(weather, text):
    """Launchers pass the options of a client through several layers, each of which quotes them once more."""
    _check_hidden(weather, Entry({"options": text}), OPTIONS["api_key"])


@pytest.mark.parametrize(
    "text", ['{"form": "{\\"password\\": \\"<yours>\\"}"}', "{'key': 'Amsterdam'}", "'api_key':'a b c d'"]
)
def test_an_example_of_nested_json_in_a_prompt_is_no_secret(text):
    """A prompt that shows the form of an answer must stay readable, however it is quoted."""
    assert mask_secrets({"prompt": text}) == {"prompt": text}


@pytest.mark.parametrize("text", ['{"password": "<yours>"}', '{"token": "Paris"}', '{"answer": "secret"}'])
def test_an_example_of_json_in_a_prompt_is_no_secret(text):
    """A prompt that shows the form of an answer must stay readable."""
    assert mask_secrets({"prompt": text}) == {"prompt": text}


@settings(max_examples=30, deadline=None)
@given(password=cores, user=st.text(string.ascii_lowercase, min_size=1, max_size=9))
def test_the_user_part_of_a_url_is_masked_wherever_the_url_is_quoted(password, user):
    """The readiness error printed the password of the endpoint's URL."""
    url = f"https://{user}:{password}@host.example.com:8443/v1"

    for text in (url, f"Cannot connect to {url!r} (refused)", json.dumps({"error": url}), f"<{url}/models>"):
        assert password not in mask_text(text)


@pytest.mark.parametrize(
    "value",
    ["8080", "0.25", "1e-6", "True", "train", "http://localhost:8000/v1", "https://api.example.com/v1", "ab", ""],
)
def test_values_that_are_obviously_not_secret_stay_readable(value):
    """A masked port or split makes the shown configuration useless."""
    assert is_public_value(value)


def test_paths_stay_readable_and_keys_that_look_like_paths_do_not(tmp_path):
    """AWS keys contain slashes; data folders come from the environment on every cluster."""
    assert is_public_value(str(tmp_path))
    assert is_public_value(str(tmp_path / "results-of-today"))
    assert not is_public_value("/wJalrXUtnFEMI")
    assert not is_public_value("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


@pytest.mark.parametrize("name", ["keep_a_secret", "guess_password", "eat_cookies"])
def test_the_name_of_a_server_does_not_make_its_fields_secret(weather, name):
    """An environment about passwords had its hosts and settings masked, so that its runs looked the same."""
    block = {
        "entrypoint": "app.py",
        "domain": "agent",
        "host": "127.0.0.1",
        "level": "hard",
        "db_password": "hunter22x",
    }
    weather.write(weather=yaml.safe_dump({name: {"resources_servers": {name: block}}}))

    resolved = weather.resolve("+config_paths=[weather.yaml]", offline=True, hide_secrets=True)

    shown = as_dict(resolved.config)[name]["resources_servers"][name]
    assert (shown["host"], shown["level"], shown["db_password"]) == ("127.0.0.1", "hard", "****")
    fields = server_fields({name: {"resources_servers": {name: block}}})
    assert fields[f"{name}.{name}.level"] == "hard"


def test_a_value_from_the_environment_that_names_a_server_is_not_masked(weather, monkeypatch):
    """References by name are how a cluster script selects a server; masked, no message could name the server."""
    monkeypatch.setenv("CHOSEN_SERVER", "weather_agent")

    weather.resolve("+config_paths=[model.yaml,weather.yaml]", "+chosen=${oc.env:CHOSEN_SERVER}", offline=True)

    assert mask_text("weather_agent failed") == "weather_agent failed"


def test_short_secrets_are_masked_as_words_only():
    """A four-character password must not leak, and must not turn 'cabin' into 'c****'."""
    remember_secrets(["abi9", "xyzzy"])

    assert mask_text("login abi9 failed at cabi9n, xyzzy.") == "login **** failed at cabi9n, ****."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("push with ghp_abcdeABCDE55667788fghijFGHIJ failed", "push with **** failed"),
        ("Authorization: Bearer xyz55667788XYZ.55667788==", "Authorization: Bearer ****"),
        ("at https://bob:55667788x@h.example.com/v1?access_token=y55667788z&n=1", None),
        ("https://bob:q/55667788/q@h.example.com", "https://****@h.example.com"),
        ("${oc.env:MY_TOKEN, a55667788b}", "${oc.env:MY_TOKEN,****}"),
        ("5566778855667788", "****"),
        ("wrap ghp_aaaaabbbbbcccccddddd1 end", "****"),
    ],
)
def test_no_rest_of_a_secret_stays_when_another_secret_is_a_part_of_it(text, shown):
    """The pieces around the masked part, and the place of the known part, make the rest easy to guess."""
    remember_secrets(["55667788", "q/55667788/q", "wrap ghp_aaaaabbbbbcccccddddd1 end"])
    shown = shown or "at https://****@h.example.com/v1?access_token=****&n=1"

    assert mask_text(text) == shown
    assert mask_text(shown) == shown
    forget_secrets()
    assert scrub_text(text, ["wrap ghp_aaaaabbbbbcccccddddd1 end", "q/55667788/q", "55667788"]) == shown


def test_no_rest_of_an_assigned_secret_stays_when_another_secret_is_a_part_of_it():
    """The command for resuming contains overrides, and is pasted into chats."""
    remember_secrets(["55667788"])

    assert mask_assignments("db_password=55667788tail user=x") == "db_password=**** user=x"


def test_the_environment_is_read_by_omegaconf_as_before(monkeypatch):
    """Remembering a value must not change it: servers get the real one."""
    register_resolvers()
    monkeypatch.setenv("SEED", "v-1234567890")
    config = OmegaConf.create({"a": "${oc.env:SEED}", "b": "${oc.env:NOT_SET_HERE,fallback-value}"})

    assert (config.a, config.b) == ("v-1234567890", "fallback-value")
    assert known_secrets() == ["v-1234567890"]


def test_text_that_cannot_be_decoded_is_one_clear_error(weather, monkeypatch):
    """It was a traceback of the parser, and quoted the value."""
    monkeypatch.setenv("SEED", "{q7secretvalue: [")
    for value in ('${oc.decode:"2 * ]"}', '"${oc.decode:${oc.env:SEED}}"'):
        with pytest.raises(ConfigError, match="cannot be parsed") as caught:
            weather.resolve("+config_paths=[model.yaml,weather.yaml]", f"+unused={value}", offline=True)
        assert "q7secret" not in str(caught.value)
        assert "GrammarParseError" not in str(caught.value)


def test_the_error_for_decoded_json_says_what_omegaconf_does_not_read(weather, monkeypatch):
    """JSON is YAML, so the advice to write YAML was no help; the quotes around keys are what is refused."""
    monkeypatch.setenv("SEED", '{"region": "eu", "level": 2}')
    words = ["+config_paths=[model.yaml,weather.yaml]", '+unused="${oc.decode:${oc.env:SEED}}"']

    with pytest.raises(ConfigError, match="keys must not be quoted"):
        weather.resolve(*words, offline=True)

    monkeypatch.setenv("SEED", '{region: "eu", level: 2}')
    assert weather.resolve(*words, offline=True).config.unused == {"region": "eu", "level": 2}


def test_a_url_with_a_user_and_a_key_is_refused_before_anything_starts(weather):
    """Every call failed with an exception of the HTTP client, because both want the Authorization header."""
    words = ["+config_paths=[model.yaml,weather.yaml]", "++policy_base_url=https://joe:q7password@h.example.com/v1"]

    with pytest.raises(ConfigError, match="contains a user") as caught:
        weather.resolve(*words, offline=True)

    assert "q7password" not in str(caught.value)
    weather.resolve(*words, "++policy_api_key=''", offline=True)


def test_a_url_with_a_user_and_an_authorization_header_is_refused_before_anything_starts(weather):
    """Every call failed with an exception of the HTTP client, as with a key."""
    words = ["+config_paths=[model.yaml,weather.yaml]", "++policy_base_url=https://joe:q7password@h.example.com/v1"]
    words += ["++policy_api_key=''"]
    block = "++policy_model.responses_api_models.openai_model"

    with pytest.raises(ConfigError, match=r"remove openai_default_headers.authorization") as caught:
        weather.resolve(*words, f"{block}.openai_default_headers.authorization=q7token", offline=True)

    assert "q7password" not in str(caught.value) and "q7token" not in str(caught.value)
    weather.resolve(*words, f"{block}.openai_default_headers.x-team=blue", offline=True)
