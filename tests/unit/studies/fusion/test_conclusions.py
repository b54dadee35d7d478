"""What `fusion` concludes from known figures."""

from peakward.studies import fusion


def test_what_it_says(made):
    said = [each.text for each in made().conclusions]
    assert said[0] == (
        "Passes over the inputs of softmax of 2048 × 2048 in fp32: three passes 8, online 12, torch 2, "
        "compiled 2."
    )
    assert (
        "softmax of 256 × 1024 in fp32: three passes takes 4.00× the time of torch "
        "(3.92× to 4.08× by their intervals)."
    ) in said
    assert (
        "Nearest to the copy bandwidth at rms-norm of 2048 × 2048 in fp32 comes torch, with 0.800% of it."
    ) in said
    assert (
        "softmax of 2048 × 2048 in fp32: online takes 0.750× the time of three passes "
        "(0.735× to 0.765× by their intervals)."
    ) in said
    assert said[-1] == (
        "In fp32 no piece differs from fp64 by more than 4.00e-7 of the largest value (three passes, "
        "softmax of 256 × 1024 in fp32)."
    )


def test_of_nothing_nothing_is_said(setting, gathered):
    here = setting("small", "cpu")
    assert fusion.parts(gathered(fusion, here, overrule=lambda case: "oom"), here).conclusions == ()
