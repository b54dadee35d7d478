"""Copies over the host link."""

import msgspec
import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import MS, PRODUCTS, abstains, given, judge, kernel, profile, transfer

UP = "Memcpy HtoD (Pageable -> Device)"


def copying(ms, *, exposed_ms=None, name=UP, n=1):
    exposed_ms = ms if exposed_ms is None else exposed_ms
    return profile(
        PRODUCTS,
        kernel(name, ms, "memory", n=n),
        memory_ns=round(ms * MS),
        exposed_memory_ns=round(exposed_ms * MS),
        transfers=(transfer("host_to_device", n, 10**6, ms),),
    )


@pytest.mark.parametrize("ms", [10, 100])
def test_what_nothing_ran_beside(ms):
    found = judge("HOST005", given(copying(ms, exposed_ms=ms / 2)))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3 / 2)
    assert found.evidence[-1].value == 1


def test_hidden_small_or_seldom_copies_are_fine():
    assert judge("HOST005", given(copying(50, exposed_ms=0))) is None
    assert judge("HOST005", given(copying(1))) is None
    assert judge("HOST005", given(copying(50), n_steps=10)) is None


def test_without_marked_steps_it_is_not_known_that_each_of_them_copies():
    """The weights may have been moved once, before the first."""
    unmarked = msgspec.structs.replace(copying(50), n_steps=None)
    assert abstains("HOST005", given(unmarked))
    assert judge("HOST005", given(profile(n_steps=None))) is None


def test_copies_without_a_name_are_not_judged():
    assert abstains("HOST005", given(copying(50, name="copy")))
    assert abstains("HOST005", given())
