"""The device table: sourced, dense, and matched by exact name and memory."""

import tomllib
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakward.hardware.devices import (
    device,
    devices,
    devices_named,
    least_memory_bytes,
    match,
    match_all,
    meant,
    meant_by_all,
)
from peakward.records.device import Capability, Device, SourcedFigure
from peakward.records.errors import PeakwardError

MIB = 2**20


def figures(row: Device) -> list[SourcedFigure]:
    link, host = row.link, row.host_link
    optional = (
        *(
            row.driver_memory_mib,
            row.l2_bytes,
            row.n_sms,
            row.power_w,
            None if host is None else host.bytes_per_s,
            None if row.network is None else row.network.bytes_per_s,
        ),
        *(() if link is None else (link.bytes_per_s, link.pair_bytes_per_s, link.n_devices)),
    )
    present = [figure for figure in optional if figure is not None]
    return [row.memory_gb, row.bytes_per_s, *present, *row.peak_flops_per_s.values()]


def stated(row: Device) -> list[SourcedFigure | Capability]:
    capability = row.compute_capability
    return [*figures(row), *(() if capability is None else (capability,))]


def test_keys_and_driver_names_are_unique() -> None:
    keys = [row.key for row in devices()]
    names = [name for row in devices() for name in row.driver_names]
    assert len(set(keys)) == len(keys)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", devices(), ids=lambda row: row.key)
def test_every_figure_is_positive_and_names_a_document(row: Device) -> None:
    assert row.driver_names
    for figure in figures(row):
        assert figure.value > 0
        assert len(figure.source) > 10, "a short name was not spelled out"


def test_every_listed_source_is_used() -> None:
    text = files("peakward.hardware").joinpath("devices.toml").read_text(encoding="utf-8")
    listed = set(tomllib.loads(text)["sources"].values())
    assert listed == {each.source for row in devices() for each in stated(row)}


@pytest.mark.parametrize("row", devices(), ids=lambda row: row.key)
def test_rates_keep_the_ratios_of_dense_hardware(row: Device) -> None:
    """A sparse figure read as dense doubles one rate and breaks a ratio that silicon keeps."""
    peak = {kind: figure.value for kind, figure in row.peak_flops_per_s.items()}
    assert set(peak) <= {"fp32", "tf32", "fp16", "bf16", "fp8", "int8"}
    if "bf16" in peak:
        assert peak["bf16"] == pytest.approx(peak["fp16"], rel=0.01)
        if "tf32" in peak:
            assert peak["bf16"] / peak["tf32"] == pytest.approx(2, rel=0.02)
        if "fp8" in peak:
            assert peak["fp8"] / peak["bf16"] == pytest.approx(2, rel=0.02)
    if "int8" in peak:
        # GeForce cards halve 16-bit products that accumulate in fp32, not int8's.
        expected = 4 if "GeForce" in row.name else 2
        assert peak["int8"] / peak["fp16"] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("row", devices(), ids=lambda row: row.key)
def test_a_compute_capability_has_its_types(row: Device) -> None:
    """bf16 came with 8.0 and fp8 with 8.9; AMD's devices have them and no CUDA to number."""
    if row.compute_capability is None:
        assert row.name.startswith("AMD ")
        return
    assert ("bf16" in row.peak_flops_per_s) == (row.compute_capability.value >= (8, 0))
    assert ("fp8" in row.peak_flops_per_s) == (row.compute_capability.value >= (8, 9))


@pytest.mark.parametrize(
    ("key", "capability", "power_w"),
    [
        ("v100-sxm2-32", (7, 0), 300),
        ("a100-pcie-40", (8, 0), 250),
        ("a100-pcie-80", (8, 0), 300),
        ("rtx-4090-24", (8, 9), 450),
        ("h100-pcie-80", (9, 0), 350),
        ("h100-sxm-80", (9, 0), 700),
        ("b200-180", (10, 0), 1000),
        ("rtx-5090-32", (12, 0), 575),
    ],
)
def test_capability_and_power_are_the_boards_own(
    key: str, capability: tuple[int, int], power_w: float
) -> None:
    row = device(key)
    assert row.compute_capability is not None
    assert row.compute_capability.value == capability
    assert row.power_w is not None
    assert row.power_w.value == power_w


