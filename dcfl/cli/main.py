"""The command line: registers the verbs, and turns errors into one line and an exit code.

Verbs import torch, and everything that needs it, inside their bodies, so that `dcfl --help` is
quick.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from dcfl.cli import check_verbs, inspection_verbs, model_verbs, study_verbs, training_verbs
from dcfl.cli.flower_verbs import flower
from dcfl.cli.paper_verbs import reproduce, theory
from dcfl.errors import DCFLError
from dcfl.system.processes import end_when_terminated
from dcfl.system.streams import forgiving_streams
from dcfl.system.wording import (
    be_quiet,
    install_command,
    one_line,
    print_warning,
    printable,
    printable_lines,
)

EXTRA = ("flwr", "ray", "httpx", "cryptography")  # what dcfl[flower] installs
INTERRUPTED = 130
USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # click's; newer versions of typer have their own
QUIET, DEBUG = "--quiet", "--debug"  # are understood anywhere in a command

app = typer.Typer(
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests too
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated learning on non-IID data: DCFL and the methods it is compared with.",
)

# In the order of `dcfl --help`, by the headings that it has.
VERBS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train": (
        training_verbs.run,
        training_verbs.resume,
        training_verbs.forget,
        inspection_verbs.settings,
        inspection_verbs.watch,
        check_verbs.doctor,
    ),
    "Compare": (
        study_verbs.compare,
        study_verbs.sweep,
        study_verbs.report,
        inspection_verbs.demo,
    ),
    "The model": (
        model_verbs.evaluate,
        model_verbs.predict,
        model_verbs.embed,
        model_verbs.export,
        model_verbs.analyse,
    ),
    "Data": (inspection_verbs.partition,),
    "Research": (
        inspection_verbs.methods,
        inspection_verbs.privacy,
        check_verbs.check,
        reproduce,
        theory,
    ),
}
GROUPS = {
    "Data": ("data", inspection_verbs.data),
    "Sites": ("flower", flower),
    "Research": ("new", check_verbs.new),
}
for heading, verbs in VERBS.items():
    for verb in verbs:
        app.command(verb.__name__, rich_help_panel=heading)(verb)
for heading, (name, group) in GROUPS.items():
    app.add_typer(group, name=name, rich_help_panel=heading)

NEXT = """\
dcfl demo                        look at a finished comparison, in a browser; nothing is trained
dcfl run                         train DCFL on built-in data, in about ten seconds
dcfl compare --seeds 0,1,2       compare FedAvg and DCFL, with intervals and a verdict
dcfl new config digits           a file with every setting, to change; own-images for your pictures
dcfl methods                     what each method does
dcfl --help                      all commands"""


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    quiet: Annotated[
        bool, typer.Option(QUIET, help="Show no progress, only results and warnings; any verb.")
    ] = False,
    debug: Annotated[bool, typer.Option(DEBUG, help="Show where an error is from.")] = False,
) -> None:
    if version:
        from dcfl.system.build import build

        print(f"dcfl {build()}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        print(NEXT)


def main() -> None:
    """The entry point: a user's mistake is one line and an exit code, never a traceback."""
    with forgiving_streams():
        _program()


def _program() -> NoReturn:
    arguments = [argument for argument in sys.argv[1:] if argument not in (QUIET, DEBUG)]
    debug = DEBUG in sys.argv[1:]
    be_quiet(QUIET in sys.argv[1:])
    warnings.showwarning = print_warning
    end_when_terminated()
    try:
        code = app(args=arguments, prog_name="dcfl", standalone_mode=False) or 0
        sys.stdout.flush()
        if code == INTERRUPTED:  # what typer makes of Ctrl-C
            _fail("interrupted", INTERRUPTED)
        raise SystemExit(code)
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            raise SystemExit(2) from None
        command = error.ctx.command_path if error.ctx else "dcfl"
        _fail(f"{one_line(error.format_message())} (see {command} --help)", 2)
    except Exception as error:
        if debug:
            print(printable_lines(traceback.format_exc()), file=sys.stderr)
        _fail_with(error)


def _fail_with(error: Exception) -> NoReturn:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in EXTRA:
        _fail(f"this needs {error.name}: {install_command('flower')}", 2)
    if isinstance(error, DCFLError):
        _fail(str(error), error.exit_code)
    if isinstance(error, OSError):
        _fail(f"{error.filename or 'storage'}: {error.strerror or error}", 3)
    name = type(error).__name__
    _fail(f"{name}: {one_line(error)} (a bug in dcfl; --debug shows where)", 1)


def _fail(message: str, exit_code: int) -> NoReturn:
    print(printable(f"dcfl: {message}"), file=sys.stderr)
    raise SystemExit(exit_code)
