"""What `attention-parts` concludes from known parts."""

import pytest

from peakward.studies import attention_parts


@pytest.fixture
def said(setting, gathered):
    def make(**options):
        here = setting()
        return attention_parts.parts(gathered(attention_parts, here, **options), here).conclusions

    return make


def test_the_softmaxs_share_and_its_time_for_a_flop(said, figures):
    found = said()
    assert len(found) == 8
    share, ratio = figures(found[0]), figures(found[4])
    assert share["softmax's share, forward"] == pytest.approx(0.3)
    assert share["softmax's share, backward"] == pytest.approx(0.3)
    assert share["share of scale and mask, forward"] == pytest.approx(0.15)
    assert ratio["softmax over products, time"] == pytest.approx(0.6)
    assert ratio["softmax over products, FLOPs"] == pytest.approx(5 / 256)
    assert found[4].text == (
        "In attention of 12 heads of 64 over 4 × 1024 in fp32 the softmax has 1.95% of the FLOPs of "
        "the two products and takes 60.0% of their time, 30.7× as long for a FLOP."
    )


def test_in_bf16_casts_are_told_beside_the_softmax(said, figures):
    found = [each for each in said() if "in bf16" in each.text]
    assert "casting the scores to fp32 for it and the weights back takes " in found[0].text
    assert figures(found[0])["share of casts, forward"] == pytest.approx(0)
    assert "the softmax, without its casts, has" in found[-1].text
    assert not any("cast" in each.text for each in said() if "in fp32 the" in each.text)


def test_nothing_ran_nothing_said(said):
    assert said(overrule=lambda case: "crashed") == ()
