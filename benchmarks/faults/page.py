"""The findings as a document."""

from collections.abc import Iterable

from accuracy.tables import Columns, table
from faults.judge import COUNTS, counts, largest_is_first
from faults.records import OF_THE_MACHINE, Planted, Verdict
from peakward.diagnose.examine import RULES
from peakward.report.document import Document, Fact, Facts, Items, Section, TableBlock

READ_FIRST = (
    "Every program was run. Its trace was read as `peakward trace` reads it and judged by itself, or "
    "it was a case that Peakward's runner measured and profiled, judged as `peakward run` does.",
    "A fault's cost is 1 less the step without it over the step with it, both timed without a "
    f"profiler. What costs less than {COUNTS:.0%} is faint, and no rule is held to find it; what "
    "costs memory, or keeps a case from running, always counts.",
    "A rule that lacks a signal abstains: that is neither found nor missed.",
    "Rank is that of the planted finding among all of the program. A false alarm is any finding in a "
    "clean program, and the planted rule's in the same program without the fault. That the device "
    f"lowered its clock ({', '.join(OF_THE_MACHINE)}) is a finding of the machine and no alarm of the "
    "program's: it stands among all findings.",
)


def document(found: Planted) -> Document:
    """The report."""
    return Document(
        title=f"Planted faults on {found.environment.device_name}",
        headline=_headline(found),
        blocks=(Items(texts=READ_FIRST), _environment(found)),
        sections=(
            Section(title="Rules", blocks=(_rules(found),)),
            Section(title="False alarms", blocks=(_clean(found.verdicts),)),
            Section(title="By strength", blocks=(_strengths(found.verdicts),)),
            Section(title="Not judged", blocks=(_abstentions(found.verdicts),)),
            Section(title="Not run", blocks=(_not_run(found),)),
        ),
    )


def _headline(found: Planted) -> str:
    n = sum(each.n for each in found.recall)
    n_found = sum(each.n_found for each in found.recall)
    first = sum(each.n_first for each in found.recall)
    abstained = sum(each.n_abstained for each in found.recall)
    large = [each for each in found.verdicts if each.strength and not largest_is_first(each)]
    without = [each for each in found.verdicts if not each.strength]
    fired = sum(bool(each.alarms) for each in without)
    return (
        f"Of {n} planted faults {n_found} found, {first} in the first place; {len(large)} of those that "
        f"take more than half of the step not first; {abstained} not judged for want of input. "
        f"{fired} of {len(without)} programs without a fault raise a false alarm."
    )


def _environment(found: Planted) -> Facts:
    here = found.environment
    facts = {
        "device": here.device_name,
        "cores": f"{here.n_cores}",
        "torch": here.torch or "none",
        "Python": here.python,
        "command": found.command,
    }
    return Facts(facts=tuple(Fact(name=name, value=value) for name, value in facts.items()))


def _rules(found: Planted) -> TableBlock:
    columns: Columns = (
        ("rule", "name"),
        ("finds", "text"),
        ("planted", "count"),
        ("found", "count"),
        ("first", "count"),
        ("faint", "count"),
        ("of these found", "count"),
        ("not judged", "count"),
        ("why not", "text"),
    )
    by_code = {each.code: each for each in found.recall}
    rows = []
    for rule in RULES:
        each = by_code.get(rule.code)
        why = _why(found, rule.code)
        if each is None:
            rows.append((rule.code, rule.title, 0, None, None, None, None, None, why))
            continue
        figures = (
            each.n, each.n_found, each.n_first, each.n_faint, each.n_faint_found, each.n_abstained
        )  # fmt: skip
        rows.append((rule.code, rule.title, *figures, why))
    return table("Each rule", columns, rows)


def _why(found: Planted, code: str) -> str:
    missing = {one for each in found.verdicts if each.planted == code for one in each.missing}
    if missing:
        return f"lacked {', '.join(sorted(missing))}"
    skipped = {each.reason for each in found.skipped if each.planted == code}
    return "; ".join(sorted(skipped))


def _clean(every: Iterable[Verdict]) -> TableBlock:
    columns: Columns = (
        ("program", "name"),
        ("rule of its fault", "name"),
        ("false alarms", "text"),
        ("all findings", "text"),
    )
    rows = [
        (
            each.label,
            each.planted or "clean",
            ", ".join(each.alarms) or "none",
            ", ".join(each.found) or "none",
        )
        for each in every
        if not each.strength
    ]
    return table("Programs without a fault", columns, rows)


def _strengths(every: Iterable[Verdict]) -> TableBlock:
    columns: Columns = (
        ("rule", "name"),
        ("program", "name"),
        ("costs", "share"),
        ("counts", "text"),
        ("rank", "count"),
        ("all findings", "text"),
    )
    rows = [
        (
            each.planted or "",
            each.label,
            each.cost_share,
            "not judged" if each.missing else ("yes" if counts(each) else "faint"),
            each.rank,
            ", ".join(each.found) or "none",
        )
        for each in every
        if each.strength
    ]
    return table("Planted, by strength", columns, rows)


def _abstentions(every: tuple[Verdict, ...]) -> TableBlock:
    """Of all programs, planted with whatever fault or with none."""
    columns: Columns = (
        ("rule", "name"),
        ("lacked", "text"),
        ("programs", "count"),
        ("of", "count"),
    )
    n: dict[tuple[str, str], int] = {}
    for each in every:
        for one in each.abstentions:
            key = (one.code, ", ".join(one.missing))
            n[key] = n.get(key, 0) + 1
    order = {rule.code: at for at, rule in enumerate(RULES)}
    rows = [
        (code, lacked, times, len(every))
        for (code, lacked), times in sorted(n.items(), key=lambda each: order[each[0][0]])
    ]
    return table("What rules could not judge, and for want of what", columns, rows)


def _not_run(found: Planted) -> TableBlock:
    columns: Columns = (("program", "name"), ("rule of its fault", "name"), ("why", "text"))
    rows = [(each.program, each.planted or "", each.reason) for each in found.skipped]
    rows += [(each.label, each.planted or "", each.failed) for each in found.ran if each.failed]
    return table("Programs that were not run, or failed", columns, rows)
