"""What a newcomer meets: `dcfl` alone, `dcfl --help` and `dcfl demo`."""

import shlex

from dcfl.cli.main import NEXT, VERBS
from tests.command_line import Call
from tests.site.test_blocks import understand


def test_without_a_verb_it_says_what_to_do_next(cli: Call) -> None:
    code, out, _ = cli()
    assert code == 0
    assert len(out.splitlines()) == 6
    assert max(map(len, out.splitlines())) < 100


def test_each_line_of_advice_is_a_command() -> None:
    for line in NEXT.splitlines():
        understand(shlex.split(line.partition("   ")[0])[1:])


def test_help_has_a_heading_for_each_family(cli: Call) -> None:
    _, out, _ = cli("--help")
    at = [out.index(f"─ {heading} ─") for heading in (*VERBS, "Sites")]
    assert at == sorted(at)
    assert out.index(" flower ") > out.index("─ Sites ─")


def test_the_demo_is_a_page_that_needs_nothing(cli: Call) -> None:
    code, out, _ = cli("demo")
    path = out.split("demo  ")[-1].strip()
    page = open(path, encoding="utf-8").read()  # noqa: SIM115
    assert code == 0
    assert "scaffold" in page
    assert 'src="http' not in page
