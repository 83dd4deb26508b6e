"""The order of the methods as tables."""

from __future__ import annotations

from collections.abc import Sequence

from dcfl.paper.results import (
    CLAIMS,
    DCFL,
    DUELS,
    ClaimCheck,
    Contests,
    Lead,
    Leaders,
    checks,
    leaders,
    leads,
    published_contests,
)
from dcfl.report.document import Section, Table

COUNTED = ("ours", "paper, same cells", "paper, all cells")


def order_section(contests: Contests) -> Section:
    """The tables of the order; none if nothing can be compared."""
    places = leaders(contests)
    tables = [
        claims_table(checks(CLAIMS, contests)),
        duels_table(checks(DUELS, contests)),
        leads_table(leads(places)),
        leaders_table(places),
    ]
    return Section("The order of the methods", tables=[table for table in tables if table.rows])


def order_csv(contests: Contests) -> str:
    """Every claim and every duel once, and how often DCFL is the best of how many methods."""
    pairs = dict.fromkeys([*CLAIMS, *DUELS])
    claims = claims_table(checks(pairs, contests))
    best = leads_table(leads(leaders(contests)))
    named = [[f"every other < DCFL ({head} methods)", *counts] for head, *counts in best.rows]
    return Table(claims.columns, [*claims.rows, *named]).csv()


def claims_table(claim_checks: Sequence[ClaimCheck]) -> Table:
    rows = [[f"{check.low} < {check.high}", *_counts(check)] for check in claim_checks if check.of]
    note = "Each data set and split counts twice: once for MAX and once for EMA, means over seeds."
    return Table(["Claim", *COUNTED], rows, note=note)


def duels_table(duels: Sequence[ClaimCheck]) -> Table:
    by_pair = {(check.low, check.high): _counts(check) for check in duels if check.of}
    none = ["–"] * len(COUNTED)
    rows = [
        [other, *(cell for variant in DCFL for cell in by_pair.get((other, variant), none))]
        for other in dict.fromkeys(low for low, _ in by_pair)
    ]
    columns = [f"{variant}: {what}" for variant in DCFL for what in COUNTED]
    note = "In how many cells each variant is above the other method."
    return Table(["Method", *columns], rows, "DCFL against every other method", note)


def _counts(check: ClaimCheck) -> list[str]:
    everywhere = ClaimCheck.over(check.low, check.high, published_contests())
    return [
        f"{check.ours} of {check.of}",
        f"{check.papers} of {check.of}",
        f"{everywhere.papers} of {everywhere.of}",
    ]


def leads_table(our_leads: Sequence[Lead]) -> Table:
    (papers,) = leads(leaders(published_contests()))
    rows = [
        [
            str(lead.methods),
            f"{lead.ours} of {lead.of}",
            f"{lead.papers} of {lead.of}",
            f"{papers.papers} of {papers.of}" if lead.methods == papers.methods else "–",
        ]
        for lead in our_leads
    ]
    title = "The better DCFL variant above all others"
    return Table(["Methods compared", *COUNTED], rows, title)


def leaders_table(places: Sequence[Leaders]) -> Table:
    several = len({leaders.place[0] for leaders in places}) > 1
    rows = [
        [
            _place(leaders, several),
            str(leaders.methods),
            _named(leaders.best),
            _named(leaders.second),
            _named(leaders.papers_best),
            _named(leaders.papers_second),
        ]
        for leaders in places
    ]
    columns = ["Where", "methods", "best", "second", "paper's best", "paper's second"]
    note = "The paper's best is that of the methods that were run here."
    return Table(columns, rows, "The best and the second best", note)


def _place(leaders: Leaders, several: bool) -> str:
    table, dataset, split, metric = leaders.place
    return ", ".join([*([table] if several else []), dataset, split_name(split), metric.upper()])


def split_name(split: str) -> str:
    return "IID" if split == "iid" else f"Dirichlet {split}"


def _named(rows: Sequence[str]) -> str:
    return ", ".join(rows) or "–"
