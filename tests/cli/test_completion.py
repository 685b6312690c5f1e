"""Scripts with which a shell completes commands and options."""

import shutil
import subprocess

import pytest

from goen.cli.main import COMMANDS, main

TRY = """
COMP_WORDS=(goen run --cen); COMP_CWORD=2; _goen goen --cen run; echo "${COMPREPLY[@]}"
COMP_WORDS=(goen sco); COMP_CWORD=1; _goen goen sco goen; echo "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out + TRY
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "--center-loss\nscore\n"


def test_fish_and_zsh_have_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    fish = capsys.readouterr().out
    assert all(f"-a {name} -d" in fish for name in COMMANDS)
    assert "-n '__fish_seen_subcommand_from score' -l overwrite" in fish
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("autoload -U +X bashcompinit")
