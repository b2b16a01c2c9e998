"""The global configuration keys: one table with type, default and meaning of each.

Reserved names, type checks, the reference page `docs/reference/configuration-keys.md` and the `*_KEY_NAME` constants of
`nemo_gym.global_config` are derived from `KEYS`. A key that only one command reads is described by that command's
configuration class and listed in `COMMAND_KEYS`, so that misspellings are detected.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.config.merge import iter_leaves
from nemo_gym.config.problems import ConfigProblem, KeyPath, did_you_mean
from nemo_gym.config.secrets import is_secret_name
from nemo_gym.keys import SERVER_TYPES


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a key's values: a description for messages, and a predicate."""

    description: str
    accepts: Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _is_port(value: Any) -> bool:
    return _is_int(value) and 1 <= value <= 65535


ANY = ValueType("", lambda _: True)
BOOL = ValueType("true or false", lambda value: isinstance(value, bool))
TEXT = ValueType("text", lambda value: isinstance(value, str))
FILLED_TEXT = ValueType("a non-empty text", lambda value: isinstance(value, str) and bool(value.strip()))
PORT = ValueType("a port from 1 to 65535", _is_port)
NUMBER = ValueType("a number", _is_number)
SECONDS = ValueType("a number from 0", lambda value: _is_number(value) and value >= 0)
POSITIVE_NUMBER = ValueType("a number above 0", lambda value: _is_number(value) and value > 0)
POSITIVE_INT = ValueType("a whole number above 0", lambda value: _is_int(value) and value > 0)
INT_LIST = ValueType("a list of whole numbers", lambda value: isinstance(value, list) and all(map(_is_int, value)))
TEXT_LIST = ValueType(
    "a list of requirements", lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value)
)
ADDRESS = ValueType("a mapping with host and port", lambda value: isinstance(value, dict))


@dataclass(frozen=True, slots=True)
class Key:
    """One global configuration key. `default_note` describes a computed default."""

    name: str
    type: ValueType
    meaning: str
    default: Any = None
    default_note: str = ""
    reserved: bool = False
    """True if the key cannot be the name of a server instance."""
    nullable: bool = True
    flag: str | None = None
    """The command-line flag that sets the key."""

    @property
    def default_text(self) -> str:
        """The default as the reference page shows it."""
        if self.default_note or self.default is None:
            return self.default_note
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)


