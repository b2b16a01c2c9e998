"""Secrets in the configuration of a whole evaluation: they appear in no file, no output and no bundle."""

import json
from pathlib import Path

import yaml

from tests.cli.eval.test_run import ARITHMETIC, gym, rows  # noqa: F401 - a fixture

SEEDS = {name: f"q7{name}Zw41kx9" for name in ("harmless", "inside", "listed", "typo", "hook", "connection", "url")}


def write_config(folder: Path) -> Path:
    """Write a scripted model and a judge that is never reached; both hold secrets under various names."""
    script = [{"text": "It is 4."}]
    model = {
        "entrypoint": "app.py",
        "script": script,
        "note": "${oc.env:SEED_HARMLESS}",
        "headers": {"X-Extra": "Token ${oc.env:SEED_INSIDE}; v=1"},
        "auth": ["me", SEEDS["listed"]],
        "pasword": SEEDS["typo"],
        "alert_webhook_url": f"https://hooks.example.com/services/{SEEDS['hook']}",
        "connection_string": f"Server=db;User=me;Pwd={SEEDS['connection']}",
        "proxy": f"http://me:{SEEDS['url']}@127.0.0.1:9",
    }
    path = folder / "model.yaml"
    path.write_text(yaml.safe_dump({"policy_model": {"responses_api_models": {"scripted_model": model}}}))
    return path


def test_a_run_writes_no_secret_anywhere(tmp_path: Path, rows: str) -> None:  # noqa: F811
    """Run folders and bundles are shared with colleagues and attached to reports, so a secret in one is published."""
    environment = {"SEED_HARMLESS": SEEDS["harmless"], "SEED_INSIDE": SEEDS["inside"]}
    config = write_config(tmp_path)
    run = [*ARITHMETIC, "--config", str(config), "-i", rows]
    outputs = [
        gym(*run, "--json", cwd=tmp_path, **environment),
        gym(*run, "--resume", "--num-repeats", "2", "--verbose", cwd=tmp_path, **environment),
        gym("env", "resolve", "--config", str(config), cwd=tmp_path, **environment),
        gym(*run, "++policy_model.responses_api_models.scripted_model.script=7", cwd=tmp_path, **environment),
        gym("view", "out.jsonl", "--export", "bundle", cwd=tmp_path, **environment),
    ]

    assert [done.returncode for done in outputs] == [0, 0, 0, 2, 0], [done.stderr for done in outputs]
    assert json.loads(outputs[0].stdout)["scored"] == 4
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != config]
    assert len(files) > 5
    surfaces = {str(path): path.read_bytes() for path in files}
    surfaces |= {f"output {number}": (done.stdout + done.stderr).encode() for number, done in enumerate(outputs)}
    leaks = [(name, seed) for name, text in surfaces.items() for seed in SEEDS if SEEDS[seed].encode() in text]
    assert leaks == []
