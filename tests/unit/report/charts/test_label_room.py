"""Labels that would lie on one another move apart."""

from peakward.report.charts.axes import Frame
from peakward.report.charts.canvas import LINE
from peakward.report.charts.label_room import MOST_LINES, LabelRoom

FRAME = Frame(left=0, top=0, right=400, bottom=300)


def test_a_label_stays_where_nothing_is():
    room = LabelRoom(FRAME)
    assert room.take(0, 50, 100) == 100
    assert room.take(60, 90, 100) == 100
    assert room.take(0, 50, 100 + LINE) == 100 + LINE


def test_a_label_moves_to_the_nearest_free_line_below_before_above():
    room = LabelRoom(FRAME)
    found = [room.take(0, 50, 100) for _ in range(4)]
    assert found == [100, 100 + LINE, 100 - LINE, 100 + 2 * LINE]


def test_a_label_moves_away_from_room_that_was_claimed():
    room = LabelRoom(FRAME)
    room.claim(0, 50, 100)
    assert room.take(0, 50, 100) == 100 + LINE


def test_a_label_stays_inside_the_frame():
    room = LabelRoom(FRAME)
    assert room.take(0, 50, 295) == 295
    assert room.take(0, 50, 295) == 295 - LINE


def test_where_all_is_taken_a_label_lies_on_another():
    room = LabelRoom(FRAME)
    found = [room.take(0, 50, 150) for _ in range(2 * MOST_LINES + 2)]
    assert len(set(found[:-1])) == 2 * MOST_LINES + 1
    assert found[-1] == 150
