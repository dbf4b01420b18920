"""Write a shell script that completes commands, options and settings when Tab is pressed, without Python.

eval "$(manta completion bash)"          # in ~/.bashrc
eval "$(manta completion zsh)"           # in ~/.zshrc
manta completion fish > ~/.config/fish/completions/manta.fish
"""

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from jobs.command import named_configs
from pipeline.config import Settings
from pipeline.settings import Job
from pipeline.settings.index_kinds import KIND_NAMES


class Shell(StrEnum):
    """Shells that completion supports."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands, options and settings in a shell.

    In ~/.bashrc write: eval "$(manta completion bash)"

    In ~/.zshrc write: eval "$(manta completion zsh)"

    For fish, run: manta completion fish > ~/.config/fish/completions/manta.fish
    """
    words = dict(_completions(context.find_root().command, ()))
    print(_fish(words) if shell is Shell.FISH else _bash(words, zsh=shell is Shell.ZSH))


def _completions(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the path of each command with the words that may follow it: commands, options and settings."""
    options = [name for parameter in command.params for name in parameter.opts if name.startswith("-")]
    commands = getattr(command, "commands", {})
    words = [*commands, *options, "--help"]
    if any(parameter.name == "overrides" for parameter in command.params):
        words += [f"{key}=" for key in _setting_values(Job)]
    yield path, words
    for name, child in commands.items():
        yield from _completions(child, (*path, name))


def _setting_values(kind: type[Settings], prefix: str = "") -> dict[str, list[str]]:
    """Return the allowed values of every dotted key; an empty list if any value is allowed."""
    values: dict[str, list[str]] = {}
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            values |= _setting_values(field.annotation, f"{prefix}{name}.")
        else:
            values[prefix + name] = _allowed_values(field.annotation)
    return values | ({"index.kind": list(KIND_NAMES)} if kind is Job else {})


def _allowed_values(annotation: Any) -> list[str]:
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if get_origin(annotation) is tuple:
        return []
    return [value for part in get_args(annotation) for value in _allowed_values(part)]


# compdef is defined by compinit, which ~/.zshrc may not call; -i ignores folders that others can write to
_ZSH_IN_BASH_MODE = """whence compdef > /dev/null || { autoload -U compinit && compinit -i }
autoload -U +X bashcompinit && bashcompinit"""


def _bash(words: Mapping[tuple[str, ...], list[str]], *, zsh: bool) -> str:
    """Return the completion script of bash, or of zsh in its bash mode.

    bash splits key=value into three words; for zsh it is one word, so the script handles both.
    """
    cases = {json.dumps(" ".join(path)): names for path, names in words.items()}
    values = {key: allowed for key, allowed in _setting_values(Job).items() if allowed}
    return f"""{_ZSH_IN_BASH_MODE if zsh else ""}
_manta() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" \
key="" prefix="" words="" command="" word number
  if [ "$current" = "=" ]; then key="$before"; current=""
  elif [ "$before" = "=" ]; then key="${{COMP_WORDS[COMP_CWORD-2]}}"
  elif [[ "$current" == *=* ]]; then key="${{current%%=*}}"; prefix="$key="; current="${{current#*=}}"; fi
  if [ -n "$key" ]; then
    case "$key" in
{_cases(values)}
    esac
  elif [ "$before" = "--config" ] || [ "$before" = "-c" ]; then
    words="{" ".join(named_configs())}"
  else
    for ((number = 1; number < COMP_CWORD; number++)); do
      word="${{command:+$command }}${{COMP_WORDS[number]}}"
      case "$word" in {" | ".join(case for case in cases if case != '""')}) command="$word" ;; esac
    done
    case "$command" in
{_cases(cases)}
    esac
  fi
  COMPREPLY=()
  for word in $words; do
    [[ "$word" == "$current"* ]] && COMPREPLY+=("$prefix$word")
  done
  if [ "${{#COMPREPLY[@]}}" -eq 0 ]; then
    COMPREPLY=($(compgen -P "$prefix" -f -- "$current"))
    compopt -o filenames 2> /dev/null
  elif [[ "${{COMPREPLY[0]}}" == *= ]]; then
    compopt -o nospace 2> /dev/null
  fi
}}
complete -F _manta manta""".lstrip()


def _cases(words: Mapping[str, list[str]]) -> str:
    """Return the branches of a shell's `case` that set `words`."""
    return "\n".join(f"    {case}) words={json.dumps(' '.join(each))} ;;" for case, each in words.items())


def _fish(words: Mapping[tuple[str, ...], list[str]]) -> str:
    """Return the completion script of fish."""
    lines = ["complete -c manta -e"]
    for path, names in words.items():
        typed = " ".join(("manta", *path))
        condition = "__fish_use_subcommand"
        if path:
            condition = f'string match -qr -- "^{typed}( |\\$)" (commandline -cp)'
        lines.append(f"complete -c manta -n {_fish_string(condition)} -a {_fish_string(' '.join(names))}")
    for key, allowed in _setting_values(Job).items():
        if allowed:
            condition = f"string match -q -- '{key}=*' (commandline -ct)"
            lines.append(
                f"complete -c manta -n {_fish_string(condition)} -a "
                f"{_fish_string(' '.join(f'{key}={value}' for value in allowed))}"
            )
    lines.append(f"complete -c manta -s c -l config -r -a {_fish_string(' '.join(named_configs()))}")
    return "\n".join(lines)


def _fish_string(text: str) -> str:
    """Return the text as a string literal of fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
