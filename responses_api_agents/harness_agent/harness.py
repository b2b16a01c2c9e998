"""The description of a program as an agent: how it is configured and started, and where its answer is.

Texts may contain placeholders: `{prompt}`, `{prompt_json}` (as a JSON string), `{prompt_file}`, `{base}` (URL of the
model with `/v1`), `{root}` (without), `{key}`, `{model}`, `{mcp_url}`, `{workspace}`, `{home}`, `{context_tokens}`,
`{answer_tokens}`, `{max_turns}`, `{scripts}` (folder of scripts of this agent).
"""

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_gym.errors import AgentFailed, ConfigError
from nemo_gym.launch.programs import Programs, is_installed
from nemo_gym.sandbox.workspaces import checked_path

PLACEHOLDERS = (
    "prompt", "prompt_json", "prompt_file", "base", "root", "key", "model", "mcp_url", "workspace", "home",
    "context_tokens", "answer_tokens", "max_turns", "scripts",
)  # fmt: skip
_PLACEHOLDER = re.compile("{(" + "|".join(PLACEHOLDERS) + ")}")
SCRIPTS_FOLDER = Path(__file__).parent / "scripts"
"""Scripts of ours that run programs which are libraries; they are in the box at `{scripts}`."""

Dialect = Literal["responses", "chat", "messages", "gemini"]


class FinalText(BaseModel):
    """Where the final text of the program is; without it, it is the last text of the model."""

    model_config = ConfigDict(extra="forbid")

    file: str | None = None
    """A file below HOME, which may begin with `{home}`, or below `{workspace}`."""
    stdout: Literal["text", "json", "last_json_line"] | None = None
    """The whole output, a JSON value, or the last line that is one."""
    field: str | None = None
    """The field of a JSON value with the text: `result`, or with dots `message.content`."""

    @model_validator(mode="after")
    def _check_source(self) -> "FinalText":
        if bool(self.file) == bool(self.stdout):
            raise ValueError("name a `file` or a form of `stdout`, and not both")
        if self.stdout and (self.stdout == "text") == bool(self.field):
            raise ValueError("`field` is needed for `stdout: json` and `last_json_line`, and not allowed for `text`")
        return self


class McpSettings(BaseModel):
    """What is added if the environment offers its tools over MCP, at `{mcp_url}`."""

    model_config = ConfigDict(extra="forbid")

    arguments: list[str] = []
    """Arguments after the first word of the command."""
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    """Contents by path below HOME; they replace files of the program."""


class Harness(BaseModel):
    """A program as an agent."""

    model_config = ConfigDict(extra="forbid")

    command: list[str] = Field(min_length=1)
    dialect: Dialect
    env: dict[str, str] = {}
    files: dict[str, str] = {}
    """Contents of files by their path below HOME."""
    stdin: str | None = None
    """Text for the standard input; without it, the input is empty."""
    final_text: FinalText | None = None
    licence: str = ""
    page: str = ""
    """Where the program is described."""
    mcp: McpSettings | None = None
    """How the program gets the tools of the environment; without it, it has only its own."""

    @field_validator("files")
    @classmethod
    def _check_names(cls, files: dict[str, str]) -> dict[str, str]:
        return {checked_path(name): content for name, content in files.items()}

    @field_validator("env", mode="before")
    @classmethod
    def _as_texts(cls, env: Any) -> Any:
        """Accept numbers, which YAML makes of `1`."""
        if not isinstance(env, Mapping):
            return env
        return {str(name): str(value) if isinstance(value, int | float) else value for name, value in env.items()}

    @model_validator(mode="after")
    def _check_task(self) -> "Harness":
        texts = [*self.command, *self.files.values(), *self.env.values(), self.stdin or ""]
        if not any(name in text for text in texts for name in ("{prompt}", "{prompt_json}", "{prompt_file}")):
            raise ValueError("the task reaches the program nowhere: use {prompt}, {prompt_json} or {prompt_file}")
        if not any(name in text for text in texts for name in ("{base}", "{root}")):
            raise ValueError("the address of the model reaches the program nowhere: use {base} or {root}")
        return self


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of a text; other braces stay."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


@dataclass(frozen=True)
class ProgramStart:
    """A program as it is started for one rollout."""

    command: list[str]
    env: dict[str, str]
    files: dict[str, str]
    stdin: str


_MAX_ARGUMENT_BYTES = 128 << 10
"""Size of an argument or variable with its end, which the kernel limits."""


def check_start(start: ProgramStart, where: str) -> None:
    """Check that the kernel can start a program with these arguments and variables.

    Raises:
        AgentFailed: one of them is too long or contains a zero byte, as a task may.
    """
    texts = [*start.command, *(f"{name}={value}" for name, value in start.env.items())]
    fix = "hand the task over with {prompt_file}, with `stdin`, or in `files`"
    size = max(len(text.encode(errors="replace")) for text in texts)
    if size >= _MAX_ARGUMENT_BYTES:
        problem = f"an argument or variable of the program has {size:,} bytes, and at most 131,071 are possible"
        raise AgentFailed(problem, where=where, fix=fix)
    if any("\0" in text for text in texts):
        raise AgentFailed("an argument or variable of the program contains a zero byte", where=where, fix=fix)


def prepare_start(harness: Harness, values: Mapping[str, str], *, has_mcp: bool) -> ProgramStart:
    """Fill in the placeholders of a harness; with `has_mcp`, also its MCP settings."""
    added = harness.mcp if harness.mcp is not None and has_mcp else McpSettings()
    first, *rest = harness.command

    def fill_all(texts: Mapping[str, str]) -> dict[str, str]:
        return {name: fill(text, values) for name, text in texts.items()}

    return ProgramStart(
        [fill(word, values) for word in (first, *added.arguments, *rest)],
        fill_all({**harness.env, **added.env}),
        fill_all({**harness.files, **added.files}),
        fill(harness.stdin or "", values),
    )


def read_final_text(rule: FinalText, stdout: str, content: str | None) -> str | None:
    """Return the final text of a program from its output or, for a rule with a file, from the content of the file.

    None if it is not where the rule says.
    """
    output = (content or "") if rule.file else stdout
    if not rule.field:
        return output.strip() or None
    texts = reversed(output.splitlines()) if rule.stdout == "last_json_line" else [output]
    for text in texts:
        with suppress(ValueError, RecursionError):
            value = json.loads(text)
            for name in (rule.field or "").split("."):
                value = value.get(name) if isinstance(value, Mapping) else None
            if isinstance(value, str) and value.strip():
                return value.strip()
    return None


def node_folder() -> Path | None:
    """Return the folder of Node if it is outside of the folders that every box has; None otherwise.

    Raises:
        ConfigError: Node is not installed.
    """
    node = shutil.which("node")
    if node is None:
        raise ConfigError("Node is not installed, and this program needs it", fix="install nodejs 20 or later")
    prefix = Path(node).resolve().parent.parent
    return None if prefix.is_relative_to("/usr") else prefix


def installed_folder(programs: Programs, cache_dir: str | Path | None, where: str) -> Path | None:
    """Return the folder of the installed packages; None if the program needs none.

    Raises:
        ConfigError: they are not installed.
    """
    if programs.is_empty:
        return None
    folder = programs.folder(cache_dir)
    if not is_installed(folder):
        problem = f"its program is not installed: {programs.packages}"
        raise ConfigError(problem, where=where, fix="gym env prefetch, with the same configuration")
    return folder
