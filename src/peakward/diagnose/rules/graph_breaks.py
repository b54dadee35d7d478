"""The compiler breaks its graphs, or compiles again and again

Sees: torch's own counters of graph breaks and recompilations while a compiled case warmed up.
Costs: a break ends fusion and goes back to Python; a recompilation stalls the step for seconds.
Example: `loss.item()` inside the compiled function; batches of ever new lengths.
Lever: none; the counters' reasons name the line. Padding to fixed shapes ends recompilations.
Wrong when: the break is outside the hot path. Its cost is not known, so the finding ranks last.
"""

from peakward.diagnose.diagnosis_input import DiagnosisInput, Symptom, Verdict, abstain, number

CODE = "HOST007"
N_REASONS = 2


def judge(given: DiagnosisInput) -> Verdict:
    """Judges by the measurement's report of compilation."""
    if given.configuration is not None and given.configuration.compile == "none":
        return None
    if given.measurement is None:
        return abstain(CODE, "a measurement")
    report = given.measurement.compile
    if report is None:
        return abstain(CODE, "the compiler's report")
    if not report.n_graph_breaks and not report.n_recompiles:
        return None
    why = "; ".join(report.reasons[:N_REASONS])
    return Symptom(
        cause=f"torch.compile could not keep the step in one graph: {why or 'it gave no reason'}.",
        evidence=(
            number(
                "graph breaks", report.n_graph_breaks, "count", "measurement compile.n_graph_breaks"
            ),
            number(
                "recompilations", report.n_recompiles, "count", "measurement compile.n_recompiles"
            ),
            number("compile time", report.compile_s, "s", "measurement compile.compile_s"),
        ),
        advice="take what the reasons name out of the compiled function; pad changing shapes",
    )
