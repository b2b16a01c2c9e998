"""The global configuration keys, each stated once: type, default, meaning, command-line flag.

Reserved names, type checks, flags, shell completion, the reference page `docs/reference/configuration-keys.md` and the
`*_KEY_NAME` constants of `nemo_gym.global_config` are derived from `KEYS`. A key that only one command reads is
described by that command's configuration class and listed in `COMMAND_KEYS`, so that a misspelling is noticed.

Every `--help` imports this module: it must not import OmegaConf or pydantic.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


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
SECONDS = ValueType("a number from 0", lambda value: _is_number(value) and 0 <= value < float("inf"))
POSITIVE_NUMBER = ValueType("a number above 0", lambda value: _is_number(value) and value > 0)
POSITIVE_INT = ValueType("a whole number above 0", lambda value: _is_int(value) and value > 0)
INT_LIST = ValueType("a list of whole numbers", lambda value: isinstance(value, list) and all(map(_is_int, value)))
REQUIREMENTS = ValueType(
    "a list of requirements", lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value)
)
ENGINES = ("local", "ray")
# A mapping is a server instance of that name, which configurations may have that know no engines.
ENGINE = ValueType("one of " + ", ".join(ENGINES), lambda value: isinstance(value, dict) or value in ENGINES)
ACCESS_MODES = ("same-user", "token", "open")
ACCESS = ValueType("one of " + ", ".join(ACCESS_MODES), lambda value: value in ACCESS_MODES)
MAPPING = ValueType("a mapping", lambda value: isinstance(value, dict))
ADDRESS = ValueType("a mapping with host and port", lambda value: isinstance(value, dict))


@dataclass(frozen=True, slots=True)
class Flag:
    """The command-line flag that sets a key."""

    names: str
    """Spellings, separated by spaces; the last one is the long form."""
    metavar: str = ""
    """Name of the value in the help; empty for a switch."""
    command: str = ""
    """The commands with the flag, as in `eval run`, separated by commas; empty for all that read a configuration."""
    title: str | None = None
    """Group in the help."""
    kind: Callable[[str], Any] = str
    """Converts the text of the value."""
    note: str = ""
    """Advice after the meaning."""

    @property
    def name(self) -> str:
        return self.names.split()[-1]

    @property
    def dest(self) -> str:
        """The attribute of the parsed arguments."""
        return self.name.lstrip("-").replace("-", "_")


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
    flag: Flag | None = None

    @property
    def flag_help(self) -> str:
        """The help of the flag: meaning, key and default."""
        starts_with_word = self.meaning[1:2].islower()  # not with an abbreviation such as URL
        meaning = (self.meaning[:1].lower() if starts_with_word else self.meaning[:1]) + self.meaning[1:].rstrip(".")
        default = f"; default: {self.default_text}" if self.default_text and self.flag and self.flag.metavar else ""
        note = f"; {self.flag.note}" if self.flag and self.flag.note else ""
        return f"{meaning} ({self.name}{default}){note}"

    @property
    def default_text(self) -> str:
        """The default as the reference page shows it."""
        if self.default_note or self.default is None:
            return self.default_note
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)


DEFAULT_HEAD_SERVER_PORT = 11000
SERVING_COMMANDS = "eval run,env start"
CONFIGURATION, MODEL, CLUSTER = "configuration", "model", "many machines (docs/many-machines.md)"
_TABLE = (
    Key("config_paths", ANY, "Configuration files to merge; later files override earlier ones.",
        reserved=True, flag=Flag("--config", "PATH", title=CONFIGURATION, note="repeatable")),
    Key("environment", ANY, "Environments of other packages, as `SOURCE:ID?key=value`; one or a list."),
    Key("entrypoint", ANY, "Server folder (`type/name`) of commands that work on one folder.", reserved=True),
    Key("default_host", FILLED_TEXT, "Host of servers whose block has no host.", "127.0.0.1", reserved=True),
    Key("use_absolute_ip", BOOL, "Use the machine's address as default host.", False, reserved=True),
    Key("head_server", ADDRESS, "Host and port of the head server.",
        default_note=f"`default_host` and port {DEFAULT_HEAD_SERVER_PORT}, or another port if that is taken",
        reserved=True),
    Key("server_access", ACCESS, "Requests without the run token that servers answer: those of processes of the same "
        "user, none, or all.", "same-user", reserved=True, nullable=False),
    Key("port_range_low", PORT, "Lowest port for servers whose block has no port.", 10001, reserved=True),
    Key("port_range_high", PORT, "Highest port for servers whose block has no port.", 20000, reserved=True),
    Key("disallowed_ports", INT_LIST, "Ports that are never assigned; assigned ports are added.",
        default_note="computed", reserved=True),
    Key("num_cells", POSITIVE_INT, "Number of cells: processes that host servers together.",
        default_note="1 for `env start`, one per core for `eval run`"),
    Key("head_server_deps", REQUIREMENTS, "Requirements installed into the environment of every server.",
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
    Key("uv_venv_dir", FILLED_TEXT, "Folder for one environment per server; by default servers share those below "
        "`<cache_dir>/venvs`.", default_note="the working directory, without effect", reserved=True),
    Key("results_dir", FILLED_TEXT, "Folder for results.", "results", reserved=True, nullable=False),
    Key("cache_dir", FILLED_TEXT, "Folder for caches.", "cache", reserved=True, nullable=False),
    Key("response_cache", BOOL, "Answer repeated model requests from `<cache_dir>/responses`: same request, sampling, "
        "seed, repeat and model server.", False, reserved=True,
        flag=Flag("--cache", command="eval run", title="servers and output")),
    Key("prices", MAPPING, "Prices of models for the cost of a run: US dollars per million tokens, by name of the "
        "model, as `{input: 2.0, cached_input: 0.5, output: 8.0}`.", reserved=True),
    Key("dry_run", BOOL, "Build every server's environment, construct the server and stop before serving.", False,
        reserved=True),
    Key("nemo_gym_log_dir", FILLED_TEXT, "Folder for one log file per server.", reserved=True),
    Key("engine", ENGINE, "Place of the servers: `local`, this machine, or `ray`, every node of a Ray cluster.",
        "local", nullable=False, flag=Flag("--engine", "NAME", SERVING_COMMANDS, CLUSTER)),
    Key("ray_address", FILLED_TEXT, "Address of the Ray cluster that `engine: ray` joins, such as `10.0.0.1:6379`.",
        default_note="that of the variable RAY_ADDRESS, else a cluster of this machine is started",
        flag=Flag("--ray-address", "HOST:PORT", SERVING_COMMANDS, CLUSTER)),
    Key("num_nodes", POSITIVE_INT, "Number of nodes that `engine: ray` uses.",
        default_note="all of the cluster, also those that join later",
        flag=Flag("--nodes", "N", SERVING_COMMANDS, CLUSTER, int)),
    Key("node_resources", MAPPING, "What the servers of each node reserve: `{CPU: 8, memory: 16000000000, name: 1}`.",
        default_note="one CPU"),
    Key("node_shared_path", FILLED_TEXT, "Folder with the component folders that all nodes share; nothing is sent."),
    Key("node_files", REQUIREMENTS, "Further files and folders below the working directory to send to every node."),
    Key("node_start_timeout_seconds", POSITIVE_NUMBER, "Longest wait for nodes, and for the servers of a node.", 300),
    Key("node_addresses", MAPPING, "Addresses of the servers on every node; the head server of a cluster sets it.",
        default_note="computed", reserved=True),
    Key("speculative_copies", BOOL, "Run the last 1 % of rollouts also on an idle node; the first outcome counts.",
        False, nullable=False),
    Key("ray_head_node_address", TEXT, "Address of a Ray cluster to join.", reserved=True),
    Key("model_endpoint_readiness_timeout_seconds", NUMBER, "Longest wait for a model endpoint at start; 0 skips it.",
        600, reserved=True),
    Key("server_start_timeout_seconds", POSITIVE_NUMBER, "Longest time until every server is ready; `local_vllm_model` "
        "loads its model in it.", 600),
    Key("uvicorn_timeout_worker_healthcheck", POSITIVE_INT, "Seconds until a worker that does not answer is restarted.",
        30),
    Key("error_on_almost_servers", BOOL, "Treat a block that is nearly a server as an error, not as a warning.", True),
    Key("verbose", BOOL, "Log debug messages in the command and in every server.", False, reserved=True,
        flag=Flag("-v --verbose")),
    Key("hf_token", TEXT, "Access token of the Hugging Face Hub.", reserved=True),
    Key("policy_model_name", ANY, "Name of the evaluated model at its endpoint.",
        flag=Flag("-m --model", "NAME", title=MODEL)),
    Key("policy_base_url", ANY, "URL of the evaluated model's endpoint; model configurations refer to it.",
        flag=Flag("--model-url", "URL", title=MODEL)),
    Key("policy_api_key", ANY, "API key of the evaluated model's endpoint.",
        flag=Flag("--model-api-key", "KEY", title=MODEL, note="better kept in env.yaml")),
    Key("policy_model", ANY, "Conventional instance name of the evaluated model."),
    Key("blocked_cell_timeout_seconds", POSITIVE_NUMBER,
        "Seconds without a running event loop after which a cell is ended and restarted; ten times as long for a "
        "server in a separate process; never longer than `request_timeout_seconds`.", 30),
    Key("request_timeout_seconds", POSITIVE_NUMBER,
        "Longest duration of a call without a deadline; if it is set, of every call that a rollout makes.", 3600),
    Key("connect_timeout_seconds", POSITIVE_NUMBER, "Longest time to open a connection.", 30),
    Key("unreachable_timeout_seconds", POSITIVE_NUMBER,
        "Seconds after which calls to an endpoint that accepts no connection fail at once.", 30),
    Key("max_model_answer_bytes", POSITIVE_INT, "Longest answer of a model endpoint in bytes, decompressed.",
        64 * 2**20),
    Key("max_body_bytes", POSITIVE_INT, "Longest request body or reply of a server in bytes.", 512 * 2**20),
    Key("interrupt_grace_seconds", SECONDS, "Time that rollouts in flight may take after Ctrl-C.", 30,
        flag=Flag("--grace", "SECONDS", "eval run", "servers and output", float)),
    Key("shutdown_timeout_seconds", POSITIVE_NUMBER,
        "Time that servers have to end: a third for requests in flight, the rest for `close` of open sessions.", 15),
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
    Key("environment_server_routes", MAPPING,
        "Environment server, agent or resources server of each set of tasks with an identity.", reserved=True),
    Key("upload_rollouts", BOOL, "Upload rollouts to exporters, not only metrics.", True),
    Key("mlflow_tracking_uri", ANY, "MLflow server to report to; also the GitLab registry of datasets."),
    Key("mlflow_tracking_token", ANY, "Token for the MLflow server."),
)  # fmt: skip
_keys = {key.name: key for key in _TABLE}
KEYS: Mapping[str, Key] = MappingProxyType(_keys)
"""Every key by name, including those that `register_keys` added."""

DIRECTIVE_KEYS = ("_inherit_from", "_copy", "_delete_key")
_COMMAND_KEYS = """
    agent_map agent_name agent_version allow_partial_rollouts append artifact_fpath benchmark_name catalog_kind
    commit_description commit_message component_name create_pr data_source dataset_name delete_from_gitlab
    delete_venvs_after_each_test developer disable_aggregation domain fail_fast fail_on_total_and_test_mismatch failed
    fan_out force force_resume format hf_collection_name hf_collection_slug hf_dataset_prefix hf_organization
    higher_is_better ids input_glob input_jsonl_fpath json json_format judge_failed_only licensing lifecycle limit
    limit_per_agent loss_on manifest_path materialized_inputs_jsonl_fpath max_errors max_failures
    max_resident_rollout_tasks max_rollout_attempts max_steps_per_rollout max_tokens_per_rollout max_total_cost
    max_total_tokens merge_shards min_gap min_reward modality mode model_call_timeout_seconds
    num_prepare_benchmark_processes num_processes num_repeats num_repeats_add_seed num_samples_in_parallel num_shards
    onboarding_name outdated output_dirpath output_fpath output_jsonl_fpath overwrite overwrite_metrics_conflicts
    pairs_per_task prepare_script_args prepare_timeout_seconds prompt_config query reasoning repo_id require_complete
    resource_config_path responses_create_params resume_from_cache retain_results_in_memory retry_pause_seconds
    reuse_existing_data_preparation reuse_verifier revision reward_range rollout_collection_driver
    rollout_timeout_seconds rollouts_jsonl_fpath scaffold_kind scaffold_name select session_id shard_index
    should_download should_validate_data shuffle shuffle_seed skills split status sync sync_seconds tasks
    tool_call_timeout_seconds update_expected upload_rollouts_to_wandb use_cached_prepared_benchmarks
    verify_timeout_seconds version where
