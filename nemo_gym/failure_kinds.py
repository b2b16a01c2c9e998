"""Words for failures that server folders report: the registered kinds and `<server>:<kind>` for kinds of a server.

A kind says what failed, not whether to retry. The collector's own failure kinds are in `nemo_gym.rollouts.outcome`.
"""

import re
import warnings
from functools import cache
from typing import Literal

FailureStage = Literal["admission", "seed", "agent", "verification", "cleanup"]
"""The part of an episode in which it failed."""

TRANSPORT_UNREACHABLE = "transport_unreachable"
TRANSPORT_PEER_DROP = "transport_peer_drop"
TRANSPORT_TIMEOUT = "transport_timeout"
TRANSPORT_LOCAL_RESOURCE = "transport_local_resource"
AGENT_RUN_ERROR = "agent_run_error"
AGENT_REQUEST_FAILED = "agent_request_failed"
AGENT_TIMEOUT = "agent_timeout"
AGENT_COMMAND_NOT_ALLOWED = "agent_command_not_allowed"
JUDGE_FAILED = "judge_failed"
JUDGE_UNPARSEABLE = "judge_unparseable"
VERIFIER_ERROR = "verifier_error"
PROVIDER_UNAVAILABLE = "provider_unavailable"
PROVIDER_QUOTA_EXHAUSTED = "provider_quota_exhausted"
PROVIDER_OOM_KILLED = "provider_oom_killed"
SESSION_LOST = "session_lost"
SESSION_EXPIRED = "session_expired"
SESSION_RELEASE_FAILED = "session_release_failed"
CANCELLED = "cancelled"
KILL_SHAPED = "kill_shaped"
SHUTDOWN = "shutdown"
PERSISTENCE_FAILED = "persistence_failed"
COHORT_INCOMPLETE = "cohort_incomplete"

FAILURE_KINDS = frozenset(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))

MAX_REASON_CHARACTERS = 2000
"""Longest `failure_reason`; a longer text is cut."""

_NAMESPACED = re.compile(r"[a-z][a-z0-9_]*:[a-z][a-z0-9_]*")


def is_registered(name: str) -> bool:
    return name in FAILURE_KINDS


def is_namespaced(name: str) -> bool:
    """Return whether a kind has the form `<server>:<kind>`."""
    return _NAMESPACED.fullmatch(name) is not None


def validate_failure_kind(name: str) -> str:
    """Return the kind unchanged; warn once about a kind that is neither registered nor `<server>:<kind>`."""
    if not is_registered(name) and not is_namespaced(name):
        _warn_unknown_kind(name)
    return name


@cache
def _warn_unknown_kind(name: str) -> None:
    warnings.warn(
        f"unknown failure kind {name!r}: use a constant of nemo_gym.failure_kinds or '<server>:<kind>'",
        UserWarning,
        stacklevel=3,
    )
