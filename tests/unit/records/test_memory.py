"""A prediction of memory as a record."""

from peakward.models.presets import model
from peakward.prediction.memory.peak import peak_memory
from peakward.records import codec
from peakward.records.case import ModelCase, Workload
from peakward.records.memory import MemoryPrediction, MemorySplit


def test_the_categories_sum_to_the_peak():
    assert MemorySplit(parameters_bytes=5, logits_bytes=3, rounding_bytes=1).total_bytes == 9


def test_it_survives_the_codec():
    made = ModelCase(
        model=model("tiny"), workload=Workload(batch_size=1, seq_len=16), device="cuda"
    )
    prediction = peak_memory(made)
    assert codec.from_json(codec.to_json(prediction), MemoryPrediction) == prediction
