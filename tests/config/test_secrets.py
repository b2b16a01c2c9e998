"""A secret works where it is needed and shows itself nowhere."""

import copy
import json
import pickle
import time

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel, ValidationError

from nemo_gym.config.schema_servers import BaseRunServerInstanceConfig
from nemo_gym.config.secret_names import is_secret_name
from nemo_gym.config.secret_text import forget_secrets, mask_text, remember_secrets
from nemo_gym.config.secrets import MaskedRepr, Secret, mask_secrets, redact_text, secret_values

ADDRESS = {"host": "h", "port": 1, "entrypoint": "app.py", "name": "n"}


SECRET = """
    api_key openai_api_key policy_api_key OPENAI_API_KEY openaiApiKey apikey api_keys api_key_2 key hf_token token
    access_token wandb_api_key mlflow_tracking_token password db_password passwd secret client_secret
    aws_secret_access_key Authorization authorization credentials bearer_token session_cookie access_tokens
    private_key session_key x-api-key signing_salt SALT passwordSalt login_otp passkey
"""
NOT_SECRET = """
    max_output_tokens max_tokens num_tokens prompt_tokens token_ids prompt_token_ids tokenizer token_id_capture
    key_metrics keyword keywords answer_key subset_key group_key monkey turkey keyboard eos_token pad_token stop_tokens
    group_keys api_key_env password_file secret_name cookie_name wandb_project policy_model public_key tokenize
    token_count author authority max_completion_tokens _ 123
"""


@pytest.mark.parametrize("name", SECRET.split())
def test_secret_names_are_recognised(name):
    """A key under an unrecognised name is printed by `env resolve` and stored in logs."""
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["", *NOT_SECRET.split()])
def test_names_of_ordinary_settings_are_not_secret(name):
    """Masking too much makes a resolved config useless."""
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@host/path", "https://****@host/path"),
        ("https://tok@host", "https://****@host"),
        ("postgres://u:p@ss@db:5432/x", "postgres://****@db:5432/x"),
        ("http://h/v1?api_key=abc&x=1", "http://h/v1?api_key=****&x=1"),
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer ****"),
        ("http://host:8000/v1", "http://host:8000/v1"),
        ("write to me@example.com", "write to me@example.com"),
        ("a basic understanding of things", "a basic understanding of things"),
    ],
)
def test_credentials_inside_text_are_masked(text, shown):
    """Base URLs and error texts contain passwords and tokens and are logged as they are."""
    assert mask_text(text) == shown


class Judge(BaseModel):
    api_key: str
    model: str = "m"


class ServerConfig(BaseRunServerInstanceConfig):
    openai_api_key: str
    declared: Secret = Secret("")
    headers: dict[str, str] = {}
    judge: Judge | None = None
    api_keys: list[str] = []
    max_output_tokens: int = 4096


def test_no_secret_of_a_server_config_is_shown_declared_or_not():
    """Tracebacks print configs; an author who forgets to declare a secret must not leak it."""
    config = ServerConfig(
        **ADDRESS,
        openai_api_key="sk-one",
        declared="sk-two",
        headers={"Authorization": "sk-three", "Accept": "json"},
        judge=Judge(api_key="sk-four"),
        api_keys=["sk-five", "sk-six"],
    )

    for text in (repr(config), str(config), f"{config}", repr([config]), repr(config.declared)):
        assert "sk-" not in text
    assert "max_output_tokens=4096" in repr(config)
    assert "'Accept': 'json'" in repr(config)
    assert "model='m'" in repr(config)


def test_a_declared_secret_keeps_its_value_for_use():
    """A masked key sent to a provider, or to a child process, fails every call."""
    config = ServerConfig(**ADDRESS, openai_api_key="sk-one", declared="sk-two")

    assert f"Bearer {config.declared}" == "Bearer sk-two"
    assert config.declared == "sk-two"
    assert config.model_dump()["declared"] == "sk-two"
    assert json.loads(config.model_dump_json())["declared"] == "sk-two"
    assert json.loads(json.dumps({"k": config.declared})) == {"k": "sk-two"}
    assert repr(copy.deepcopy(config).declared) == "'****'"
    assert repr(pickle.loads(pickle.dumps(config.declared))) == "'****'"
    assert ServerConfig.model_validate(config.model_dump()) == config
    assert OmegaConf.create(config.model_dump()).declared == "sk-two"


