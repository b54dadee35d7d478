"""Which ways of training are tried under which limits, and what is known of each."""

from peakward.studies import throughput
from peakward.studies.fits import GIB
from peakward.studies.scope import Scope
from peakward.studies.throughput.limits import limits, read, ways


def test_the_lowest_precision_gets_the_additions_and_in_full_every_lower_one(setting):
    def helped(scope):
        return {way.precision for way in ways(setting(scope)) if way.added}

    assert helped("corners") == {"bf16"}
    assert helped("full") == {"bf16-mixed", "bf16"}


def test_the_users_limits_replace_the_cards(setting):
    assert limits(setting(Scope("full", limits_bytes=(48 * GIB,)))) == (48 * GIB,)


def test_a_cpus_limits_are_scaled_down(setting):
    assert max(limits(setting("small", "cpu"))) < GIB


def test_every_limit_is_settled_and_agrees_with_the_truth(setting, gathered, true_peak):
    here = setting()

    for row in read(gathered(throughput, here), here):
        for limit, fit in zip(limits(here), row.fits, strict=True):
            assert fit is not None
            assert fit.verdict == ("fits" if true_peak(row.way.case) <= limit else "oom")


def test_what_is_settled_is_not_run(setting, gathered):
    here = setting()
    under_a_limit = [m for m in gathered(throughput, here) if m.case.memory_limit_bytes]
    assert under_a_limit, "something is not settled by the runs without a limit"
    assert len(under_a_limit) < len(ways(here)) * len(limits(here)) / 2
    assert {each.status for each in under_a_limit} == {"oom"}, "what fits is told by its own peak"
