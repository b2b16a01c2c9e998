"""The block `token_id_capture`, and the errors for a capture that could capture nothing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.token_id_capture.config import (
    TokenCaptureConfigError,
    check_token_capture,
    token_id_capture_config,
    token_id_capture_enabled_for_agent,
)
from nemo_gym.token_id_capture.lineage import InMemoryLineageStore
from nemo_gym.token_id_capture.lineage_files import FileLineageStore
from nemo_gym.token_id_capture.process_stores import (
    capture_template,
    install_lineage_store,
    install_token_sink,
    install_token_source,
    token_source,
)
from nemo_gym.token_id_capture.store import TokenCaptureStore

Json = dict[str, Any]
AGENT: Json = {"responses_api_agents": {"mine": {"entrypoint": "app.py"}}}
HERE = __name__


class HalfSink:
    """Lacks `mark_incomplete` and `close`."""

    async def put(self, entry: Any) -> None: ...


class OwnSink(HalfSink):
    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None: ...

    async def close(self) -> None: ...


def test_the_defaults_are_those_of_the_contract() -> None:
    """Frameworks rely on them when they set only a few keys."""
    settings = token_id_capture_config({"token_id_capture": {}})

    assert settings.model_dump() == {
        "enabled": False,
        "all_agents": False,
        "dir": None,
        "sink": None,
        "sink_kwargs": {},
        "lineage_store": None,
        "lineage_store_kwargs": {},
        "rebuild_response": True,
        "allow_unresolved_continuations": False,
        "delta_records": False,
        "max_mask_fraction": None,
        "mask_fraction_min_samples": 50,
        "external_staging": False,
        "external_staging_backend": "vllm_worker",
        "control_auth_token_env": "NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN",
    }


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ({"unknown_key": 1}, "unknown_key"),
        ({"dir": "relative/folder"}, "absolute path"),
        ({"external_staging": True}, "rebuild_response: false"),
        ({"external_staging_backend": "megatron_worker"}, "needs external_staging"),
        ({"max_mask_fraction": 2}, "max_mask_fraction"),
    ],
)
def test_a_block_that_breaks_a_rule_is_one_clear_error(block: Json, problem: str) -> None:
    """The block decides whether tokens are trained on; a typo must not switch a part of it off."""
    with pytest.raises(TokenCaptureConfigError, match=problem) as error:
        token_id_capture_config({"token_id_capture": {"enabled": True, **block}})

    assert "token_id_capture" in str(error.value)


def test_a_disabled_block_is_not_checked() -> None:
    """A shared configuration file may keep the settings of another machine."""
    block = {"enabled": False, "dir": "relative", "external_staging": True, "unknown": 1}
    assert not token_id_capture_config({"token_id_capture": block}).enabled


def test_the_folder_falls_back_to_that_of_model_call_capture(tmp_path: Path) -> None:
    """One folder for all captures is enough."""
    config = OmegaConf.create({"token_id_capture": {"enabled": True}, "model_call_capture_dir": str(tmp_path)})
    assert token_id_capture_config(config).dir == tmp_path


@pytest.mark.parametrize(
    ("agent", "all_agents", "expected"),
    [({}, False, False), ({}, True, True), ({"token_id_capture": True}, False, True)],
)
def test_agents_take_part_by_their_block_or_all_together(agent: Json, all_agents: bool, expected: bool) -> None:
    """Judges and user simulators are agents too, and not to be trained."""
    config = {
        "token_id_capture": {"enabled": True, "all_agents": all_agents},
        "a": {"responses_api_agents": {"mine": {"entrypoint": "app.py", **agent}}},
    }
    assert token_id_capture_enabled_for_agent(config, "a") is expected
    if not expected:
        with pytest.raises(TokenCaptureConfigError, match=r"no agent takes part \(a\)"):
            check_token_capture(config)


def test_records_without_a_destination_are_an_error_at_start() -> None:
    """Otherwise the run would end with masked rollouts only."""
    config = {"token_id_capture": {"enabled": True, "all_agents": True}, "a": AGENT}
    with pytest.raises(TokenCaptureConfigError, match="no destination"):
        capture_template(config)
    with pytest.raises(TokenCaptureConfigError, match="no source"):
        token_source(config)


def test_a_folder_gives_store_and_lineage(tmp_path: Path) -> None:
    """The default needs no code."""
    config = {"token_id_capture": {"enabled": True, "dir": str(tmp_path)}}
    template = capture_template(config, model_ref="policy", num_workers=4)

    assert template is not None
    assert isinstance(template.token_sink, TokenCaptureStore)
    assert isinstance(template.lineage_store, FileLineageStore)
    assert isinstance(token_source(config), TokenCaptureStore)


def test_a_sink_needs_a_lineage_store_or_the_permission_to_mask(caplog: pytest.LogCaptureFixture) -> None:
    """Without lineage every rollout with two calls is masked; that must be a decision."""
    block: Json = {"enabled": True, "sink": f"{HERE}:OwnSink"}
    with pytest.raises(TokenCaptureConfigError, match="needs a lineage store"):
        capture_template({"token_id_capture": block})

    assert capture_template({"token_id_capture": {**block, "allow_unresolved_continuations": True}}) is not None
    assert "will be masked" in caplog.text


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        (f"{HERE}:HalfSink", "lacks mark_incomplete, close"),
        (f"{HERE}:NoSuchSink", "cannot be built"),
        ("no_such_module_here:Sink", "cannot be built"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_at_start(sink: str, problem: str) -> None:
    """A missing method would otherwise be found by the first rollout."""
    with pytest.raises(TokenCaptureConfigError, match=problem):
        capture_template({"token_id_capture": {"enabled": True, "sink": sink, "allow_unresolved_continuations": True}})


def test_workers_need_a_shared_lineage_store(tmp_path: Path) -> None:
    """The turns of one rollout reach different workers."""
    block = {
        "enabled": True,
        "dir": str(tmp_path),
        "lineage_store": "nemo_gym.token_id_capture.lineage:InMemoryLineageStore",
    }
    assert capture_template({"token_id_capture": block}, num_workers=1) is not None
    with pytest.raises(TokenCaptureConfigError, match="2 workers"):
        capture_template({"token_id_capture": block}, num_workers=2)


def test_external_staging_needs_a_ledger(tmp_path: Path) -> None:
    """The in-memory store forgets, so it cannot prove anything later."""
    block = {"enabled": True, "external_staging": True, "rebuild_response": False}
    with pytest.raises(TokenCaptureConfigError, match="keeps a ledger"):
        capture_template({"token_id_capture": block})
    assert capture_template({"token_id_capture": {**block, "dir": str(tmp_path)}}) is not None


def test_installed_stores_replace_the_configured_ones(tmp_path: Path) -> None:
    """A framework hands over the objects that it already has."""
    sink, lineage, source = OwnSink(), InMemoryLineageStore(), TokenCaptureStore(tmp_path)
    install_token_sink(sink)
    install_lineage_store(lineage)
    install_token_source(source)
    try:
        config = {"token_id_capture": {"enabled": True}}
        template = capture_template(config)
        assert template is not None
        assert (template.token_sink, template.lineage_store) == (sink, lineage)
        assert token_source(config) is source
    finally:
        install_token_sink(None)
        install_lineage_store(None)
        install_token_source(None)


@pytest.mark.parametrize(
    "statement",
    [
        "from nemo_gym.token_id_capture import NG_COMMIT_COORDS_FIELD",
        "import nemo_gym.token_id_capture.ledger_files",
        "from nemo_gym.token_id_capture.lineage import FileLineageStore",
    ],
)
def test_a_framework_may_import_any_part_first(statement: str) -> None:
    """A worker imports only the staging records; a cycle of modules shows only in a process that loaded no other."""
    run = subprocess.run([sys.executable, "-c", statement], check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
