"""The top-level keys that mean something to us: their types, and a word about keys that nearly are one."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any

from nemo_gym.config.merge import leaves
from nemo_gym.config.problems import Path, Problem, dotted, nearest
from nemo_gym.config.secrets import is_secret_name
from nemo_gym.keys import SERVER_TYPES

RESERVED = (
    "config_paths",
    "entrypoint",
    "default_host",
    "head_server",
    "disallowed_ports",
    "head_server_deps",
    "python_version",
    "pip_install_verbose",
    "use_absolute_ip",
    "uv_pip_set_python",
    "skip_venv_if_present",
    "hf_token",
    "ray_head_node_address",
    "port_range_low",
    "port_range_high",
    "dry_run",
    "model_endpoint_readiness_timeout_seconds",
    "allow_openai_version_skew",
    "uv_cache_dir",
    "uv_venv_dir",
    "results_dir",
    "cache_dir",
    "_inherit_from",
    "_copy",
    "nemo_gym_log_dir",
    "verbose",
    "json",
    "query",
    "observability_enabled",
    "model_call_capture_dir",
    "token_id_capture",
    "component_name",
    "skip_verification",
    "skip_verification_reward",
)
"""Never taken for a server instance."""


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_filled_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_port(value: Any) -> bool:
    return _is_int(value) and 1 <= value <= 65535


def _is_positive(value: Any) -> bool:
    return _is_int(value) and value > 0


def _is_int_list(value: Any) -> bool:
    return isinstance(value, list) and all(_is_int(item) for item in value)


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


_Check = tuple[str, Callable[[Any], bool]]
_BOOL: _Check = ("true or false", _is_bool)
_TEXT: _Check = ("text", _is_text)
_FILLED: _Check = ("a non-empty text", _is_filled_text)
_PORT: _Check = ("a port from 1 to 65535", _is_port)
_NUMBER: _Check = ("a number", _is_number)
_POSITIVE: _Check = ("a whole number above 0", _is_positive)

CHECKED: Mapping[str, _Check] = {
    "default_host": _FILLED,
    "use_absolute_ip": _BOOL,
    "head_server": ("a mapping with host and port", _is_mapping),
    "port_range_low": _PORT,
    "port_range_high": _PORT,
    "disallowed_ports": ("a list of whole numbers", _is_int_list),
    "head_server_deps": ("a list of requirements", _is_text_list),
    "allow_openai_version_skew": _BOOL,
    "python_version": _TEXT,
    "pip_install_verbose": _BOOL,
    "uv_pip_set_python": _BOOL,
    "skip_venv_if_present": _BOOL,
    "uv_cache_dir": _FILLED,
    "uv_venv_dir": _FILLED,
    "results_dir": _FILLED,
    "cache_dir": _FILLED,
    "dry_run": _BOOL,
    "nemo_gym_log_dir": _FILLED,
    "ray_head_node_address": _TEXT,
    "model_endpoint_readiness_timeout_seconds": _NUMBER,
    "uvicorn_timeout_worker_healthcheck": _POSITIVE,
    "error_on_almost_servers": _BOOL,
    "verbose": _BOOL,
    "hf_token": _TEXT,
    "global_aiohttp_connector_limit": _POSITIVE,
    "unreachable_timeout_seconds": _NUMBER,
    "global_aiohttp_connector_limit_per_host": _POSITIVE,
    "global_aiohttp_client_request_debug": _BOOL,
    "global_aiohttp_tcp_keepalive_idle_seconds": _POSITIVE,
    "global_aiohttp_tcp_keepalive_interval_seconds": _POSITIVE,
    "global_aiohttp_tcp_keepalive_probes": _POSITIVE,
    "uvicorn_logging_show_200_ok": _BOOL,
    "profiling_enabled": _BOOL,
    "profiling_results_dirpath": _FILLED,
    "observability_enabled": _BOOL,
    "model_call_capture_dir": _FILLED,
    "skip_verification": _BOOL,
    "skip_verification_reward": _NUMBER,
    "upload_rollouts": _BOOL,
}

_OTHERS = (
    "token_id_capture upload_rollouts_to_wandb wandb_project wandb_name wandb_api_key mlflow_tracking_uri "
    "mlflow_tracking_token mlflow_experiment_name mlflow_run_name policy_base_url policy_api_key policy_model_name "
    "policy_model catalog_kind onboarding_name manifest_path sync update_expected agent_name input_jsonl_fpath "
    "output_jsonl_fpath limit num_repeats num_repeats_add_seed num_samples_in_parallel responses_create_params "
    "prompt_config resume_from_cache output_dirpath mode should_download should_validate_data dataset_name version "
    "artifact_fpath output_fpath repo_id split materialized_inputs_jsonl_fpath rollouts_jsonl_fpath benchmark_name "
    "domain modality licensing status lifecycle revision create_pr scaffold_kind scaffold_name reuse_verifier "
    "reward_range higher_is_better format outdated disable_aggregation input_glob force overwrite judge_failed_only "
    "append rollout_collection_driver reuse_existing_data_preparation skills data_source overwrite_metrics_conflicts "
    "use_cached_prepared_benchmarks num_prepare_benchmark_processes prepare_script_args num_shards shard_index "
    "fail_on_total_and_test_mismatch delete_venvs_after_each_test hf_organization hf_collection_name "
    "hf_collection_slug resource_config_path hf_dataset_prefix commit_message commit_description delete_from_gitlab "
    "rollout_timeout_seconds model_call_timeout_seconds tool_call_timeout_seconds verify_timeout_seconds "
    "max_steps_per_rollout max_tokens_per_rollout max_total_tokens max_rollout_attempts retry_pause_seconds "
    "max_failures fail_fast force_resume sync_seconds prepare_timeout_seconds"
)
KNOWN = frozenset((*RESERVED, *CHECKED, *_OTHERS.split()))


def check_global_keys(plain: Mapping[Any, Any]) -> list[Problem]:
    """Every recognised key that has a value of the wrong type."""
    problems = []
    for key, (wanted, fits) in CHECKED.items():
        value = plain.get(key)
        empty_is_wrong = key in ("results_dir", "cache_dir", "allow_openai_version_skew") and key in plain
        unresolved = isinstance(value, str) and "${" in value
        if (value is not None or empty_is_wrong) and (unresolved or not fits(value)):
            problems.append(Problem(f"'{key}' must be {wanted}, not {_shown(key, value)}", (key,)))
    return problems + _check_together(plain)


def _check_together(plain: Mapping[Any, Any]) -> list[Problem]:
    problems = []
    low, high = plain.get("port_range_low"), plain.get("port_range_high")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        problems.append(Problem(f"'port_range_low' ({low}) is above 'port_range_high' ({high})", ("port_range_low",)))
    folder = plain.get("model_call_capture_dir")
    if plain.get("observability_enabled") is True:
        if folder is None:
            fix = "+model_call_capture_dir=/absolute/folder"
            what = "'observability_enabled' needs 'model_call_capture_dir'"
            problems.append(Problem(what, ("observability_enabled",), fix))
        elif isinstance(folder, str) and not FilePath(folder).is_absolute():
            what = f"'model_call_capture_dir' must be an absolute path, not {folder!r}"
            problems.append(Problem(what, ("model_call_capture_dir",)))
    head = plain.get("head_server")
    if isinstance(head, dict) and head.get("port") is not None and not _is_port(head["port"]):
        what = f"'head_server.port' must be a port from 1 to 65535, not {_shown('port', head['port'])}"
        problems.append(Problem(what, ("head_server", "port")))
    return problems


def _shown(key: str, value: Any) -> str:
    if is_secret_name(key):
        return f"a {type(value).__name__}"
    text = repr(value) if not isinstance(value, dict | list) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:80] + "…"


def nearly_known_keys(plain: Mapping[Any, Any], *, used: Iterable[str]) -> list[tuple[Path, str]]:
    """Warnings about keys that look like a slip of the pen: (where, text). Keys that `${…}` uses are the user's own."""
    own = set(used)
    found: list[tuple[Path, str]] = []
    for key, value in plain.items():
        name = str(key)
        server = isinstance(value, dict) and any(kind in value for kind in SERVER_TYPES)
        if name in KNOWN or name in own or server:
            continue
        close = nearest(name, KNOWN, cutoff=0.85)
        if close:
            found.append(((name,), f"'{name}' is not a key we know — did you mean '{close[0]}'?"))
    return found


def names_used(tree: Any) -> set[str]:
    """The top-level names that some `${…}` mentions."""
    names: set[str] = set()
    for _, value in leaves(tree):
        if isinstance(value, str) and "${" in value:
            for piece in value.split("${")[1:]:
                names.add(dotted((piece.split("}")[0],)).split(".")[0].split("[")[0].strip())
    return names
