"""The rules as a whole."""

import pkgutil
import re

from peakward.diagnose import rules
from peakward.diagnose.rulebook import RULES

FAMILIES = "HOST|MEM|BW|PREC|ATTN|COMM|GEN|NUM|DEV|LOOP|TIME"


def test_every_file_is_a_rule():
    assert len(RULES) == len(list(pkgutil.iter_modules(rules.__path__)))


def test_codes_are_of_a_family_with_three_digits_each_once():
    codes = [each.code for each in RULES]
    assert all(re.fullmatch(rf"(?:{FAMILIES})\d{{3}}", each) for each in codes)
    assert len(set(codes)) == len(codes)
