"""Tab completion: a script for the shell, written from the commands and settings themselves.

No Python runs when Tab is pressed.

eval "$(manta completion bash)"          # in ~/.bashrc eval "$(manta completion zsh)"           # in
~/.zshrc, behind compinit manta completion fish > ~/.config/fish/completions/manta.fish
"""

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from jobs.command import named_configs
from pipeline.config import Settings
from pipeline.settings import Job
from pipeline.settings.index_kinds import INDEX_KINDS


class Shell(StrEnum):
    """Shells that completion is written for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands, options and settings in a shell.

    bash: eval "$(manta completion bash)" in ~/.bashrc. zsh: the same with zsh in ~/.zshrc, behind compinit.
        fish: manta completion fish > ~/.config/fish/completions/manta.fish
    """
    words = dict(_words(context.find_root().command, ()))
    print(_fish(words) if shell is Shell.FISH else _bash(words, zsh=shell is Shell.ZSH))


def _words(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Each command's path with the words that may follow it: commands, options, and settings where it takes
    them.
    """
    options = [name for parameter in command.params for name in parameter.opts if name.startswith("-")]
    commands = getattr(command, "commands", {})
    settings = (
        [f"{key}=" for key in _settings(Job)]
        if any(parameter.name == "overrides" for parameter in command.params)
        else []
    )
    yield path, [*commands, *options, "--help", *settings]
    for name, child in commands.items():
        yield from _words(child, (*path, name))


def _settings(kind: type[Settings], prefix: str = "") -> dict[str, list[str]]:
    """Every dotted key with the values that it may have; none where these are not a list."""
    found: dict[str, list[str]] = {}
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            found |= _settings(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = _values(field.annotation)
    return found | ({"index.kind": list(INDEX_KINDS)} if kind is Job else {})


def _values(annotation: Any) -> list[str]:
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return (
        [value for part in get_args(annotation) for value in _values(part)]
        if get_origin(annotation) is not tuple
        else []
    )


def _bash(words: Mapping[tuple[str, ...], list[str]], *, zsh: bool) -> str:
    """A completion function.

    To bash = is a word of its own, with the key before it and the value behind; to zsh key=value is one word.
    """
    cases = "\n".join(
        f"    {json.dumps(' '.join(path))}) words={json.dumps(' '.join(names))} ;;"
        for path, names in words.items()
    )
    values = "\n".join(
        f"    {key}) words={json.dumps(' '.join(known))} ;;" for key, known in _settings(Job).items() if known
    )
    commands = " | ".join(json.dumps(" ".join(path)) for path in words if path)
    before = "autoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{before}_manta() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" key="" prefix="" words="" command="" word number
  if [ "$current" = "=" ]; then key="$before"; current=""
  elif [ "$before" = "=" ]; then key="${{COMP_WORDS[COMP_CWORD-2]}}"
  elif [[ "$current" == *=* ]]; then key="${{current%%=*}}"; prefix="$key="; current="${{current#*=}}"; fi
  if [ -n "$key" ]; then
    case "$key" in
{values}
    esac
  elif [ "$before" = "--config" ] || [ "$before" = "-c" ]; then
    words="{" ".join(named_configs())}"
  else
    for ((number = 1; number < COMP_CWORD; number++)); do
      word="${{command:+$command }}${{COMP_WORDS[number]}}"
      case "$word" in {commands}) command="$word" ;; esac
    done
    case "$command" in
{cases}
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
complete -F _manta manta"""


def _fish(words: Mapping[tuple[str, ...], list[str]]) -> str:
    lines = ["complete -c manta -e"]
    for path, names in words.items():
        begun = " ".join(("manta", *path))
        at = f'string match -qr -- "^{begun}( |\\$)" (commandline -cp)' if path else "__fish_use_subcommand"
        lines.append(f"complete -c manta -n {_quoted(at)} -a {_quoted(' '.join(names))}")
    for key, known in _settings(Job).items():
        if known:
            at = f"string match -q -- '{key}=*' (commandline -ct)"
            lines.append(
                f"complete -c manta -n {_quoted(at)} -a "
                f"{_quoted(' '.join(f'{key}={value}' for value in known))}"
            )
    lines.append(f"complete -c manta -s c -l config -r -a {_quoted(' '.join(named_configs()))}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A string of fish's."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
