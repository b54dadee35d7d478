"""What a rule may see."""

from .rules.made import H100, case, given, measurement, of_host, profile


def test_a_profile_of_the_host_is_none_of_a_gpu():
    assert given(of_host()).gpu is None
    assert given(profile()).gpu is not None
    assert given().gpu is None


def test_steps_are_those_given_else_those_marked():
    assert given(profile(), n_steps=7).steps == 7
    assert given(profile()).steps == 1
    assert given().steps is None


def test_memory_is_the_cases_limit_else_the_devices():
    limited = case().__class__(
        model=case().model, workload=case().workload, device="cuda", memory_limit_bytes=5
    )
    assert given(case=limited).limit_bytes == 5
    assert given(case=case()).limit_bytes == H100.limit_bytes(None)
    of = measurement(case())
    unknown = given(case=case(), measurement=of, site=None)
    assert unknown.limit_bytes == of.environment.device_memory_bytes
    assert given(site=None).limit_bytes is None
