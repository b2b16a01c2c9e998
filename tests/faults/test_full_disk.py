"""`gym eval run` on a disk that is full or read-only: a small file system in a mount namespace."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GYM = (sys.executable, "-m", "nemo_gym.cli.main")
AGENT = "arithmetic_simple_agent"
ROWS = 120
SMALL = 200 * 1024
"""Bytes for the rows and some of the results."""

OWN_MOUNTS = ("unshare", "--mount", "--map-root-user")


def can_mount() -> bool:
    """Return True if this machine allows mounts in a new namespace, which ends with its process."""
    if shutil.which("unshare") is None:
        return False
    mounted = [*OWN_MOUNTS, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    return subprocess.run(mounted, capture_output=True, check=False).returncode == 0


MOUNTS = pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here (no user namespaces)")


def eval_command(folder: Path) -> list[str]:
    """Write rows and a model into the folder and return a command that collects a few hundred KB into `disk/`."""
    block = {"entrypoint": "app.py", "script": [{"text": "It is 4."}]}
    (folder / "model.yaml").write_text(
        json.dumps({"policy_model": {"responses_api_models": {"scripted_model": block}}})
    )
    rows = [
        {"responses_create_params": {"input": f"What is {number} + 4?"}, "expected_answer": 4.0}
        for number in range(ROWS)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "disk").mkdir()
    words = ("eval", "run", "--resources-server", "arithmetic", "--config", "model.yaml", "-a", AGENT)
    return [*GYM, *words, "-i", "rows.jsonl", "-o", "disk/out.jsonl", "--json", "--concurrency", "4"]


def run_on_small_disk(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a shell script in a mount namespace in which `disk/` is a small file system."""
    mount = f"set -e; mount -t tmpfs -o size={SMALL} tmpfs disk; set +e\n"
    return shell([*OWN_MOUNTS, "sh", "-c", mount + script], folder)


def shell(
    command: list[str], folder: Path, before: Callable[[], None] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False, preexec_fn=before
    )


def quote_words(command: list[str], *more: str) -> str:
    return " ".join(f"'{word}'" for word in [*command, *more])


def stored_records(path: Path) -> list[dict[str, Any]]:
    text = path.read_bytes()
    assert text.endswith(b"\n"), "the last line is not whole"
    return [json.loads(line) for line in text.splitlines()]


def tasks(path: Path) -> list[int]:
    return [record["_ng_task_index"] for record in stored_records(path)]


@MOUNTS
def test_a_run_stopped_by_a_full_disk_can_be_resumed(tmp_path: Path) -> None:
    """It ends with status 3 and whole lines; after freeing space every remaining rollout runs once."""
    command = eval_command(tmp_path)
    done = run_on_small_disk(
        tmp_path,
        f"{quote_words(command)} > first.json 2> first.err; echo $? > first.status; cp -r disk full\n"
        f"mount -o remount,size=64m disk; {quote_words(command, '--resume')} > second.json 2> second.err\n"
        "echo $? > second.status; cp -r disk after",
    )
    assert done.returncode == 0, done.stderr

    assert (tmp_path / "first.status").read_text().strip() == "3", (tmp_path / "first.err").read_text()
    assert "No space left on device" in (tmp_path / "first.err").read_text()
    assert "Traceback" not in (tmp_path / "first.err").read_text()
    first = json.loads((tmp_path / "first.json").read_text())
    kept = tasks(tmp_path / "full/out.jsonl")
    assert 0 < len(kept) < ROWS
    assert len(set(kept)) == len(kept) == first["scored"]
    assert "No space left" in first["error"]

    assert (tmp_path / "second.status").read_text().strip() == "0", (tmp_path / "second.err").read_text()
    second = json.loads((tmp_path / "second.json").read_text())
    assert (second["finished_before"], second["finished_before"] + second["scored"]) == (len(kept), ROWS)
    assert sorted(tasks(tmp_path / "after/out.jsonl")) == list(range(ROWS))
    assert stored_records(tmp_path / "after/out.jsonl")[: len(kept)] == stored_records(tmp_path / "full/out.jsonl")


@MOUNTS
def test_a_read_only_disk_is_reported_before_servers_start(tmp_path: Path) -> None:
    """Status 3 at once; existing files stay unchanged."""
    command = eval_command(tmp_path)
    done = run_on_small_disk(
        tmp_path,
        "echo '{}' > disk/out.jsonl; mount -o remount,ro disk\n"
        f"{quote_words(command)}; echo $? > status; cp -r disk after",
    )

    assert (tmp_path / "status").read_text().strip() == "3", done.stderr
    assert "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["exit_status"] == 3
    assert sorted(path.name for path in (tmp_path / "after").iterdir()) == ["out.jsonl"]


def test_a_file_that_may_not_grow_stops_the_run_like_a_full_disk(tmp_path: Path) -> None:
    """The same on machines without mounts: the system refuses to let files grow (`ulimit -f`)."""
    command = eval_command(tmp_path)

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL // 2, SMALL // 2))

    first = shell(command, tmp_path, limit_file_size)
    kept = tasks(tmp_path / "disk/out.jsonl")
    second = shell([*command, "--resume"], tmp_path)

    assert first.returncode == 3, first.stderr
    assert os.strerror(27) in first.stderr  # EFBIG
    assert 0 < len(kept) < ROWS
    assert second.returncode == 0, second.stderr
    assert sorted(tasks(tmp_path / "disk/out.jsonl")) == list(range(ROWS))
