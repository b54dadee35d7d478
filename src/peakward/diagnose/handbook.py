"""The page of all rules, from their docstrings: `python -m peakward.diagnose.handbook > docs/findings.md`."""

from peakward.diagnose.rulebook import PARTS, RULES, Rule

OPENING = """\
# Findings

What `peakward run`, `peakward trace` and `pw.watch` may find, by code; a code is never given anew. A
rule looks at stored numbers alone, and where those that it needs are missing it says so and does not
judge. A finding names the time that it is about, the evidence with its place in the record, the levers
that may help, what they are predicted to give, and the most that they can: Amdahl's bound,
1 / (1 - share). Findings are ranked by the time that they hold back; then comes what loses nothing
(PREC002), and last the time that no other finding is about (TIME001). What two findings are both
about counts for the one ranked first. The families: HOST
(launching, synchronisation, data), MEM (capacity), BW (bandwidth), PREC (types and rates of products),
ATTN, COMM, GEN (generation), NUM (numerics), DEV (the device's own state), LOOP (what a live loop does
around and between its steps, which `pw.watch` alone sees), TIME (what the others leave).

This page is made from the rules' own words: `python -m peakward.diagnose.handbook > docs/findings.md`.
"""


def page() -> str:
    """Markdown."""
    return "\n".join((OPENING, *map(_section, RULES)))


def _section(rule: Rule) -> str:
    lines = [f"## {rule.code}: {rule.title}", ""]
    lines += [f"- **{part}** {rule.told[part]}" for part in PARTS]
    return "\n".join((*lines, ""))


if __name__ == "__main__":
    print(page(), end="")
