"""The rules as a whole."""

import re

from peakward.diagnose.rulebook import FAMILIES, RULES


def test_codes_are_of_a_family_with_three_digits_each_once():
    codes = [each.code for each in RULES]
    assert all(re.fullmatch(rf"(?:{'|'.join(FAMILIES)})\d{{3}}", each) for each in codes)
    assert len(set(codes)) == len(codes)


def test_they_stand_by_family_and_number_and_what_explains_the_rest_comes_last():
    codes = [each.code for each in RULES]
    families = [code[:-3] for code in codes]
    assert list(dict.fromkeys(families)) == list(FAMILIES)
    assert codes[-1] == "TIME001"
    for family in FAMILIES:
        of_it = [code for code in codes if code[:-3] == family]
        assert of_it == sorted(of_it)
