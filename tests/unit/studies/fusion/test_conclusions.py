"""What `fusion` concludes from known figures."""

from peakward.studies import fusion


def test_what_it_says(made):
    said = [each.text for each in made().conclusions]
    assert said[0] == (
        "Passes over the inputs of softmax of 2048 × 2048 in fp32, each operand of a call once: three passes "
        "8, online by torch calls 12, torch 2, compiled 2; inferred from time and copy bandwidth, at most: "
        "three passes 1,000, online by torch calls 750, torch 250, compiled 250."
    )
    assert (
        "softmax of 256 × 1024 in fp32: three passes takes 4.00× the time of torch "
        "(3.92× to 4.08× within one process of each)."
    ) in said
    assert (
        "Nearest to the copy bandwidth at rms-norm of 2048 × 2048 in fp32 comes torch, with 0.800% of it."
    ) in said
    assert (
        "softmax of 2048 × 2048 in fp32: online by torch calls takes 0.750× the time of three passes "
        "(0.735× to 0.765× within one process of each)."
    ) in said
    assert said[-1] == (
        "In fp32 no piece differs from fp64 by more than 4.00e-7 of the largest value (three passes, "
        "softmax of 256 × 1024 in fp32)."
    )


def test_of_nothing_nothing_is_said(setting, gathered):
    here = setting("small", "cpu")
    assert fusion.parts(gathered(fusion, here, overrule=lambda case: "oom"), here).conclusions == ()


def test_the_online_softmax_is_told_as_a_loop_and_in_one_kernel(made):
    said = [each.text for each in made("cuda", "corners").conclusions]
    where = "softmax of 4096 × 65536 in fp32"
    assert any(each.startswith(f"{where}: online by torch calls takes ") for each in said)
    assert any(each.startswith(f"{where}: online, one kernel takes ") for each in said)


def test_nearest_to_the_bandwidth_names_who_was_not_timed(made):
    found = made(
        "cuda", "corners", overrule=lambda case: "timeout" if case.piece == "peakward" else None
    )
    nearest = [each.text for each in found.conclusions if each.text.startswith("Nearest")]
    assert nearest
    assert all(" comes of those timed " in each for each in nearest)
    assert all(each.endswith("; not timed: peakward (timed out).") for each in nearest)
