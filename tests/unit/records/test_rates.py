"""Rates put together from their subjects."""

from peakward.records.rates import SUBJECTS, Absence, DiskRate, LevelRate, Rates

DISK = DiskRate(source="disk", size_bytes=8, block_bytes=4, bytes_per_s=1e9)
LEVEL = LevelRate(level="L2", working_set_bytes=8, bytes_per_s=1e9)
ABSENT = (Absence(subject="link", reason="none"), Absence(subject="disk", reason="full"))


def test_a_subject_is_a_field() -> None:
    assert set(SUBJECTS) == set(Rates.__struct_fields__) - {"absent", "doubts"}


def test_a_sum_has_the_figures_of_both_in_their_order() -> None:
    one = Rates(disk=(DISK,), absent=ABSENT[:1], doubts=("a",))
    other = Rates(disk=(DISK,), levels=(LEVEL,), absent=ABSENT[1:], doubts=("b",))
    assert one + other == Rates(
        disk=(DISK, DISK), levels=(LEVEL,), absent=ABSENT, doubts=("a", "b")
    )


def test_rates_tell_of_what_they_have_and_of_what_they_could_not_have() -> None:
    rates = Rates(levels=(LEVEL,), absent=ABSENT[:1])
    assert [each for each in SUBJECTS if rates.tell_of(each)] == ["levels", "link"]
