"""Sentences and their evidence."""

from types import SimpleNamespace

from peakward.studies.parts import evidence, say


def test_a_sentence_states_its_evidence_in_its_units_and_names_as_they_are():
    first, second = SimpleNamespace(id="a"), SimpleNamespace(id="b")
    said = say(
        "{who} is {gain} as fast and holds {share}.",
        who="bf16",
        gain=evidence("speed-up", 2.5, "ratio", first, second, first, None),
        share=evidence("memory", 0.5, "share", second),
    )
    assert said.text == "bf16 is 2.50× as fast and holds 50.0%."
    assert [(each.value, each.from_ids) for each in said.evidence] == [
        (2.5, ("a", "b")),
        (0.5, ("b",)),
    ]