@pytest.mark.parametrize("row", devices(), ids=lambda row: row.key)
def test_a_host_link_has_the_rate_of_its_generation_and_lanes(row: Device) -> None:
    assert row.host_link is not None
    _, version, lanes = row.host_link.name.split()
    a_lane = 1e9 * 2 ** (float(version) - 3)
    assert row.host_link.bytes_per_s.value == a_lane * int(lanes.removeprefix("x"))


@pytest.mark.parametrize(
    ("key", "to_all", "to_one", "n_devices"),
    [
        # 6, 12, 18 and 18 links of 25, 25, 25 and 50 GB/s in one direction.
        ("v100-sxm2-16", 6 * 25e9, None, 8),
        ("a100-sxm-40", 12 * 25e9, 12 * 25e9, 8),
        ("h200-141", 18 * 25e9, 18 * 25e9, 8),
        ("b200-180", 18 * 50e9, 18 * 50e9, 8),
        # Four links of 14.0625 GB/s to the one other card.
        ("rtx-3090-24", 4 * 14.0625e9, 4 * 14.0625e9, 2),
        # One of seven links to each of seven others.
        ("mi300x-192", 7 * 64e9, 64e9, 8),
    ],
)
def test_a_link_is_given_in_one_direction(
    key: str, to_all: float, to_one: float | None, n_devices: int
) -> None:
    link = device(key).link
    assert link is not None
    assert link.bytes_per_s.value == to_all
    assert (link.pair_bytes_per_s and link.pair_bytes_per_s.value) == to_one
    assert link.n_devices.value == n_devices


@pytest.mark.parametrize("row", devices(), ids=lambda row: row.key)
def test_a_link_gives_one_peer_no_more_than_all_and_beats_the_host_link(row: Device) -> None:
    if row.link is None or row.link.pair_bytes_per_s is None:
        return
    total, pair = row.link.bytes_per_s.value, row.link.pair_bytes_per_s.value
    assert pair <= total <= pair * (row.link.n_devices.value - 1)
    assert row.host_link is not None
    assert total > row.host_link.bytes_per_s.value


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("v100-sxm2-32", "bf16"),
        ("v100-sxm2-32", "tf32"),
        ("v100-sxm2-32", "int8"),
        ("t4-16", "bf16"),
        ("a100-sxm-80", "fp8"),
        ("rtx-3090-24", "fp8"),
        ("a10g-24", "fp8"),
    ],
)
def test_what_the_hardware_lacks_is_absent(key: str, kind: str) -> None:
    assert kind not in device(key).peak_flops_per_s


