"""Write the generated tables of the documentation; ``--check`` only names the pages out of date.

A generated table stands between a line that names its source and a line ``<!-- end -->``. Sources:

- ``<!-- code: NAME -->``: a function of `TABLES`;
- ``<!-- table: NAME -->``: the figures in ``benchmarks/results/NAME.json``;
- ``<!-- paper: FOLDER/NAME -->``: the totals in ``papers/FOLDER/results/NAME.json``, or what `PAPER_ROWS` takes from there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from record import rendered

from coordinator_free_bootstrap.errors import PeerError, RefusalCode, RemoteProtocolError
from coordinator_free_bootstrap.manifest import Manifest
from coordinator_free_bootstrap.options import bounds_of, members_of, rules_of
from coordinator_free_bootstrap.options import fields_of as declared_in
from peer.algorithms.registry import algorithms
from peer.core.counters import COUNTING, Totals, entries
from peer.core.model_tests import REASONS
from peer.lab.cells import Cells
from peer.lab.render import how, sheets
from peer.lab.table import ResultTable
from peer.lab.table_files import read_tables
from peer.observe.metrics import PeerMetrics
from peer.ops.alerts import EVENTS
from peer.runtime.local_options import IN_FILE, LocalOptions
from peer.runtime.policy import Policy
from peer.store.audit import AUDIT_KINDS
from peer.store.records import KINDS, STATES, AlgorithmFields, Line, Summary, fields_of
from peer.view.state.rows import MESSAGES, EdgeRow, Header, PeerRow
from peer.view.state.timeline import TimelineEntry

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
GENERATED = re.compile(r"^(<!-- (code|table|paper): (\S+) -->\n).*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
MARKS = re.compile(r"^<!-- (?:(?:code|table|paper): .*|end) -->$", re.MULTILINE)
MANIFEST_KEY = re.compile(r"\b(limits|timeouts|screening)\.\w+")
COMMAND = re.compile(r"\bpeer (?:--version|doctor)\b")
OPTION = re.compile(r"\brun\.options\.(\w+)")
KEY = re.compile(r"\brun\.\w+(?:\.\w+)?")


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


def counters() -> str:
    """Return the counters, each with its unit."""
    return table(("counter", "unit", "meaning"), ((f"`{n}`", e.unit, e.help) for n, e in entries(Totals).items()))


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
    shown = MANIFEST_KEY.sub(r"`run.\g<0>`", table(("code", "cause", "in answer to", "what to do"), rows))
    return COMMAND.sub(r"`\g<0>`", shown)


def reasons() -> str:
    """Return why a model has no test after the last round."""
    return table(("`missing`", "the peer of `model_of`"), ((f"`{word}`", about) for word, about in REASONS.items()))


def policy_keys() -> str:
    """Return the keys of an owner's policy."""
    return table(("key", "meaning"), ((f"`{name}`", f.description or "") for name, f in declared_in(Policy).items()))


def commands() -> str:
    """Return the verbs of `peer`, each with the first sentence of its help."""
    recorded = sorted((ROOT / "tests" / "unit" / "cli" / "help").glob("*.txt"))
    rows = []
    for path in recorded:
        usage, about, *_ = path.read_text(encoding="utf-8").strip().split("\n\n")
        verb = " ".join(usage.removeprefix("Usage: ").partition(" [")[0].split())
        link = f"../{path.relative_to(ROOT).as_posix()}"
        rows.append((f"[`{verb}`]({link})", " ".join(about.split()).replace("|", "\\|")))
    return table(("verb", "what it does"), rows)


