from peakward.report import provenance


def test_what_could_not_be_read_is_not_shown(studies, run_study, bench_study):
    gpu = {fact.name: fact.value for fact in provenance.environment_facts(run_study)}
    cpu = {fact.name: fact.value for fact in provenance.environment_facts(bench_study)}
    assert gpu["device UUID"] == studies.H200.device_uuid
    assert gpu["took"] == "6 min 52 s"
    assert "driver" in gpu
    assert "driver" not in cpu
    assert "triton" not in cpu


def test_the_versions_in_one_line(studies):
    assert provenance.software(studies.LAPTOP) == "torch 2.13.0+cpu, Python 3.11.9"
    assert provenance.device(studies.H200) == "NVIDIA H200, 140 GiB"


def test_reference_matter_is_folded(run_study):
    assert provenance.conventions().folded
    assert provenance.environment(run_study).folded
    assert not provenance.reproduction(run_study).folded
