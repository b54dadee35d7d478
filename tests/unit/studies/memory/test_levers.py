"""What levers would free, by the closed form."""

import pytest

from peakward.prediction.memory.peak import peak_memory
from peakward.studies import memory
from peakward.studies.cases import with_levers
from peakward.studies.memory.grid import longest, read
from peakward.studies.memory.levers import LEVERS, table


@pytest.fixture
def found(setting, gathered):
    here = setting()
    return longest(read(gathered(memory, here), here))


def test_each_lever_is_predicted_beside_none(found, rows):
    first = [row for row in rows(table(found)) if row["model"] == "small"][: len(LEVERS) + 1]
    base = peak_memory(found[0].case).peak_bytes
    assert (first[0]["lever"], first[0]["predicted peak"]) == ("none", base)
    for row, (name, settings) in zip(first[1:], LEVERS.items(), strict=True):
        peak = peak_memory(with_levers(found[0].case, **settings)).peak_bytes
        assert (row["lever"], row["predicted peak"]) == (name, peak)
        assert row["over none's"] == peak / base


def test_a_lever_that_a_case_has_is_left_out(found, rows):
    mixed = [row["lever"] for row in rows(table(found)) if row["precision"] == "bf16-mixed"]
    assert "bf16-mixed" not in mixed
    assert "predicted" in table(found).title