def test_validation_errors_of_a_server_config_do_not_echo_its_input():
    """Pydantic prints the rejected input, which may be a key in the wrong field."""
    with pytest.raises(ValidationError) as caught:
        ServerConfig(**{**ADDRESS, "port": "sk-mistaken"}, openai_api_key=["sk-one"])

    assert "sk-" not in str(caught.value)


def test_a_masked_copy_leaves_the_original_alone():
    """Masking for display must not break the configuration that the servers still use."""
    original = {
        "policy_api_key": "sk-1234567",
        "block": {"max_output_tokens": 4, "keys": ["a"], "url": "http://u:p@h", "note": "uses sk-1234567 here"},
        "api_keys": ["x", "y"],
        "credentials": {"user": "me"},
        "empty_key": "",
        "hf_token": None,
    }
    before = copy.deepcopy(original)

    masked = mask_secrets(original)

    assert original == before
    assert masked == {
        "policy_api_key": "****",
        "block": {"max_output_tokens": 4, "keys": ["a"], "url": "http://****@h", "note": "uses **** here"},
        "api_keys": ["****", "****"],
        "credentials": {"user": "****"},
        "empty_key": "",
        "hf_token": None,
    }


def test_models_and_tuples_are_masked_too():
    """Callers pass whatever they hold; an unsupported type must not let a secret through."""
    assert mask_secrets({"judge": Judge(api_key="sk-1"), "pair": ("Bearer abc12345", 1), "s": Secret("x")}) == {
        "judge": {"api_key": "****", "model": "m"},
        "pair": ["Bearer ****", 1],
        "s": "****",
    }


def test_a_masked_omegaconf_tree_stays_one():
    """Callers print the masked tree with OmegaConf, including values that point to the secret."""
    masked = mask_secrets(OmegaConf.create({"api_key": "abc", "ref": "${api_key}"}))

    assert OmegaConf.to_container(masked, resolve=True) == {"api_key": "****", "ref": "****"}


def test_known_secrets_are_taken_out_of_any_text():
    """A provider may echo the key in its error message."""
    config = OmegaConf.create({"k": {"openai_api_key": "${root_key}"}, "root_key": "abcdef-123"})

    assert redact_text("401: key abcdef-123 is wrong", config) == "401: key **** is wrong"


def test_short_and_placeholder_values_are_not_searched_for_in_text():
    """Replacing every `x` of an error message because a test key is `x` makes it unreadable."""
    assert secret_values({"api_key": "x", "token": "????", "password": "${oc.env:NOT_SET}"}) == []


def test_a_short_secret_with_punctuation_is_masked_only_as_a_whole_word():
    """Escaping for the regular expression made `a.b-c` look longer than the limit, so it was masked inside words."""
    remember_secrets(["a.b-c"])
    try:
        assert mask_text("key a.b-c is wrong, not data.b-cat") == "key **** is wrong, not data.b-cat"
    finally:
        forget_secrets(["a.b-c"])


def test_every_text_of_a_secret_block_is_masked_in_repr():
    """`credentials: {user: …, value: …}` is masked in the configuration, so its `repr` must not show it either."""
    masked = repr(MaskedRepr({"credentials": {"user": "hunter", "pin": 3141}, "plain": {"user": "hunter"}}))

    assert masked == "{'credentials': {'user': '****', 'pin': '****'}, 'plain': {'user': 'hunter'}}"


SECRET_BLOCKS = """
    password_auth bearer_auth cookie_auth secret_salt cookie_jwt credential_webhooks secret_key secret_token
    bearer_token aws_secret_access_key secret_keys client_secret client_secret_2
"""