_TABLE = (
    Key("config_paths", ANY, "Configuration files to merge; later files override earlier ones.",
        reserved=True, flag="--config"),
    Key("entrypoint", ANY, "Server folder (`type/name`) of commands that work on one folder.", reserved=True),
    Key("default_host", FILLED_TEXT, "Host of servers whose block has no host.", "127.0.0.1", reserved=True),
    Key("use_absolute_ip", BOOL, "Use the machine's address as default host.", False, reserved=True),
    Key("head_server", ADDRESS, "Host and port of the head server.",
        default_note="`default_host` and port 11000, or another port if that is taken", reserved=True),
    Key("port_range_low", PORT, "Lowest port for servers whose block has no port.", 10001, reserved=True),
    Key("port_range_high", PORT, "Highest port for servers whose block has no port.", 20000, reserved=True),
    Key("disallowed_ports", INT_LIST, "Ports that are never assigned; assigned ports are added.",
        default_note="computed", reserved=True),
    Key("num_cells", POSITIVE_INT, "Number of cells: processes that host servers together.",
        default_note="1 for `env start`, one per core for `eval run`"),
    Key("head_server_deps", TEXT_LIST, "Requirements installed into the environment of every server.",
        default_note="computed", reserved=True),
    Key("allow_openai_version_skew", BOOL, "Accept an installed openai package that our requirements exclude.",
        False, reserved=True, nullable=False),
    Key("python_version", TEXT, "Python version of environments created for servers.",
        default_note="the running version", reserved=True),
    Key("pip_install_verbose", BOOL, "Show the installer's output.", False, reserved=True),
    Key("uv_pip_set_python", BOOL, "Pass the environment's interpreter to the installer.", False, reserved=True),
    Key("skip_venv_if_present", BOOL, "Use an existing environment of a server without checking it.", False,
        reserved=True),
    Key("uv_cache_dir", FILLED_TEXT, "Folder for the installer's downloads.", default_note="`<cache_dir>/uv`",
        reserved=True),
    Key("uv_venv_dir", FILLED_TEXT, "Folder for the environments of servers.", default_note="the server's folder",
        reserved=True),
    Key("results_dir", FILLED_TEXT, "Folder for results.", "results", reserved=True, nullable=False),
    Key("cache_dir", FILLED_TEXT, "Folder for caches.", "cache", reserved=True, nullable=False),
    Key("dry_run", BOOL, "Build every server's environment, construct the server and stop before serving.", False,
        reserved=True),
    Key("nemo_gym_log_dir", FILLED_TEXT, "Folder for one log file per server.", reserved=True),
    Key("ray_head_node_address", TEXT, "Address of a Ray cluster to join.", reserved=True),
    Key("model_endpoint_readiness_timeout_seconds", NUMBER, "Longest wait for a model endpoint at start; 0 skips it.",
        600, reserved=True),
    Key("uvicorn_timeout_worker_healthcheck", POSITIVE_INT, "Seconds until a worker that does not answer is restarted.",
        30),
    Key("error_on_almost_servers", BOOL, "Treat a block that is nearly a server as an error, not as a warning.", True),
    Key("verbose", BOOL, "Log debug messages in the command and in every server.", False, reserved=True,
        flag="--verbose"),
    Key("hf_token", TEXT, "Access token of the Hugging Face Hub.", reserved=True),
    Key("policy_base_url", ANY, "URL of the evaluated model's endpoint; model configurations refer to it.",
        flag="--model-url"),
    Key("policy_api_key", ANY, "API key of the evaluated model's endpoint.", flag="--model-api-key"),
    Key("policy_model_name", ANY, "Name of the evaluated model at its endpoint.", flag="--model"),
    Key("policy_model", ANY, "Conventional instance name of the evaluated model."),
    Key("request_timeout_seconds", POSITIVE_NUMBER, "Longest duration of a call without a deadline.", 3600),
    Key("connect_timeout_seconds", POSITIVE_NUMBER, "Longest time to open a connection.", 30),
    Key("unreachable_timeout_seconds", POSITIVE_NUMBER,
        "Seconds after which calls to an endpoint that accepts no connection fail at once.", 30),
    Key("interrupt_grace_seconds", SECONDS, "Time that rollouts in flight may take after Ctrl-C.", 30, flag="--grace"),
    Key("global_aiohttp_connector_limit", POSITIVE_INT, "Open connections of one process.", 102400),
    Key("global_aiohttp_connector_limit_per_host", POSITIVE_INT, "Open connections of one process to one host.", 1024),
    Key("global_aiohttp_client_request_debug", BOOL, "Log every failed call in detail.", False),
    Key("global_aiohttp_tcp_keepalive_idle_seconds", POSITIVE_INT, "Idle time before a connection is probed.", 60),
    Key("global_aiohttp_tcp_keepalive_interval_seconds", POSITIVE_INT, "Time between probes.", 10),
    Key("global_aiohttp_tcp_keepalive_probes", POSITIVE_INT, "Unanswered probes that close a connection.", 3),
    Key("uvicorn_logging_show_200_ok", BOOL, "Log successful requests, too.", False),
    Key("profiling_enabled", BOOL, "Profile every server; `GET /stats` writes the result.", False),
    Key("profiling_results_dirpath", FILLED_TEXT, "Folder for profiles."),
    Key("observability_enabled", BOOL, "Capture model calls; needs `model_call_capture_dir`.", False, reserved=True),
    Key("model_call_capture_dir", FILLED_TEXT, "Absolute folder for captured model calls.", reserved=True),
    Key("token_id_capture", ANY, "Settings for capturing token ids for training.", reserved=True),
    Key("skip_verification", BOOL, "Do not verify; for rollouts that are graded elsewhere.", False, reserved=True),
    Key("skip_verification_reward", NUMBER, "Reward of rollouts that are not verified.", reserved=True),
    Key("upload_rollouts", BOOL, "Upload rollouts to exporters, not only metrics.", True),
    Key("wandb_project", ANY, "Weights & Biases project to report to."),
    Key("wandb_name", ANY, "Name of the Weights & Biases run."),
    Key("wandb_api_key", ANY, "API key for Weights & Biases."),
    Key("mlflow_tracking_uri", ANY, "MLflow server to report to; also the GitLab registry of datasets."),
    Key("mlflow_tracking_token", ANY, "Token for the MLflow server."),
    Key("mlflow_experiment_name", ANY, "MLflow experiment."),
    Key("mlflow_run_name", ANY, "Name of the MLflow run."),
)  # fmt: skip
KEYS: Mapping[str, Key] = {key.name: key for key in _TABLE}

