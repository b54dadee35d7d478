"""What `kv-cache` and `positions` plan and conclude from known figures."""

import msgspec
import pytest
import torch

from peakward.lab.levers.model_step import ModelStep
from peakward.lab.quality import caches
from peakward.prediction.inference.cost import largest_batch_size
from peakward.records.case import ModelCase, QualityCase
from peakward.records.inference import ServingWorkload
from peakward.records.measurement import Losses, Quality
from peakward.stats.summary import paired_difference
from peakward.studies import kv_cache, losses, positions
from peakward.studies.engine import view
from peakward.studies.readings import Readings


def given(readings, quality):
    """The readings with what each case of quality is said to have lost."""
    return Readings(
        msgspec.structs.replace(each, quality=quality(each.case))
        if isinstance(each.case, QualityCase)
        else each
        for each in readings
    )


def test_each_cache_is_one_that_the_lab_reads_through():
    assert tuple(caches.WAYS) == kv_cache.CACHES


def test_heads_are_shared_where_there_are_enough(setting):
    shape = setting().grid.models[0]
    counts = {kind: kv_cache.heads(shape, kind).n_kv_heads for kind in ("MHA", "GQA", "MQA")}
    assert counts == {"MHA": shape.n_heads, "GQA": shape.n_heads // 4, "MQA": 1}
    for n in (1, 2, 25):
        odd = msgspec.structs.replace(shape, n_heads=n, n_kv_heads=n)
        assert n % kv_cache.heads(odd, "GQA").n_kv_heads == 0


def test_what_fits_is_what_is_planned(setting):
    """`plan --output-len` says the same of the same case."""
    here = setting()
    seen = view(kv_cache.points(here), Readings(), here)
    plain = [row for row in kv_cache.steps(seen) if row.name in ("MHA", "GQA", "MQA")]
    assert plain
    for row in plain:
        work = ServingWorkload(batch_size=1, prompt_len=row.case.workload.seq_len - 1, output_len=2)
        memory = here.environment.device_memory_bytes
        assert kv_cache.fitting(seen, row) == largest_batch_size(row.case.model, work, memory)


def test_a_windowed_step_holds_what_it_is_timed_with(setting):
    """Its cache is that of MHA: `ModelStep` holds all positions, and a step reads a part."""
    here = setting("small", "cpu")
    rows = {row.name: row for row in kv_cache.steps(view(kv_cache.points(here), Readings(), here))}
    case = rows["MHA, window"].case
    held = ModelStep(case, torch.float32).held()["cache"]
    expected = sum(each.nbytes for each in held) / case.workload.batch_size
    assert kv_cache.sequence_bytes(rows["MHA, window"]) == expected
    assert kv_cache.share_of_mha(rows["MHA, window"]) == 1.0


def test_a_cpu_reads_no_cache_by_a_kernel(setting):
    names = {
        point.name
        for point in kv_cache.points(setting("small", "cpu"))
        if isinstance(point.case, ModelCase)
    }
    assert names == {"MHA", "GQA", "MQA", "MHA, window"}
    assert set(kv_cache.NARROW) < {point.name for point in kv_cache.points(setting())}


def test_a_loss_is_told_beside_what_is_kept(setting, gathered):
    here = setting("small", "cpu")
    more = {"window": 0.5, "paged": 0.0}

    def quality(case):
        lost = more.get(case.way, 0.0)
        each = (2.0 + lost, 2.5 + 1.1 * lost, 3.0 + 0.9 * lost)
        if case.way == "int8":
            each = (1.9, 2.6, 2.7)
        kept = 250 if case.way == "window" else 1000
        return Quality(losses=(Losses(where="here", losses=each),), kept_bytes=kept)

    found = kv_cache.STUDY.parts(given(gathered(kv_cache.STUDY, here), quality), here)
    said = [each.text for each in found.conclusions]
    (window,) = [each for each in said if each.startswith("window:")]
    assert "a loss of 3 nats a token, 0.500 more than contiguous" in window
    assert "not told apart" not in window
    assert "25.0% of the bytes" in window
    (paged,) = [each for each in said if each.startswith("paged:")]
    assert "not told apart" in paged
    (int8,) = [each for each in said if each.startswith("int8:")]
    assert "0.100 less than contiguous (−" in int8
    assert "not told apart" in int8
    assert any("a sequence keeps: MHA" in each for each in said)
    read = found.tables[-1]
    assert read.title == "A text read token by token"
    assert len(read.rows) == len(kv_cache.CACHES)
    # Beside decode steps of another model by kernels it would contradict them.
    assert not any("time" in column.name for column in read.columns)


def test_losses_beyond_the_length_are_paired(setting, gathered):
    here = setting("small", "cpu")
    worse = {"rope": 1.0, "alibi": 0.0, "learned": 2.0, positions.SCALED: 0.5}

    def quality(case):
        steps = enumerate(("0 to 64", "64 to 128"))
        return Quality(
            losses=tuple(
                Losses(where=name, losses=(2.0 + at * worse[case.way], 4.0 + at * worse[case.way]))
                for at, name in steps
            )
        )

    found = positions.STUDY.parts(given(gathered(positions.STUDY, here), quality), here)
    said = [each.text for each in found.conclusions]
    (rope,) = [each for each in said if each.startswith("rope: ")]
    assert rope.startswith(
        "rope: 3 nats a byte within the trained length, 4 at positions 64 to 128: 1 more"
    )
    assert any("the least first: alibi" in each for each in said)
    assert sum("the speed of a step with sinusoidal" in each for each in said) == 3


def test_a_ranking_says_which_are_not_told_apart_from_the_first(setting, gathered):
    here = setting("small", "cpu")
    of = {"alibi": (2.0, 4.0), "rope": (2.3, 3.8), "learned": (3.0, 5.1)}

    def quality(case):
        return Quality(losses=(Losses(where="0 to 64", losses=of.get(case.way, (6.0, 8.1))),))

    found = positions.STUDY.parts(given(gathered(positions.STUDY, here), quality), here)
    (ranked,) = [each.text for each in found.conclusions if "the least first" in each.text]
    assert ranked.endswith("; on this text not told apart from alibi: rope.")


def test_losses_of_sinusoids_beside_tokens_that_were_not_scaled_are_not_told(setting, gathered):
    """A record of then has them by another way, of which today's study knows nothing."""
    here = setting("small", "cpu")
    old = Readings(
        msgspec.structs.replace(each, case=msgspec.structs.replace(each.case, way="sinusoidal"))
        if isinstance(each.case, QualityCase) and each.case.way == positions.SCALED
        else each
        for each in given(
            gathered(positions.STUDY, here),
            lambda _case: Quality(losses=(Losses(where="0 to 64", losses=(2.0, 4.0)),)),
        )
    )
    said = [each.text for each in positions.STUDY.parts(old, here).conclusions]
    assert any(each.startswith("rope: ") for each in said)
    assert not any(each.startswith("sinusoidal: ") for each in said)


def test_what_failed_is_not_told(setting, gathered):
    here = setting("small", "cpu")
    for study in (kv_cache.STUDY, positions.STUDY):
        failed = study.parts(gathered(study, here, overrule=lambda _case: "oom"), here)
        assert failed.conclusions == ()


def test_a_difference_has_the_interval_of_pairs():
    found = paired_difference((1.0, 2.0, 4.0), (0.9, 1.8, 3.7))
    # t(0.975, 2) = 4.303; the differences are 0.1, 0.2 and 0.3.
    assert found.estimate == pytest.approx(0.2)
    assert found.high - found.estimate == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert losses.told_apart(found) == "not told apart"
    assert paired_difference((1.0,), (1.0,)) is None
