"""`peakward bench --executor local` for real: each case is a process that submitit starts."""

import pytest

from peakward.cli.main import main
from peakward.records import codec
from peakward.records.study import Study

pytestmark = pytest.mark.full


def test_a_sweep_of_jobs(micro, in_tmp, capsysbinary):
    quick = ("--pass", "forward", "--batch-size", "1,2", "--warmup", "0", "--steps", "2")
    command = ["bench", *micro, *quick]
    assert main([*command, "--executor", "local", "--json"]) == 0
    said = capsysbinary.readouterr()
    study = codec.from_json(said.out, Study)
    assert [each.status for each in study.measurements] == ["ok", "ok"]
    lines = said.err.decode().splitlines()
    assert "asks what its machine is" in lines[0]
    assert sum(": " in line and "/2  tiny" in line for line in lines) == 2
    # The same environment: what jobs measured here is not measured again.
    assert main([*command, "--json"]) == 0
    again = codec.from_json(capsysbinary.readouterr().out, Study)
    assert [each.id for each in again.measurements] == [each.id for each in study.measurements]
    assert not (in_tmp / "peakward.db.jobs").exists()