@pytest.mark.parametrize(
    ("name", "reported_mib", "key"),
    [
        # NVML's totals, then torch's, which are a little lower.
        ("Tesla V100-SXM2-16GB", 16_384, "v100-sxm2-16"),
        ("Tesla V100-SXM2-16GB", 16_130, "v100-sxm2-16"),
        ("Tesla V100-SXM2-32GB", 32_510, "v100-sxm2-32"),
        ("Tesla T4", 15_360, "t4-16"),
        ("Tesla T4", 14_912, "t4-16"),
        ("NVIDIA A10G", 23_028, "a10g-24"),
        ("NVIDIA A10G", 22_587, "a10g-24"),
        ("NVIDIA A100-SXM4-40GB", 40_536, "a100-sxm-40"),
        ("NVIDIA A100-SXM4-40GB", 40_960, "a100-sxm-40"),
        ("NVIDIA A100-PCIE-40GB", 40_326, "a100-pcie-40"),
        ("A100-SXM4-40GB", 40_536, "a100-sxm-40"),
        ("NVIDIA A100-SXM4-80GB", 81_920, "a100-sxm-80"),
        ("NVIDIA A100 80GB PCIe", 81_154, "a100-pcie-80"),
        ("NVIDIA L4", 23_034, "l4-24"),
        ("NVIDIA L40S", 46_068, "l40s-48"),
        ("NVIDIA L40S", 45_589, "l40s-48"),
        ("NVIDIA GeForce RTX 3090", 24_576, "rtx-3090-24"),
        ("NVIDIA GeForce RTX 4090", 24_564, "rtx-4090-24"),
        ("NVIDIA GeForce RTX 5090", 32_607, "rtx-5090-32"),
        ("NVIDIA GeForce RTX 5090", 32_109, "rtx-5090-32"),
        ("NVIDIA H100 80GB HBM3", 81_559, "h100-sxm-80"),
        ("NVIDIA H100 80GB HBM3", 81_089, "h100-sxm-80"),
        ("NVIDIA H100 PCIe", 81_559, "h100-pcie-80"),
        ("NVIDIA H200", 143_771, "h200-141"),
        ("NVIDIA H200", 143_156, "h200-141"),
        ("NVIDIA B200", 183_359, "b200-180"),
        ("NVIDIA B200", 182_631, "b200-180"),
        ("AMD Instinct MI300X", 196_592, "mi300x-192"),
    ],
)
def test_what_drivers_report_is_matched(name: str, reported_mib: int, key: str) -> None:
    found = match(name, reported_mib * MIB)
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize(
    ("name", "reported_mib"),
    [
        # Names that contain a catalogued one, or are contained in one.
        ("NVIDIA L40", 46_068),
        ("NVIDIA L40G", 24_576),
        ("NVIDIA L20", 46_068),
        ("NVIDIA A100", 81_920),
        ("NVIDIA A10", 23_028),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20_096),
        ("NVIDIA H100", 81_559),
        ("NVIDIA H100 NVL", 95_830),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9_856),
        ("NVIDIA H200 NVL", 143_771),
        ("NVIDIA GH200 480GB", 97_871),
        ("NVIDIA GB200", 188_416),
        ("NVIDIA B200 MIG 1g.23gb", 22_528),
        ("NVIDIA GeForce RTX 5090 D", 32_607),
        ("NVIDIA GeForce RTX 5090 D v2", 24_463),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", 24_463),
        ("NVIDIA GeForce RTX 4090 D", 24_564),
        ("NVIDIA GeForce RTX 3090 Ti", 24_564),
        ("Tesla V100-PCIE-16GB", 16_160),
        ("AMD Instinct MI300A", 131_072),
        ("nvidia h200", 143_771),
        ("NVIDIA H200 ", 143_771),
        ("", 81_559),
        # The right name with another memory: slices, modified boards, mislabelled variants.
        ("NVIDIA A100-SXM4-40GB", 81_920),
        ("NVIDIA A100-SXM4-80GB", 40_960),
        ("NVIDIA A100-SXM4-80GB", 20_096),
        ("NVIDIA H100 80GB HBM3", 95_830),
        ("NVIDIA H100 PCIe", 65_247),
        ("NVIDIA H200", 81_559),
        ("NVIDIA GeForce RTX 4090", 49_140),
        ("NVIDIA B200", 0),
    ],
)
def test_what_merely_looks_alike_is_unknown(name: str, reported_mib: int) -> None:
    assert match(name, reported_mib * MIB) is None