@pytest.mark.parametrize("name", SECRET_BLOCKS.split())
def test_a_block_is_secret_if_its_last_word_names_a_secret(name):
    """One key per deployment (`secret_key: {prod: …}`) must not be printed because the word `secret` stands first."""
    assert mask_secrets({name: {"prod": "qZ7-plain-81"}}) == {name: {"prod": "****"}}


@pytest.mark.parametrize("name", ["secret_store", "api_key_settings", "cookie_settings", "group_keys", "2"])
def test_a_block_of_settings_stays_readable(name):
    """The names in such a block decide; masking all of it would hide ordinary settings."""
    block = {name: {"prod": "shared", "api_key": "qZ7-plain-81"}}

    assert mask_secrets(block) == {name: {"prod": "shared", "api_key": "****"}}


PLACES = [
    {"api_keys": {"nim": "qZ7-plain-81"}},
    {"hf_token": {"value": "qZ7-plain-81"}},
    {"refresh_token": {"a": {"b": ["qZ7-plain-81"]}}},
    {"env": [{"name": "DB_PASSWORD", "value": "qZ7-plain-81"}]},
    {"vars": [{"key": "WANDB_API_KEY", "value": "qZ7-plain-81"}]},
    {"headers": [["X-Auth-Token", "qZ7-plain-81"]]},
    {"command": ["run", "--client-secret", "qZ7-plain-81", "--port", "80"]},
    {"command": ["run", "--hf-token=qZ7-plain-81"]},
    {"command": ["curl", "-H", "X-Auth-Token: qZ7-plain-81"]},
    {"headers": ["Proxy-Authorization: Token qZ7-plain-81", "accept: text/html"]},
    {"shell": "MY_PASSWORD=qZ7-plain-81 ./start"},
    {"store": "Endpoint=sb://h;SharedAccessKey=qZ7-plain-81=;Pwd=qZ7-plain-81;"},
    {"pem": "-----BEGIN EC PRIVATE KEY-----\nqZ7-plain-81\n-----END EC PRIVATE KEY-----"},
    {"notify": "https://hooks.slack.com/services/T0/B0/qZ7-plain-81"},
    {"notify": "https://discord.com/api/webhooks/12/qZ7-plain-81"},
]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_secret_is_masked_in_nested_and_listed_places(place):
    """Settings of programs and containers are lists, and their names stand beside the values."""
    shown = [str(mask_secrets(place)), str(mask_secrets(OmegaConf.create(place))), repr(MaskedRepr(place))]

    assert [text for text in shown if "qZ7-plain-81" in text or "****" not in text] == []


def test_ordinary_lists_and_texts_stay_readable():
    """Prompts contain words such as key and password, and columns have names."""
    config = {
        "columns": ["password", "user_name"],
        "pair": ["question", "B7"],
        "lines": ["accept: text/html", "Token: as you like it", "token://store/a", "password: {password}"],
        "items": [{"name": "temperature", "value": "x1"}],
        "command": ["--model", "m1", "--max-tokens=100"],
        "prompt": "Write key=value lines. Password: a word. sorted(x, key=len); password={password} token=%s",
        "api_key_settings": {"mode": "shared"},
        "my_token": {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "mode": "m2"}}},
    }

    assert mask_secrets(config) == config


def test_only_secret_numbers_are_masked():
    """A masked limit or switch makes the shown configuration useless, and resuming would not compare it."""
    config = {"pin_password": 4711, "use_auth": True, "max_output_tokens": 8388608, "share": 0.125, "x": {4711: 4711}}
    shown = {**config, "pin_password": "****"}

    assert mask_secrets(config) == shown
    assert mask_secrets(OmegaConf.create(config)) == OmegaConf.create(shown)
    assert repr(MaskedRepr(config)) == repr(shown)


def test_masking_a_long_text_takes_no_time():
    """Error bodies of a provider pass through here."""
    text = "a." * 200_000 + "://" + "?a_" * 50_000 + "bearer " * 10_000
    started = time.process_time()

    mask_text(text)

    assert time.process_time() - started < 2
