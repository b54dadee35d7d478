"""What `layout` concludes from known figures."""


def test_what_it_says(made):
    said = [each.text for each in made().conclusions]
    assert said[0] == (
        "matmul-operands of 768 in fp32: strided columns takes 2.00× the time of NN "
        "(1.96× to 2.04× within one process of each)."
    )
    assert (
        "addition of 2048 in fp32: one transposed (copied) takes 0.250× the time of one transposed "
        "(0.245× to 0.255× within one process of each)."
    ) in said
    assert (
        "Of 14 operations on a matrix 11 are views of it. Copies: 2 (reshape of transposed, contiguous of "
        "transposed); refused: 1 (view of transposed)."
    ) in said
    assert said[-2] == (
        "projection of 512 × 768 in fp32: separate takes 2.00× the time of packed "
        "(1.96× to 2.04× within one process of each)."
    )


def test_layouts_that_cost_nothing_are_not_called_slower(made):
    said = [each.text for each in made().conclusions]
    attention = [each for each in said if "attention of permuted heads takes" in each]
    assert attention and all("not told apart" in each for each in attention)


def test_of_nothing_nothing_is_said(made):
    assert made(overrule=lambda case: "crashed").conclusions == ()