"""
COMMAND_KEYS = frozenset(_COMMAND_KEYS.split())
_KEYS_WITHOUT_EFFECT = """
    count_failure_classes_as_zero count_missing_rollouts_as_zero dispatch_budget_s dispatch_longest_first drain_margin_s
    environment_routing_mode environment_server_name interleave_repeats retry_invalid_judge_responses
    retry_terminal_timeouts route_failures_to_sidecar
"""
KEYS_WITHOUT_EFFECT = frozenset(_KEYS_WITHOUT_EFFECT.split())
"""Keys with which NeMo Gym 0.7 changes how a run collects or scores, and which nothing reads here."""
RESERVED_KEYS = (
    *(key.name for key in _TABLE if key.reserved),
    *("_inherit_from", "_copy", "component_name", "json", "query"),
)
"""Top-level keys that never name a server instance."""


def register_keys(keys: Iterable[Key]) -> None:
    """Add keys that the table does not contain, such as those of exporters; a key of the table is not replaced."""
    for key in keys:
        _keys.setdefault(key.name, key)


def known_keys() -> frozenset[str]:
    """Return the names of all keys that NeMo Gym reads."""
    return frozenset((*KEYS, *DIRECTIVE_KEYS, *COMMAND_KEYS))


def keys_with_flags(command: str = "") -> list[tuple[Key, Flag]]:
    """Return the keys whose flag only `command` has; without `command`, those whose flag all commands have."""
    return [(key, key.flag) for key in KEYS.values() if key.flag is not None and command in key.flag.command.split(",")]


def value_of(config: Mapping[str, Any], name: str) -> Any:
    """Return the value of a key, or its default if it is absent or null."""
    value = config.get(name)
    return KEYS[name].default if value is None else value


def key_constants() -> dict[str, str]:
    """Return the public constant of every key: `HF_TOKEN_KEY_NAME` is "hf_token"."""
    return {f"{name.strip('_').upper()}_KEY_NAME": name for name in sorted(known_keys())}
