import shlex

from hypothesis import given
from hypothesis import strategies as st

from peakward.report.shell import shell_lines

WORD = st.text("abc0,._/", min_size=1, max_size=12)


def test_a_short_command_is_left_alone():
    assert shell_lines("peakward run", 80) == ("peakward run",)


def test_a_command_with_quotes_is_left_alone():
    command = "peakward run --model 'a --b' " + "--lever x " * 20
    assert shell_lines(command, 40) == (command,)


@given(st.lists(st.tuples(WORD, WORD), max_size=12), st.integers(40, 100))
def test_the_lines_are_the_same_command(options, width):
    command = "peakward run" + "".join(f" --{name} {value}" for name, value in options)
    lines = shell_lines(command, width)
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)
    assert all(len(line) <= width for line in lines)