DIRECTIVE_KEYS = ("_inherit_from", "_copy", "_delete_key")
_COMMAND_KEYS = """
    agent_name allow_partial_rollouts append artifact_fpath benchmark_name catalog_kind commit_description
    commit_message component_name create_pr data_source dataset_name delete_from_gitlab delete_venvs_after_each_test
    developer disable_aggregation domain fail_fast fail_on_total_and_test_mismatch force force_resume format
    hf_collection_name hf_collection_slug hf_dataset_prefix hf_organization higher_is_better input_glob
    input_jsonl_fpath json json_format judge_failed_only licensing lifecycle limit loss_on manifest_path
    materialized_inputs_jsonl_fpath max_errors max_failures max_rollout_attempts max_steps_per_rollout
    max_tokens_per_rollout max_total_tokens merge_shards min_gap min_reward modality mode model_call_timeout_seconds
    num_prepare_benchmark_processes num_processes num_repeats num_repeats_add_seed num_samples_in_parallel num_shards
    onboarding_name outdated output_dirpath output_fpath output_jsonl_fpath overwrite overwrite_metrics_conflicts
    pairs_per_task prepare_script_args prepare_timeout_seconds prompt_config query reasoning repo_id
    resource_config_path responses_create_params resume_from_cache retry_pause_seconds reuse_existing_data_preparation
    reuse_verifier revision reward_range rollout_collection_driver rollout_timeout_seconds rollouts_jsonl_fpath
    scaffold_kind scaffold_name select shard_index should_download should_validate_data skills split status sync
    sync_seconds tool_call_timeout_seconds update_expected upload_rollouts_to_wandb use_cached_prepared_benchmarks
    verify_timeout_seconds version
"""
COMMAND_KEYS = frozenset(_COMMAND_KEYS.split())
RESERVED_KEYS = (
    *(key.name for key in _TABLE if key.reserved),
    "_inherit_from",
    "_copy",
    "component_name",
    "json",
    "query",
)
"""Top-level keys that cannot be names of server instances."""
KNOWN_KEYS = frozenset((*KEYS, *DIRECTIVE_KEYS, *COMMAND_KEYS))


def key_constants() -> dict[str, str]:
    """Return the public constant of every key: `HF_TOKEN_KEY_NAME` is "hf_token"."""
    return {f"{name.strip('_').upper()}_KEY_NAME": name for name in sorted(KNOWN_KEYS)}


def check_keys(config: Mapping[Any, Any]) -> list[ConfigProblem]:
    """Return a problem for every global key whose value has the wrong type, or contradicts another key."""
    problems = []
    for name, key in KEYS.items():
        value = config.get(name)
        if value is None and (key.nullable or name not in config):
            continue
        is_unresolved = isinstance(value, str) and "${" in value and key.type is not ANY
        if is_unresolved or not key.type.accepts(value):
            what = f"'{name}' must be {key.type.description}, not {_value_text(name, value)}"
            problems.append(ConfigProblem(what, (name,)))
    return problems + _check_combinations(config)


def _check_combinations(config: Mapping[Any, Any]) -> list[ConfigProblem]:
    """Return a problem for every key that contradicts another key."""
    problems = []
    low, high = config.get("port_range_low"), config.get("port_range_high")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        what = f"'port_range_low' ({low}) is above 'port_range_high' ({high})"
        problems.append(ConfigProblem(what, ("port_range_low",)))
    folder = config.get("model_call_capture_dir")
    if config.get("observability_enabled") is True:
        if folder is None:
            fix = "+model_call_capture_dir=/absolute/folder"
            what = "'observability_enabled' needs 'model_call_capture_dir'"
            problems.append(ConfigProblem(what, ("observability_enabled",), fix))
        elif isinstance(folder, str) and not Path(folder).is_absolute():
            what = f"'model_call_capture_dir' must be an absolute path, not {folder!r}"
            problems.append(ConfigProblem(what, ("model_call_capture_dir",)))
    head = config.get("head_server")
    if isinstance(head, dict) and head.get("port") is not None and not _is_port(head["port"]):
        what = f"'head_server.port' must be {PORT.description}, not {_value_text('port', head['port'])}"
        problems.append(ConfigProblem(what, ("head_server", "port")))
    return problems


def _value_text(name: str, value: Any) -> str:
    text = f"a {type(value).__name__}" if is_secret_name(name) or isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


def misspelt_keys(config: Mapping[Any, Any], *, used: Iterable[str]) -> list[tuple[KeyPath, str]]:
    """Return the path and a warning for every unknown key that resembles a known one, except those in `used`."""
    user_keys = set(used)
    warnings: list[tuple[KeyPath, str]] = []
    for key, value in config.items():
        name = str(key)
        is_server = isinstance(value, dict) and any(kind in value for kind in SERVER_TYPES)
        if name in KNOWN_KEYS or name in user_keys or is_server:
            continue
        guess = did_you_mean(name, KNOWN_KEYS, cutoff=0.85)
        if guess:
            warnings.append(((name,), f"'{name}' is not a known key{guess}"))
    return warnings


def referenced_names(tree: Any) -> set[str]:
    """Return the top-level names that any `${…}` refers to."""
    references = (
        piece.split("}")[0]
        for _, value in iter_leaves(tree)
        if isinstance(value, str)
        for piece in value.split("${")[1:]
    )
    return {reference.split(".")[0].split("[")[0].strip() for reference in references}
