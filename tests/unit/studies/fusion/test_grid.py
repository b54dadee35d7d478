"""What `fusion` plans."""

from peakward.studies import fusion
from peakward.studies.setting import Setting


def test_without_a_compiler_its_pieces_are_left_out_with_the_reason(setting):
    here = setting("small", "cpu")
    bare = Setting(scope=here.scope, environment=here.environment, has_compiler=False)
    assert all(case.piece != "compiled" for case, _ in fusion.plan(bare))
    assert [each.piece for each in fusion.grid.absences(bare)] == [
        "peakward",
        "online, one kernel",
        "compiled",
    ]
