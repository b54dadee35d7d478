"""The gate as a pipeline uses it: JSON of `bench`, `compare`, a comment."""

import json
import shlex

import pytest

from peakward.cli.main import main

pytestmark = pytest.mark.usefixtures("handed_on")


def test_json_of_bench_gates_a_change(in_tmp, micro, capsysbinary):
    assert main(["bench", *micro, "--pass", "forward", "--json", "--db", "before.db"]) == 0
    before = capsysbinary.readouterr().out
    (in_tmp / "before.json").write_bytes(before)
    slower = json.loads(before)
    for each in slower["record"]["measurements"]:
        # By more than any neighbour on the machine makes of a step.
        for bound in ("estimate", "low", "high"):
            each["summary"]["median_s"][bound] *= 1000
        for run in each["runs"]:
            run["steps_s"] = [1000 * step_s for step_s in run["steps_s"]]
    (in_tmp / "after.json").write_text(json.dumps(slower))
    words = shlex.split("compare before.json before.json --threshold 90%")
    assert main(words) == 0
    assert main(shlex.split("compare before.json after.json --markdown comment.md")) == 1
    verdict, table = (in_tmp / "comment.md").read_text().split("### Changed")
    assert "**1 regression. 1 case compared: 1 slower.**" in verdict
    assert table.index("| slower") < table.index("<details>")
