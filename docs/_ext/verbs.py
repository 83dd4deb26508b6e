"""Every verb of the command line with its arguments and options, from the program itself."""

import click
import typer
from markdown_tables import table

from dcfl.cli.main import app


def page() -> str:
    """A section per verb, in the order of `dcfl --help`."""
    program = typer.main.get_command(app)
    assert isinstance(program, click.Group)
    parts = ["## Options of every verb", _parameters(program)]
    for name, command in program.commands.items():
        parts += _sections(command, f"dcfl {name}", 2)
    return "\n\n".join(filter(None, parts))


def summary() -> str:
    """A line per verb, under the headings of `dcfl --help`."""
    program = typer.main.get_command(app)
    assert isinstance(program, click.Group)
    headings: dict[str, list[list[str]]] = {}
    for name, command in program.commands.items():
        heading = getattr(command, "rich_help_panel", None) or "Other"
        first = _help(command).split("\n\n")[0]
        headings.setdefault(heading, []).append([f"`dcfl {name}`", first])
    return "\n\n".join(f"**{name}**\n\n{table(['', ''], rows)}" for name, rows in headings.items())


def _sections(command: click.Command, path: str, level: int) -> list[str]:
    parts = [f"{'#' * level} `{path}`", _help(command)]
    callable_itself = not isinstance(command, click.Group) or command.invoke_without_command
    if callable_itself:
        usage = " ".join(command.collect_usage_pieces(click.Context(command)))
        parts += [f"```text\n{path} {usage}\n```", _parameters(command)]
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            parts += _sections(inner, f"{path} {name}", level + 1)
    return parts


def _help(command: click.Command) -> str:
    """Lines within a paragraph are joined, as in a terminal."""
    paragraphs = (command.help or "").split("\n\n")
    return "\n\n".join(" ".join(text.split()) for text in paragraphs)


def _parameters(command: click.Command) -> str:
    """A table of what has something to say."""
    context = click.Context(command)
    rows = []
    for parameter in command.params:
        text = getattr(parameter, "help", None)
        if text and not getattr(parameter, "hidden", False):
            names = ", ".join(f"`{name}`" for name in _names(parameter, context))
            rows.append([names, f"{text}{_default(parameter)}"])
    return table(["", ""], rows) if rows else ""


def _names(parameter: click.Parameter, context: click.Context) -> list[str]:
    metavar = parameter.make_metavar(context).replace("INTEGER RANGE", "N").replace("FLOAT", "X")
    if parameter.param_type_name == "argument":
        return [metavar]
    value = "" if getattr(parameter, "is_flag", False) else f" {metavar}"
    return [f"{name}{value}" for name in (*parameter.opts, *parameter.secondary_opts)]


def _default(parameter: click.Parameter) -> str:
    value = parameter.default
    told = parameter.param_type_name == "option" and value not in (None, "", False, True)
    return f" Default: `{value}`." if told and not callable(value) else ""
