from peakward.report.reasons import brief

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