def exit_codes() -> str:
    """Return the exit codes of `peer`, in their order."""
    kinds: list[type[PeerError]] = [PeerError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    found: dict[int, list[str]] = {0: ["The command has done what it was asked for."]}
    for kind in kinds[1:]:
        if "exit_code" in vars(kind) and kind is not RemoteProtocolError:  # neighbors get its refusal
            found.setdefault(kind.exit_code, []).append((kind.__doc__ or "").partition("\n")[0])
    return table(("exit code", "meaning"), ((f"{code}", " ".join(about)) for code, about in sorted(found.items())))


def manifest_keys() -> str:
    """Return every key of the manifest: default, bounds, and what it does."""
    rows = []
    for name, field in Manifest.model_fields.items():
        section = field.annotation
        nested = section.model_fields if isinstance(section, type) and issubclass(section, BaseModel) else {}
        fields = {f"run.{name}.{leaf}": inner for leaf, inner in nested.items()} or {f"run.{name}": field}
        rows += [declaration(key, each) for key, each in fields.items()]
    return table(("key", "default", "allowed", "meaning"), rows)


def algorithm_options() -> str:
    """Return the options of every algorithm that has some, under a heading each."""
    parts = []
    own = {name: each for name, each in algorithms().items() if each.__module__.startswith("peer.")}  # no user's class
    for name, algorithm in sorted(own.items()):
        rows = [declaration(option, field) for option, field in declared_in(algorithm.Options).items()]
        if rows:
            parts.append(f"### {name}\n\n{table(('`run.options` key', 'default', 'allowed', 'meaning'), rows)}")
    return "\n".join(parts)


def file_options() -> str:
    """Return the options of `peer run` that only its file of options has."""
    declared = declared_in(LocalOptions)
    return table(("option", "meaning"), ((f"`{name}`", declared[name].description or "") for name in IN_FILE))


def declaration(name: str, field: FieldInfo) -> tuple[str, ...]:
    """Return the cells of a key or option: name, default, bounds, meaning with what leaves it without effect."""
    reasons = ", or if ".join(rule.stated for rule in rules_of(field))
    why = "; no effect if " + KEY.sub(r"`\g<0>`", OPTION.sub(r"`\1`", reasons)) if reasons else ""
    cells = (shown_default(field), allowed(field), (field.description or "") + why)
    return f"`{name}`", *(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells)


def shown_default(field: FieldInfo) -> str:
    """Return the default of an option as JSON; "none" where the meaning says it."""
    default = field.get_default(call_default_factory=True)
    return "none" if default is None else f"`{json.dumps(default).strip(chr(34))}`"


def allowed(field: FieldInfo) -> str:
    """Return the values that an option allows: choices, or bounds."""
    choices = [
        choice for each in members_of(field.annotation) if get_origin(each) is Literal for choice in get_args(each)
    ]
    return ", ".join(f"`{choice}`" for choice in choices) or str(bounds_of(field))


TABLES: dict[str, Callable[[], str]] = {
    "audit": lambda: table(("kind", "what"), ((f"`{kind}`", what) for kind, what in AUDIT_KINDS.items())),
    "events": lambda: table(("event", "when"), ((f"`{name}`", when) for name, when in EVENTS.items())),
    "lines": lambda: meanings(Line, "field"),
    "kinds": kinds,
    "round": fields_of_round,
    "algorithm-state": lambda: meanings(AlgorithmFields, "key"),
    "summary": lambda: meanings(Summary, "key"),
    "counters": counters,
    "metrics": metrics,
    "model-tests": reasons,
    "states": statuses,
    "messages": messages,
    "timeline": lambda: meanings(TimelineEntry, "key"),
    "header": lambda: meanings(Header, "key"),
    "peers": lambda: meanings(PeerRow, "key"),
    "edges": lambda: meanings(EdgeRow, "key"),
    "refusals": refusals,
    "policy": policy_keys,
    "commands": commands,
    "exit-codes": exit_codes,
    "keys": manifest_keys,
    "options": algorithm_options,
    "file-options": file_options,
}


# ---- tables of papers ---------------------------------------------------------------------------------------------------


def totals(result: ResultTable) -> Cells:
    """Return what each case reached and cost over all settings, as the page of the paper shows it."""
    return sheets(result)[-1][1]


def rivals(result: ResultTable) -> Cells:
    """Return the totals of `blend`, of the two simple rivals and of `dfca`, the highest mean first."""
    header, *rows = totals(result)
    shown = [row for row in rows if re.match(r"blend|dfca|dfedavg|local", row[0])]
    return [header, *sorted(shown, key=lambda row: -float(row[1]))]


def bytes_sent(result: ResultTable) -> Cells:
    """Return the models and bytes that all peers sent, beside those of FedEM."""
    sent = {row.case: round((row.megabytes_sent or 0) * 1e6 * result.peers) for row in result.rows}
    rows = [
        (row.case, f"{row.models_sent or 0:.0f}", f"{sent[row.case]:,}", f"{sent[row.case] / sent['FedEM']:.3f}")
        for row in result.rows
    ]
    return [("method", "models sent", "bytes", "of FedEM"), *rows]


PAPER_ROWS: dict[str, Callable[[ResultTable], Cells]] = {"fedspd/fedspd-bytes": bytes_sent, "suite/suite": rivals}


def of_paper(name: str) -> str:
    """Return a table of a paper's results: where its figures come from, header, rows.

    Raises:
        ValueError: there is no such result.
    """
    folder, _, experiment = name.rpartition("/")
    path = ROOT / "papers" / folder / "results" / f"{experiment}.json"
    if not path.is_file():
        raise ValueError(
            f"paper {name}: expected FOLDER/NAME of papers/FOLDER/results/NAME.json, got no file {path.name}"
        )
    result, *_ = read_tables(path)  # the others have fewer rows or other settings
    header, *rows = PAPER_ROWS.get(name, totals)(result)
    return f"{how(result)}\n\n{table(header, rows)}"


def generated(page: str) -> str:
    """Return the text of a page with its tables written again.

    Raises:
        KeyError: the code has no table of this name.
        ValueError: there is no result of this name, or a table has no end.
    """
    if len(MARKS.findall(page)) != 2 * len(GENERATED.findall(page)):
        raise ValueError(
            "expected a line <!-- end --> after each <!-- code: NAME -->, <!-- table: NAME --> and <!-- paper: NAME -->"
        )
    return GENERATED.sub(_block, page)


def _block(found: re.Match[str]) -> str:
    head, kind, name = found.groups()
    sources = {"code": lambda name: TABLES[name](), "paper": of_paper, "table": rendered}
    text = sources[kind](name)
    return f"{head}\n{text}\n<!-- end -->"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    check, stale = parser.parse_args().check, []
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if (fresh := generated(page)) != page:
            stale.append(path.name)
            if not check:
                path.write_text(fresh, encoding="utf-8")
    if stale and check:
        print(f"docs: {', '.join(stale)} are out of date. Run make tables.", file=sys.stderr)
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
