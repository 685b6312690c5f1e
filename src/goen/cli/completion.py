"""``goen completion``: a script with which a shell completes commands and options."""

import io
import re
from contextlib import redirect_stdout, suppress
from typing import Literal, TypeAlias

import tyro

from goen.cli.main import COMMANDS, main

Shell: TypeAlias = Literal["bash", "zsh", "fish"]

_BASH = """\
_goen() {{
    local options=""
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$2"))
    elif [[ "$2" == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$2"))
    fi
}}
complete -o default -F _goen goen"""


def completion_command(shell: tyro.conf.Positional[Shell]) -> int:
    """Print a script that completes commands and options in your shell.

    For example: goen completion bash > ~/.local/share/bash-completion/completions/goen
                 goen completion zsh >> ~/.zshrc
                 goen completion fish > ~/.config/fish/completions/goen.fish

    Args:
        shell: whose script.
    """
    options = {name: _options_of(name) for name in COMMANDS}
    if shell == "fish":
        unused = f"not __fish_seen_subcommand_from {' '.join(COMMANDS)}"
        for name, text in COMMANDS.items():
            about = text.replace("'", "\\'")
            print(f"complete -c goen -n '{unused}' -a {name} -d '{about}'")
            for option in options[name]:
                used = f"__fish_seen_subcommand_from {name}"
                print(f"complete -c goen -n '{used}' -l {option.removeprefix('--')}")
        return 0
    cases = "\n".join(f'        {n}) options="{" ".join(o)}" ;;' for n, o in options.items())
    if shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(_BASH.format(cases=cases, commands=" ".join(COMMANDS)))
    return 0


def _options_of(command: str) -> list[str]:
    """The options that its help shows, and the subcommands of one that has some."""
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main([command, "--help"])
    found = re.findall(r"--[a-z][a-z0-9-]*[a-z0-9]", printed.getvalue())
    return sorted({*found})
