"""Cases and reasons in words that are short enough for a table's first column."""

import msgspec
import pytest

from peakward.models.presets import model as catalogued
from peakward.prediction.parameters import n_parameters
from peakward.records.case import Configuration, MicroCase, OperatorCase, Source, StepCase, TextData
from peakward.report.cases import brief, label, loader, model, settings, workload


def test_a_model_case_says_its_work_and_settings(studies):
    assert label(studies.BEST) == (
        "2.7B 4 × 512 train_step, bf16, sdpa attention, compile, adamw-fused"
    )


def test_a_memory_limit_is_said(studies):
    limited = msgspec.structs.replace(studies.BASELINE, memory_limit_bytes=24 * 2**30)
    assert label(limited).endswith("at most 24.0 GiB")


def test_operators_and_steps():
    operator = OperatorCase(
        batch_size=8, n_heads=1, seq_len=1024, head_dim=64, compile="default", device="cuda"
    )
    assert label(operator) == "attention 8 × 1 × 1024 × 64 forward, fp32, naive, compile default"
    assert label(StepCase(name="my step", fingerprint="0", device="cpu")) == "my step"


def test_a_live_step_says_all_that_is_set_in_it():
    step = StepCase(name="my step", fingerprint="0", device="cpu")
    assert settings(step) == ("as written",)
    found = Configuration(
        attention="as-written", precision="bf16-mixed", compile="default", optimizer="adamw-fused"
    )
    best = msgspec.structs.replace(step, configuration=found)
    assert settings(best) == ("as written", "bf16-mixed", "compile", "adamw-fused")


def test_of_a_mixture_both_numbers_of_parameters_are_said():
    dense, mixture = (catalogued(name) for name in ("small", "mixtral-8x7b"))
    assert model(mixture, n_parameters(mixture)).startswith(
        "mixtral-8x7b, 46,702,792,704 parameters, 12,879,925,248 active (32 layers"
    )
    assert "8 experts of which 2 active" in model(mixture, None)
    assert "active" not in model(dense, n_parameters(dense))


def test_a_workload_says_micro_batches_and_lengths(studies):
    work = msgspec.structs.replace(
        studies.BASELINE.workload,
        accumulate=2,
        varying_seq_lens=(512, 128),
        padding="to-seq-len",
    )
    assert workload(work) == "4 × 512 train_step, 2 micro-batches, lengths 128 to 512 padded"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("compile", "max-autotune", "compile max-autotune"),
        ("cuda_graphs", True, "cuda-graphs"),
        ("checkpointing", "sqrt", "checkpointing sqrt"),
        ("loss", "chunked", "chunked loss"),
        ("norm", "fused", "fused norm"),
        ("rope", "fused", "fused RoPE"),
        ("swiglu", "fused", "fused SwiGLU"),
        ("weights", "int4:128", "int4:128 weights"),
    ],
)
def test_each_setting_is_named(studies, field, value, words):
    assert words in settings(studies.with_settings(studies.BASELINE, **{field: value}))


def test_the_optimizer_is_named_only_where_it_runs(studies):
    forward = msgspec.structs.replace(
        studies.BASELINE,
        workload=msgspec.structs.replace(studies.BASELINE.workload, pass_="forward"),
    )
    assert settings(forward) == ("fp32", "naive attention", "eager")
    assert "adamw-foreach" in settings(studies.BASELINE)


def test_a_piece_of_code_is_named_by_its_subject_sizes_and_way():
    case = MicroCase(subject="softmax", piece="three passes", sizes=(256, 1024), device="cpu")
    assert label(case) == "softmax 256 × 1024, three passes, fp32"


def test_a_loader_says_its_text_and_settings(studies):
    data = TextData(
        text=Source("/home/me/books", "0"),
        tokenizer=Source("gpt2"),
        tokenise="on-the-fly",
        n_workers=1,
    )
    work = msgspec.structs.replace(studies.BASELINE.workload, data=data)
    assert workload(work) == "4 × 512 train_step, books by gpt2 on the fly, 1 worker"
    more = msgspec.structs.replace(data, n_workers=2, pin_memory=True, non_blocking=True, n_ranks=4)
    assert loader(more) == "2 workers, pinned, non-blocking, rank 0 of 4, sampler per-rank"


HEAD = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total "
    "capacity of 139.80 GiB of which 115.96 GiB is free. Including non-PyTorch memory, this process "
    "has 23.83 GiB memory in use. "
)
TAIL = "Of the allocated memory 22.94 GiB is allocated by PyTorch, and 1…"


def test_torchs_paragraph_becomes_a_line():
    said = "CUDA out of memory: tried to allocate 200.00 MiB with 22.94 GiB allocated of "
    assert brief(f"{HEAD}23.27 GiB allowed; {TAIL}") == f"{said}23.27 GiB allowed"
    assert brief(HEAD + TAIL) == f"{said}139.80 GiB"


def test_a_paragraph_in_other_words_keeps_its_first_sentence():
    assert (
        brief("torch.OutOfMemoryError: CUDA out of memory. Something new.") == "CUDA out of memory"
    )


def test_other_reasons_are_left_alone():
    assert brief("the process needed more. It had 12.0 GiB") == (
        "the process needed more. It had 12.0 GiB"
    )
    assert brief(None) is None
