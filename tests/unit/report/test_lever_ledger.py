"""The ledger's page."""

from peakward.records.lever import Errors, LeverEntry, LeverLedger, Unpredicted
from peakward.report import markdown
from peakward.report.lever_ledger import document

TIME = Errors(n=6, predicted=0.9, measured=0.8, median=0.11, p90=0.2)


def entry(device="A GPU", **fields):
    plain = {"n_kept": 4, "n_rejected": 2, "n_inconclusive": 1}
    numerics = {"n_numerics_held": 5, "n_numerics_violated": 1}
    return LeverEntry(lever="bf16", device=device, n_trials=7, **plain | numerics | fields)


def page(*entries, **fields):
    found = LeverLedger(
        **{"sources": ("a.db",), "n_trials": 7, "worst": (), "unpredicted": ()} | fields,
        entries=entries,
    )
    return markdown.render(document(found))


def test_a_lever_has_its_counts_and_errors():
    text = page(entry(time=TIME, n_within=5, n_decided=4, n_sign_right=3, memory=TIME))
    assert "of 6 with a predicted time, 5 (83.3%)" in text
    row = "| bf16 | 7 | 4 | 2 | 1 | 5 held, 1 violated | 0.900× | 0.800× | 11.0% | 20.0% |"
    assert f"{row} 5 of 6 | 3 of 4 |" in text
    assert "| bf16 | 6 | 0.900× | 0.800× | 11.0% | 20.0% |" in text


def test_devices_have_tables_of_their_own():
    text = page(entry("One"), entry("Two"))
    assert text.index("### One") < text.index("### Two")


def test_without_predictions_it_says_so_and_why():
    text = page(entry(), unpredicted=(Unpredicted(reason="steps on a CPU are not predicted", n=7),))
    assert "7 trials, none with a predicted time" in text
    assert "- 7 trials: steps on a CPU are not predicted." in text
    assert "Peak memory" not in text


def test_an_impossible_gain_is_said_first():
    text = page(entry(time=TIME), impossible=("0123456789abcdef",))
    assert text.index("faster than the remaining work") < text.index("### A GPU")
    assert "(0123456789ab)" in text
