"""The programs: package, dialects, and how each is configured and started for one rollout."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from tools.clients.coding_task import PROMPT
from tools.clients.servers import RolloutAddress

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
NPM_PREFIX, PYTHON_CLIENTS, PYTHON_SDKS = ROOT / ".npm-clients", ROOT / ".venv-clients", ROOT / ".venv-dialects"
MODEL = "m"
CONTEXT_TOKENS, ANSWER_TOKENS = 32768, 4096


@dataclass
class Start:
    """The command, variables and files with which a program begins one rollout."""

    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Contents of files by their path below HOME."""


Prepare = Callable[[str, RolloutAddress, Path], Start]
"""Returns the start of a program from the dialect, the address of the model and the folder of the rollout."""


@dataclass(frozen=True)
class Client:
    """A program and the dialects that it speaks."""

    name: str
    package: str
    dialects: tuple[str, ...]
    prepare: Prepare
    is_npm: bool = True

    def version(self) -> str | None:
        """Return the version of the installed package; None if it is missing."""
        if self.is_npm:
            manifest = NPM_PREFIX / "node_modules" / self.package / "package.json"
            return str(json.loads(manifest.read_text())["version"]) if manifest.exists() else None
        environment = PYTHON_SDKS if self.package == "openai-agents" else PYTHON_CLIENTS
        paths = [str(path) for path in environment.glob("lib/python*/site-packages")]
        distribution = next(iter(metadata.distributions(name=self.package, path=paths)), None)
        return distribution.version if distribution else None


def _npm(program: str) -> str:
    return str(NPM_PREFIX / "node_modules" / ".bin" / program)


def _claude(_dialect: str, address: RolloutAddress, _folder: Path) -> Start:
    words = ["-p", PROMPT, "--dangerously-skip-permissions", "--max-turns", "20", "--output-format", "json"]
    variables = {
        "ANTHROPIC_BASE_URL": address.root,
        "ANTHROPIC_API_KEY": "k",
        "IS_SANDBOX": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    return Start([_npm("claude"), *words], variables)


def _codex(_dialect: str, address: RolloutAddress, folder: Path) -> Start:
    config = f"""
model = "{MODEL}"
model_provider = "gym"
model_context_window = {CONTEXT_TOKENS}
[model_providers.gym]
name = "gym"
base_url = "{address.base}"
wire_api = "responses"
env_key = "K"
stream_max_retries = 0
request_max_retries = 0
"""
    flags = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "--json"]
    return Start(
        [_npm("codex"), "exec", *flags, "-C", str(folder / "workspace"), PROMPT],
        {"K": "k"},
        {".codex/config.toml": config},
    )


def _opencode(dialect: str, address: RolloutAddress, _folder: Path) -> Start:
    package = {
        "Chat": "@ai-sdk/openai-compatible",
        "Responses": "@ai-sdk/openai",
        "Messages": "@ai-sdk/anthropic",
    }[dialect]
    provider = {
        "npm": package,
        "options": {"baseURL": address.base, "apiKey": "k"},
        "models": {MODEL: {"limit": {"context": CONTEXT_TOKENS, "output": ANSWER_TOKENS}}},
    }
    config = {"autoupdate": False, "share": "disabled", "permission": "allow", "provider": {"gym": provider}}
    words = ["run", "--format", "json", "--title", "t", "-m", f"gym/{MODEL}", PROMPT]
    return Start([_npm("opencode"), *words], {}, {".config/opencode/opencode.json": json.dumps(config)})


def _pi(dialect: str, address: RolloutAddress, _folder: Path) -> Start:
    api = {"Chat": "openai-completions", "Responses": "openai-responses", "Messages": "anthropic-messages"}[dialect]
    model = {
        "id": MODEL,
        "name": MODEL,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": CONTEXT_TOKENS,
        "maxTokens": ANSWER_TOKENS,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    base_url = address.root if dialect == "Messages" else address.base
    provider = {"baseUrl": base_url, "api": api, "apiKey": "K", "models": [model]}
    words = ["-p", "--provider", "gym", "--model", MODEL, "--mode", "json", PROMPT]
    return Start(
        [_npm("pi"), *words], {"K": "k"}, {".pi/agent/models.json": json.dumps({"providers": {"gym": provider}})}
    )


def _gemini(_dialect: str, address: RolloutAddress, _folder: Path) -> Start:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
        "telemetry": {"enabled": False},
    }
    words = ["-p", PROMPT, "--yolo", "--skip-trust", "-m", "gemini-2.5-flash", "-o", "json"]
    variables = {"GOOGLE_GEMINI_BASE_URL": address.root, "GEMINI_API_KEY": "k", "GEMINI_CLI_NO_RELAUNCH": "true"}
    return Start([_npm("gemini"), *words], variables, {".gemini/settings.json": json.dumps(settings)})


def _mini(_dialect: str, address: RolloutAddress, folder: Path) -> Start:
    variables = {
        "OPENAI_BASE_URL": address.base,
        "OPENAI_API_KEY": "k",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
        "MSWEA_GLOBAL_CALL_LIMIT": "20",
        "MSWEA_SILENT_STARTUP": "1",
    }
    words = ["-m", f"openai/{MODEL}", "-t", PROMPT, "-y", "--exit-immediately", "-o", str(folder / "trajectory.json")]
    return Start([str(PYTHON_CLIENTS / "bin" / "mini"), *words], variables)


def _agents(dialect: str, address: RolloutAddress, _folder: Path) -> Start:
    api, _, mode = dialect.lower().partition(" ")
    variables = {"OPENAI_BASE_URL": address.base, "OPENAI_API_KEY": "k"}
    script = str(FOLDER / "agents_sdk.py")
    return Start([str(PYTHON_SDKS / "bin" / "python"), script, api, mode or "streamed"], variables)


CLIENTS = (
    Client("claude-code", "@anthropic-ai/claude-code", ("Messages",), _claude),
    Client("codex", "@openai/codex", ("Responses",), _codex),
    Client("opencode", "opencode-ai", ("Chat", "Responses", "Messages"), _opencode),
    Client("pi", "@mariozechner/pi-coding-agent", ("Chat", "Responses", "Messages"), _pi),
    Client("gemini-cli", "@google/gemini-cli", ("Gemini",), _gemini),
    Client("mini-swe-agent", "mini-swe-agent", ("Chat",), _mini, is_npm=False),
    Client(
        "openai-agents",
        "openai-agents",
        ("Responses whole", "Responses", "Chat whole", "Chat"),
        _agents,
        is_npm=False,
    ),
)


def base_variables(home: Path) -> dict[str, str]:
    """Return the environment of a program: nothing of the caller but the search path."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    node = shutil.which("node")
    if node:
        folders.insert(0, str(Path(node).parent))
    return {
        "HOME": str(home),
        "PATH": os.pathsep.join(folders),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "SHELL": "/bin/bash",
    }
