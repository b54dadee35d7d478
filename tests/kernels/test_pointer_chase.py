"""The chain of loads as a GPU would run it."""

import pytest

from ahead_of_time import compiled, entries

pytest.importorskip("triton")


@pytest.mark.full
@pytest.mark.parametrize("capability", [80, 90])
def test_each_load_of_the_loop_waits_for_the_last(capability, tmp_path):
    compiled("pointer_chase", capability, ptx=tmp_path)
    text = entries(tmp_path, "_chase")[-1]
    lines = [line.split("//")[0].split() for line in text.splitlines()]
    begin = next(i for i, words in enumerate(lines) if words[:1] == ["$L__BB0_2:"])
    loop = lines[begin : begin + next(i for i, w in enumerate(lines[begin:]) if "bra" in w)]
    (address,) = [words for words in loop if words[:1] == ["add.s64"]]
    (load,) = [words for words in loop if words[:1] == ["ld.global.b64"]]
    # The address is made of what the last load gave; the load is from that address.
    assert address[3].rstrip(";") == load[2]
    assert address[1].rstrip(",") == load[5]