@pytest.mark.parametrize(
    ("name", "reported_mib", "keys"),
    [
        # As traces of others have them.
        ("NVIDIA A100-PG509-200", 40_338, ["a100-sxm-40"]),
        ("NVIDIA PG509-210", 81_251, ["a100-sxm-80"]),
        ("AMD Instinct MI300X VF", 196_048, ["mi300x-192"]),
        # A board's number that nobody explains leaves what fits the memory.
        ("NVIDIA A100-PG506-207", 40_338, ["a100-sxm-40", "a100-pcie-40"]),
        ("NVIDIA A100-PG506-207", 81_154, ["a100-sxm-80", "a100-pcie-80"]),
        ("NVIDIA A100", 81_920, ["a100-sxm-80", "a100-pcie-80"]),
        ("NVIDIA H100", 81_559, ["h100-sxm-80", "h100-pcie-80"]),
        ("NVIDIA H100 HBM3", 81_559, ["h100-sxm-80"]),
        ("NVIDIA H100 SXM5 80GB", 81_559, ["h100-sxm-80"]),
        # The 96 GB that one operator has, and a slice.
        ("NVIDIA H100", 97_871, []),
        ("NVIDIA A100-PG509-200 MIG 1g.5gb", 4_864, []),
        # Without a memory the name alone decides.
        ("NVIDIA H100 80GB HBM3", None, ["h100-sxm-80"]),
        ("NVIDIA A100-PG509-200", None, ["a100-sxm-40"]),
        ("AMD Instinct MI300X VF", None, ["mi300x-192"]),
        ("NVIDIA A100 40GB", None, ["a100-sxm-40", "a100-pcie-40"]),
        ("Tesla V100", None, ["v100-sxm2-16", "v100-sxm2-32"]),
        ("NVIDIA A100-SXM-64GB", None, []),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", None, []),
        ("NVIDIA A100X", None, []),
        ("NVIDIA A800-SXM4-80GB", None, []),
        ("NVIDIA H100 NVL", None, []),
        ("NVIDIA GH200 480GB", None, []),
        ("NVIDIA GeForce RTX 4090 D", None, []),
        ("Tesla V100-SXM3-32GB", None, []),
        ("NVIDIA", None, []),
        ("", None, []),
    ],
)
def test_a_name_means_all_that_have_its_words(
    name: str, reported_mib: int | None, keys: list[str]
) -> None:
    memory_bytes = None if reported_mib is None else reported_mib * MIB
    assert [row.key for row in meant(name, memory_bytes)] == keys
    found = match(name, memory_bytes)
    assert (None if found is None else found.key) == (keys[0] if len(keys) == 1 else None)


def test_several_gpus_mean_what_each_of_them_may_be() -> None:
    a100, h100 = ("NVIDIA A100", 81_920 * MIB), ("NVIDIA H100", 81_559 * MIB)
    assert [row.key for row in meant_by_all([a100, a100])] == ["a100-sxm-80", "a100-pcie-80"]
    sxm = ("NVIDIA A100-SXM4-80GB", 81_920 * MIB)
    assert [row.key for row in meant_by_all([a100, sxm])] == ["a100-sxm-80"]
    assert meant_by_all([a100, h100]) == ()
    assert meant_by_all([]) == ()


@settings(deadline=None)
@given(st.sampled_from(devices()), st.text(min_size=1, max_size=8), st.booleans())
def test_a_name_with_anything_added_is_another_device(
    row: Device, added: str, in_front: bool
) -> None:
    names = {name for each in devices() for name in each.driver_names}
    altered = added + row.driver_names[0] if in_front else row.driver_names[0] + added
    if altered not in names:
        assert match(altered, int(row.memory_gb.value * 2**30)) is None


@settings(deadline=None)
@given(st.sampled_from(devices()), st.floats(0, 3))
def test_memory_matches_within_the_stated_tolerance_alone(row: Device, share: float) -> None:
    found = match(row.driver_names[0], round(share * row.memory_gb.value * 2**30))
    if 0.901 < share < 1.004:
        assert found == row
    elif not 0.899 < share < 1.006:
        assert found is None


def test_an_unknown_key_is_answered_with_the_nearest() -> None:
    assert device("h100-sxm-80").driver_names == ("NVIDIA H100 80GB HBM3",)
    with pytest.raises(PeakwardError, match="expected a device, got 'h10': perhaps h100-sxm-80"):
        device("h10")


