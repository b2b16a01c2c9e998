"""Print a script that completes commands, flags, component names and configuration keys in your shell.

Put the line of your shell into its start-up file:

  bash:  source <(gym completion bash)
  zsh:   source <(gym completion zsh)
  fish:  gym completion fish | source
"""

import argparse
from collections.abc import Sequence

from nemo_gym import component_search_roots
from nemo_gym.catalog.component_names import BENCHMARK, ENVIRONMENT, MODEL_TYPE, RESOURCES_SERVER
from nemo_gym.cli.parser import GROUPS_WITH_OVERRIDES, build_parser, command_parsers, find_leaf
from nemo_gym.cli.shared.options import SELECTORS
from nemo_gym.cli.terminal import output
from nemo_gym.config.keys import known_keys

KINDS_BY_FLAG = {kind.flag: kind for kind in SELECTORS.values()}
KINDS_BY_LIST_COMMAND = {
    "benchmarks": BENCHMARK,
    "environments": ENVIRONMENT,
    "models": MODEL_TYPE,
    "resources-servers": RESOURCES_SERVER,
}
"""Word after `gym list` -> kind of component."""
SCRIPTS = {
    "bash": """_gym_complete() {
    local IFS=$'\\n'
    COMPREPLY=($(gym completion --words "$COMP_CWORD" -- "${COMP_WORDS[@]}" 2>/dev/null))
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
    [[ ${#COMPREPLY[@]} -eq 0 ]] && compopt -o default 2>/dev/null
}
complete -F _gym_complete gym ng
""",
    "zsh": """#compdef gym ng
_gym_complete() {
    local -a found
    found=("${(@f)$(gym completion --words $((CURRENT - 1)) -- "${words[@]}" 2>/dev/null)}")
    if [[ "$found[1]" == *= ]]; then compadd -S '' -- $found
    elif [[ -n "$found" ]]; then compadd -- $found; else _files; fi
}
compdef _gym_complete gym ng
""",
    "fish": """function __gym_complete
    set -l before (commandline -opc)
    gym completion --words (count $before) -- $before (commandline -ct) 2>/dev/null
end
complete -c gym -a '(__gym_complete)'
complete -c ng -a '(__gym_complete)'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", metavar="SHELL", help=", ".join(SCRIPTS))
    parser.add_argument("--words", type=int, metavar="N", help="complete word N of the words after `--`")
    parser.add_argument("line", nargs="*", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.words is not None:
        line = [word for word in [args.shell, *args.line] if word]  # argparse takes the first word, `gym`, for SHELL
        candidates = find_candidates(line[1 : args.words], line[args.words] if args.words < len(line) else "")
        if candidates:
            output.write("\n".join(candidates))
        return 0
    if args.shell not in SCRIPTS:
        output.report_error(f"SHELL must be one of {', '.join(SCRIPTS)}")
        return 2
    output.write(SCRIPTS[args.shell])
    return 0


def find_candidates(before: Sequence[str], prefix: str) -> list[str]:
    """Return the commands, flags, components and keys (`+key=`) that may follow `before` and start with `prefix`."""
    return sorted(word for word in _possible_words(before, prefix) if word.startswith(prefix))


def _possible_words(before: Sequence[str], prefix: str) -> Sequence[str]:
    """Return the words that may follow `before`; of `prefix` only the sign (`-` for flags, `+` for keys) matters."""
    if before and before[-1] in KINDS_BY_FLAG:
        return KINDS_BY_FLAG[before[-1]].names(component_search_roots())
    if len(before) == 2 and before[0] == "list" and before[1] in KINDS_BY_LIST_COMMAND and not prefix.startswith("-"):
        return KINDS_BY_LIST_COMMAND[before[1]].names(component_search_roots())
    if prefix.startswith("+") and before and before[0] in GROUPS_WITH_OVERRIDES:
        from nemo_gym.exporters import register_exporter_keys  # takes time, and only keys need it

        register_exporter_keys()
        plus_signs = prefix[: len(prefix) - len(prefix.lstrip("+"))]
        return [f"{plus_signs}{name}=" for name in known_keys()]
    leaf = find_leaf(build_parser(before)[0], before)
    choices = next((a.choices for a in leaf._actions if before and before[-1] in a.option_strings and a.choices), None)
    if choices:
        return [str(choice) for choice in choices]
    return [*leaf._option_string_actions] if prefix.startswith("-") else [*command_parsers(leaf)]
