"""Print a script that completes commands, flags and component names in your shell.

Put the line of your shell into its start-up file:

  bash:  source <(gym completion bash)
  zsh:   source <(gym completion zsh)
  fish:  gym completion fish | source
"""

import argparse
from collections.abc import Sequence

from nemo_gym.cli import output
from nemo_gym.cli.complete import candidates

SCRIPTS = {
    "bash": """_gym_complete() {
    local IFS=$'\\n'
    COMPREPLY=($(gym completion --words "$COMP_CWORD" -- "${COMP_WORDS[@]}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 0 ]] && compopt -o default 2>/dev/null
}
complete -F _gym_complete gym ng
""",
    "zsh": """#compdef gym ng
_gym_complete() {
    local -a found
    found=("${(@f)$(gym completion --words $((CURRENT - 1)) -- "${words[@]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -- $found; else _files; fi
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
    parser.add_argument("--words", type=int, metavar="N", help="complete word N of the words that follow `--`")
    parser.add_argument("line", nargs="*", help=argparse.SUPPRESS)


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001 - takes no overrides
    if args.words is not None:
        line = [word for word in [args.shell, *args.line] if word]
        found = candidates(line[1 : args.words], line[args.words] if args.words < len(line) else "")
        if found:
            output.data("\n".join(found))
        return 0
    if args.shell not in SCRIPTS:
        output.error(f"name a shell: {', '.join(SCRIPTS)}")
        return 2
    output.data(SCRIPTS[args.shell])
    return 0