@pytest.mark.parametrize(
    ("text", "key"),
    [("h100-sxm", "h100-sxm-80"), ("A100-PCIE-40", "a100-pcie-40"), ("NVIDIA H200", "h200-141")],
)
def test_one_is_known_by_its_abbreviation_and_by_its_driver_s_name(text: str, key: str) -> None:
    assert device(text).key == key


@pytest.mark.parametrize("text", ["h100", "H100", "NVIDIA H100"])
def test_a_text_that_means_several_is_answered_with_all_of_them(text: str) -> None:
    said = f"expected one device, got '{text}', which is h100-sxm-80 or h100-pcie-80: name one"
    with pytest.raises(PeakwardError) as refused:
        device(text)
    assert str(refused.value) == said


def test_several_of_one_model_are_that_model_and_of_two_are_none() -> None:
    h200, a100 = ("NVIDIA H200", 150_109_880_320), ("NVIDIA A100-SXM4-40GB", 40_960 * 2**20)
    found = match_all([h200, h200])
    assert found is not None
    assert found.key == "h200-141"
    assert match_all([h200, a100]) is None
    assert match_all([]) is None
    assert match_all([("NVIDIA H200", None)]) == found
    assert match_all([(None, None)]) is None
    assert match_all([h200, (None, 150_109_880_320)]) is None


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("a100-80", ["a100-sxm-80", "a100-pcie-80"]),
        ("h100-sxm", ["h100-sxm-80"]),
        ("rtx-4090", ["rtx-4090-24"]),
        ("v100", ["v100-sxm2-16", "v100-sxm2-32"]),
        ("a100-sxm-80", ["a100-sxm-80"]),
        ("80-a100", ["a100-sxm-80", "a100-pcie-80"]),
        ("A100-80", ["a100-sxm-80", "a100-pcie-80"]),
        ("NVIDIA A100 80GB", ["a100-sxm-80", "a100-pcie-80"]),
        ("Tesla V100-SXM2-32GB", ["v100-sxm2-32"]),
    ],
)
def test_an_abbreviation_stands_for_every_key_with_its_parts(text: str, keys: list[str]) -> None:
    assert [row.key for row in devices_named(text)] == keys


@pytest.mark.parametrize("row", devices(), ids=lambda row: row.key)
def test_a_key_abbreviates_no_other(row: Device) -> None:
    assert devices_named(row.key) == (row,)


@pytest.mark.parametrize("text", ["h100-nvl", "a100-8", "a100-", "l4-48"])
def test_what_no_key_has_is_answered_with_the_nearest(text: str) -> None:
    with pytest.raises(PeakwardError, match=f"expected a device, got '{text}': perhaps "):
        devices_named(text)


@pytest.mark.parametrize("row", devices(), ids=lambda row: row.key)
def test_a_driver_reports_what_is_matched_by_it(row: Device) -> None:
    if row.driver_memory_mib is not None:
        assert match(row.driver_names[0], int(row.driver_memory_mib.value) * MIB) == row


@pytest.mark.parametrize(
    ("key", "torch_sees_mib"), [("t4-16", 14_912), ("a100-sxm-80", 81_050), ("h200-141", 143_156)]
)
def test_a_process_may_take_that_much_at_least(key: str, torch_sees_mib: int) -> None:
    """What torch's out-of-memory messages in public logs give as a device's capacity."""
    assert 0.96 * torch_sees_mib < least_memory_bytes(device(key)) / MIB <= torch_sees_mib


def test_where_no_driver_s_figure_is_known_the_least_is_the_smallest_that_is_matched() -> None:
    row = device("mi300x-192")
    assert row.driver_memory_mib is None
    assert least_memory_bytes(row) == pytest.approx(0.9 * 192 * 2**30)
    assert match(row.driver_names[0], least_memory_bytes(row) + 1) == row
    assert match(row.driver_names[0], least_memory_bytes(row) - 1) is None
