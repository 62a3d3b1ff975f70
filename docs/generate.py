"""Write the tables of these pages and of proto/WIRE.md that the code has; ``--check`` only says whether they are up to date.

A generated table stands in a page between the lines ``<!-- code: NAME -->`` and ``<!-- end of code -->``; `TABLES` has the names.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from coordinator_free_bootstrap.errors import RefusalCode
from peer.core.counters import COUNTING, Totals, entries
from peer.observe.metrics import PeerMetrics
from peer.store.records import KINDS, STATES, AlgorithmFields, Line, Summary, fields_of
from peer.view.state.rows import MESSAGES, EdgeRow, Header, PeerRow
from peer.view.state.timeline import TimelineEntry

DOCS = Path(__file__).resolve().parent
PAGES = (*sorted(DOCS.glob("*.md")), DOCS.parent / "proto" / "WIRE.md")
GENERATED = re.compile(r"(?<=^<!-- code: )(\S+)( -->\n\n).*?(?=\n<!-- end of code -->$)", re.DOTALL | re.MULTILINE)
MANIFEST_KEY = re.compile(r"\b(limits|timeouts|screening)\.\w+")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    lines = [" | ".join(head), *(" | ".join(row) for row in rows)]
    lines.insert(1, "|".join("---" for _ in lines[0].split(" | ")))
    return "".join(f"|{line}|\n" if line.startswith("---") else f"| {line} |\n" for line in lines)


def meanings(of: type, first: str) -> str:
    """Return the entries of a class, one in a row."""
    return table((first, "meaning"), ((f"`{name}`", each.help) for name, each in entries(of).items()))


def kinds() -> str:
    """Return the kinds of lines with their fields."""
    common = {*fields_of("round").values()}
    rows = []
    for kind, model in KINDS.items():
        named = [
            f"`{name}`" + (f" ({each.help})" if each not in common else "") for name, each in fields_of(kind).items()
        ]
        cells = ", ".join(named) if kind != "round" else "see *Fields of `round`*"
        about = (model.__doc__ or "").partition("\n")[0].removesuffix(".")
        rows.append(
            (f"`{kind}`", about[0].lower() + about[1:], cells + (", and the counters" if kind in COUNTING else ""))
        )
    return table(("kind", "what", "fields"), rows)


def fields_of_round() -> str:
    """Return the fields of a round line, its own first."""
    found = sorted(fields_of("round").items(), key=lambda item: item[0] in fields_of("end"))
    rows = ((f"`{name}`", each.unit, each.help) for name, each in found)
    return table(("field", "unit", "meaning"), rows)


def metrics() -> str:
    """Return what the metrics endpoint exports."""
    rows = {}
    for family in PeerMetrics(0).registry.collect():
        labels = {} if family.type == "info" or not family.samples else family.samples[0].labels
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        name += f"{{{', '.join(labels)}}}" if labels and family.type != "histogram" else ""
        kind = "gauge, 1" if family.type == "info" else family.type
        rows[name] = (f"`{name}`", kind, family.documentation[0].lower() + family.documentation[1:])
    return table(("metric", "type", "meaning"), rows.values())


def messages() -> str:
    """Return the keys of the answers of a `View`, and which of them have each."""
    keys = {name: each.help for message in MESSAGES.values() for name, each in entries(message).items()}
    rows = []
    for name, about in keys.items():
        having = [f"`{method}`" for method, message in MESSAGES.items() if name in entries(message)]
        rows.append((f"`{name}`", "all" if len(having) == len(MESSAGES) else ", ".join(having), about))
    return table(("key", "in", "value"), rows)


def statuses() -> str:
    """Return the states of a peer's run."""
    rows = (
        (f"`{state}`", each.help, "the peer" if each.said else "readers of its files") for state, each in STATES.items()
    )
    return table(("state", "meaning", "said by"), rows)


def refusals() -> str:
    """Return the codes of refusals: what each one refuses, which messages, and what to do."""
    rows = ((f"`{code}`", code.cause, code.answers, code.remedy) for code in RefusalCode)
    return MANIFEST_KEY.sub(r"`\g<0>`", table(("code", "cause", "in answer to", "what to do"), rows))


TABLES: dict[str, Callable[[], str]] = {
    "lines": lambda: meanings(Line, "field"),
    "kinds": kinds,
    "round": fields_of_round,
    "algorithm-state": lambda: meanings(AlgorithmFields, "key"),
    "summary": lambda: meanings(Summary, "key"),
    "counters": lambda: meanings(Totals, "counter"),
    "metrics": metrics,
    "states": statuses,
    "messages": messages,
    "timeline": lambda: meanings(TimelineEntry, "key"),
    "header": lambda: meanings(Header, "key"),
    "peers": lambda: meanings(PeerRow, "key"),
    "edges": lambda: meanings(EdgeRow, "key"),
    "refusals": refusals,
}


def generated(page: str) -> str:
    """Return the text of a page with its tables as the code gives them; a table that is not in `TABLES` is a KeyError."""
    return GENERATED.sub(lambda found: found[1] + found[2] + TABLES[found[1]](), page)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    check, stale = parser.parse_args().check, []
    for path in PAGES:
        page = path.read_text()
        if (fresh := generated(page)) != page:
            stale.append(path.name)
            if not check:
                path.write_text(fresh)
    if stale and check:
        print(f"docs: {', '.join(stale)} differ from the code; run make tables", file=sys.stderr)
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
