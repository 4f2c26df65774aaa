"""The accelerator catalogue: every datasheet, and names as drivers print them."""

import subprocess
import sys
from pathlib import Path

import pytest

from hetplan.errors import SpecError
from hetplan.specs import catalog
from hetplan.specs.accelerator import AcceleratorSpec, Format
from hetplan.specs.loader import load_spec

FORMATS: tuple[Format, ...] = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4")

REAL_NAMES = {
    "Tesla P100-SXM2-16GB": "p100-sxm2-16gb",
    "Tesla V100-SXM2-16GB": "v100-sxm2-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "Tesla T4": "t4",
    "NVIDIA A10": "a10",
    "NVIDIA A10G": "a10g",
    "NVIDIA A30": "a30",
    "NVIDIA A40": "a40",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb",
    "A100-SXM4-80GB": "a100-sxm4-80gb",
    "NVIDIA A800-SXM4-80GB": "a800-sxm4-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb",
    "NVIDIA-H100-80GB-HBM3": "h100-sxm5-80gb",
    "NVIDIA H100 NVL": "h100-nvl-94gb",
    "NVIDIA H800": "h800-sxm5-80gb",
    "NVIDIA H20": "h20-96gb",
    "NVIDIA H200": "h200-sxm-141gb",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA B200": "b200-sxm-180gb",
    "NVIDIA GB200": "gb200-186gb",
    "NVIDIA B300 SXM6 AC": "b300-sxm-288gb",
    "NVIDIA GB300": "gb300-288gb",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "l40s": "l40s",
    "nvidia_l40s": "l40s",
    "NVIDIA GeForce RTX 2080": "rtx2080",
    "NVIDIA GeForce RTX 2080 Ti": "rtx2080ti",
    "NVIDIA TITAN RTX": "titan-rtx",
    "NVIDIA GeForce RTX 3090": "rtx3090",
    "NVIDIA GeForce RTX 3090 Ti": "rtx3090ti",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "GeForce RTX 4090": "rtx4090",
    "NVIDIA GeForce RTX 5090": "rtx5090",
    "NVIDIA RTX A6000": "rtxa6000",
    "NVIDIA RTX 6000 Ada Generation": "rtx6000ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtxpro6000-server",
    "AMD Instinct MI210": "mi210-64gb",
    "AMD Instinct MI250X": "mi250x-gcd-64gb",
    "AMD Instinct MI300X": "mi300x-192gb",
    "AMD Instinct MI300X OAM": "mi300x-192gb",
    "AMD Instinct MI325X": "mi325x-256gb",
    "AMD Instinct MI355 OAM": "mi355x-288gb",
    "HL-225": "gaudi2-96gb",
    "HL-325L": "gaudi3-128gb",
    "910B3": "ascend910b-64gb",
    "TPU v5 lite": "tpu-v5e",
    "TPU v5": "tpu-v5p",
}

NOT_IN_CATALOGUE = (
    "NVIDIA L40",
    "NVIDIA L20",
    "NVIDIA H20-3e",
    "NVIDIA H200 NVL",
    "NVIDIA H800 PCIe",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
    "NVIDIA H100 80GB HBM2e",
    "Tesla V100-PCIE-16GB",
    "Tesla V100S-PCIE-32GB",
    "Quadro RTX 6000",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "AMD Instinct MI250",
    "AMD Instinct MI300A",
    "TPU v6",
    "",
    "NVIDIA",
    "../accelerators/t4",
)


@pytest.mark.parametrize("name", catalog.names())
def test_every_datasheet_loads_and_is_named_after_its_file(name: str) -> None:
    """Each file is a valid datasheet under its own name, with sources for what it states."""
    sheet = catalog.accelerator(name)
    assert sheet is not None
    assert sheet.name == name
    assert {"peak", "achievable_share", "memory_size", "memory_bandwidth", "link"} <= set(sheet.sources)
    assert ("measured" in sheet.sources) == sheet.is_measured("bf16")
    assert ("memory_reported" in sheet.sources) == (sheet.memory_reported_bytes is not None)
    assert ("tdp" in sheet.sources) == (sheet.tdp_watts is not None)


@pytest.mark.parametrize("name", catalog.names())
def test_figures_are_plausible(name: str) -> None:
    """Measured rates stay below peak, each format has a rate, and the driver reports about the datasheet's memory."""
    sheet = catalog.accelerator(name)
    assert sheet is not None
    for number_format in FORMATS:
        if sheet.supports(number_format):
            assert sheet.achievable_flops_per_s(number_format) <= sheet.peak_flops_per_s(number_format)
    assert "fp32" in sheet.formats or sheet.peak.fp32_flops_per_s is None
    assert "estimated" in sheet.sources["achievable_share"]
    if sheet.is_measured("bf16"):
        share = sheet.achievable_flops_per_s("bf16") / sheet.peak_flops_per_s("bf16")
        assert sheet.achievable_share == pytest.approx(share, abs=1e-4)
    if sheet.memory_reported_bytes is not None:
        assert 0.99 < sheet.memory_reported_bytes / sheet.memory_size_bytes < 1.08
    assert sheet.link_per_peer_bytes_per_s is None or sheet.link_per_peer_bytes_per_s < sheet.link_bytes_per_s


def test_names_are_sorted_and_complete() -> None:
    """The catalogue lists 55 devices: an MI250X card stands as its GCD."""
    assert list(catalog.names()) == sorted(catalog.names())
    assert len(catalog.names()) == 55
    assert "mi250x-128gb" not in catalog.names()
    assert [sheet.name for sheet in catalog.all_accelerators()] == list(catalog.names())


@pytest.mark.parametrize(("printed", "name"), REAL_NAMES.items())
def test_driver_names(printed: str, name: str) -> None:
    """A name as a driver, hl-smi, npu-smi or JAX prints it finds its datasheet, in any case and with any separators."""
    for variant in (printed, printed.upper(), printed.lower().replace(" ", "_"), f" {printed} "):
        sheet = catalog.accelerator(variant)
        assert sheet is not None
        assert sheet.name == name


@pytest.mark.parametrize("printed", NOT_IN_CATALOGUE)
def test_other_devices_are_not_mistaken(printed: str) -> None:
    """A device that the catalogue lacks is not taken for a near one."""
    assert catalog.accelerator(printed) is None


def test_every_alias_is_found() -> None:
    """Each alias leads to its datasheet, but for one that two datasheets share."""
    shared = set()
    for sheet in catalog.all_accelerators():
        for alias in sheet.aliases:
            found = catalog.accelerator(alias)
            if found is None:
                shared.add(alias)
            else:
                assert found.name == sheet.name
    assert shared == {"NVIDIA GH200 120GB"}


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("H100", ("h100-sxm5-80gb", "h100-pcie-80gb", "h100-96gb-500w")),
        ("NVIDIA A100", ("a100-pcie-80gb", "a100-sxm4-80gb", "a100-pcie-40gb")),
        ("a100 80gb", ("a100-pcie-80gb", "a100-sxm4-80gb")),
        ("v100", ("v100-pcie-32gb", "v100-sxm2-16gb", "v100-sxm2-32gb")),
        ("NVIDIA GH200 120GB", ("gh200-96gb", "gh200-quad-96gb")),
    ],
)
def test_ambiguous_names_are_not_guessed(printed: str, expected: tuple[str, ...]) -> None:
    """A short name that fits several datasheets gives none of them, and suggests the best sourced."""
    assert catalog.accelerator(printed) is None
    assert catalog.suggestions(printed) == expected


@pytest.mark.parametrize(
    ("printed", "first"),
    [
        ("a100-sxm4-80g", "a100-sxm4-80gb"),
        ("h100-smx5-80gb", "h100-sxm5-80gb"),
        ("mi300", "mi300x-192gb"),
        ("RTX 4090 Laptop GPU", "rtx4090"),
        ("NVIDIA H200 NVL", "h200-sxm-141gb"),
        ("NVIDIA L40", "l40s"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "a100-sxm4-80gb"),
        ("gaudi", "gaudi2-96gb"),
        ("3060", "rtx3060-12gb"),
    ],
)
def test_suggestions(printed: str, first: str) -> None:
    """What is nearest comes first, and never more than three."""
    suggested = catalog.suggestions(printed)
    assert suggested[0] == first
    assert len(suggested) <= 3


@pytest.mark.parametrize("printed", ["", "x", "NVIDIA", "toaster", "???", "4" * 10_000, "H100" * 1000])
def test_no_suggestions_for_what_is_far(printed: str) -> None:
    """Nothing is suggested for a name that is near nothing."""
    assert catalog.suggestions(printed) == ()


def test_memory_tells_cards_of_one_name_apart() -> None:
    """Consumer cards sold in several sizes under one driver name are found only with the memory reported."""
    printed = "NVIDIA GeForce RTX 3060"
    assert catalog.accelerator(printed) is None
    found = catalog.accelerator(printed, reported_bytes=12288 * 2**20)
    assert found is not None
    assert found.name == "rtx3060-12gb"
    assert catalog.accelerator(printed, reported_bytes=8192 * 2**20) is None
    found = catalog.accelerator("NVIDIA GeForce RTX 4060 Ti", reported_bytes=16380 * 2**20)
    assert found is not None
    assert found.name == "rtx4060ti-16gb"


def test_a_catalogue_name_opens_one_file_only() -> None:
    """Looking up a catalogue name parses its datasheet and no other."""
    program = (
        "import sys, hetplan.specs.catalog as catalog\n"
        "opened = []\n"
        "sys.addaudithook(lambda event, args: event == 'open' and opened.append(str(args[0])))\n"
        "catalog.accelerator('t4')\n"
        "print(*(file for file in opened if file.endswith('.yaml')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [Path(file).name for file in done.stdout.split()] == ["t4.yaml"]


def _sheet(name: str) -> AcceleratorSpec:
    sheet = catalog.accelerator(name)
    assert sheet is not None
    return sheet


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("rtx3090", 71),
        ("rtx4090", 165.2),
        ("rtx5090", 209.5),
        ("rtxa6000", 154.8),
        ("rtx6000ada", 364),
        ("h100-nvl-94gb", 835.5),
        ("h100-sxm5-80gb", 989),
        ("h200-sxm-141gb", 989),
    ],
)
def test_peaks_are_dense(name: str, tflops: float) -> None:
    """bf16 peaks that other lists give twice or half as large (karpathy/nanochat issue 60, Lightning PR 21743)."""
    assert _sheet(name).peak_flops_per_s("bf16") == tflops * 1e12


def test_sparse_figure_of_the_h200_is_not_taken() -> None:
    """The H200's dense bf16 peak agrees with the 989.5 of Lightning PR 21743 to 0.1 %."""
    assert _sheet("NVIDIA H200").peak_flops_per_s("bf16") == pytest.approx(989.5e12, rel=1e-3)


@pytest.mark.parametrize("architecture", ["pascal", "volta", "turing"])
def test_no_bf16_before_ampere(architecture: str) -> None:
    """P100, V100, T4 and the RTX 20 series train in fp16 or fp32."""
    sheets = [sheet for sheet in catalog.all_accelerators() if sheet.architecture == architecture]
    assert sheets
    for sheet in sheets:
        assert sheet.formats == ("fp32", "fp16")
        assert not sheet.flash_attention


def test_low_precision_formats() -> None:
    """fp8 starts at Ada, Hopper and CDNA3; mxfp8 and nvfp4 need a data-centre Blackwell."""
    for sheet in catalog.all_accelerators():
        if sheet.architecture in ("ampere", "cdna2"):
            assert not sheet.supports("fp8")
        if sheet.architecture in ("ada", "hopper", "cdna3", "cdna4", "blackwell"):
            assert sheet.supports("fp8") == (sheet.name != "rtx4060ti-16gb")  # whose fp8 rate nobody looked up
        data_centre = sheet.architecture == "blackwell" and sheet.compute_capability in ("10.0", "10.3")
        assert sheet.supports("mxfp8") == data_centre
        assert sheet.supports("nvfp4") == data_centre


def test_mi250x_is_two_devices() -> None:
    """The name of the card leads to one of its two devices, with half of its memory and rate."""
    sheet = _sheet("mi250x-128gb")
    assert sheet.name == "mi250x-gcd-64gb"
    assert sheet.memory_size_bytes == 64e9
    assert sheet.peak_flops_per_s("bf16") == 191.5e12
    assert "a card is two of these" in sheet.notes


def test_balance_is_by_achievable_rates() -> None:
    """An MI300X is 1.32 H100 by peak and 0.84 by measurement."""
    amd, nvidia = _sheet("AMD Instinct MI300X"), _sheet("NVIDIA H100 80GB HBM3")
    assert amd.peak_flops_per_s("bf16") / nvidia.peak_flops_per_s("bf16") == pytest.approx(1.32, abs=0.005)
    assert amd.achievable_flops_per_s("bf16") / nvidia.achievable_flops_per_s("bf16") == pytest.approx(0.84, abs=0.005)


def test_missing_rates_follow_the_rule() -> None:
    """Same die first, then the family's median, then 0.7."""
    assert _sheet("a100-sxm4-40gb").achievable_share == pytest.approx(271.2 / 312, abs=1e-3)
    assert _sheet("h20-96gb").achievable_share == pytest.approx(794.5 / 989, abs=1e-3)
    assert _sheet("rtx3090").achievable_share == 0.84
    assert _sheet("rtx5090").achievable_share == 0.78
    assert 0.58 < _sheet("rtx4090").achievable_share < 0.83
    assert _sheet("v100-sxm2-32gb").achievable_share == 0.7
    assert not _sheet("rtx3090").is_measured("bf16")


def test_a_format_needs_a_rate(tmp_path: Path) -> None:
    """A datasheet that lists a format without giving its rate is refused."""
    text = (Path(catalog.__file__).parents[1] / "catalog/accelerators/t4.yaml").read_text(encoding="utf-8")
    file = tmp_path / "t4.yaml"
    file.write_text(text.replace("[fp32, fp16]", "[fp32, fp16, bf16]"), encoding="utf-8")
    with pytest.raises(SpecError, match="peak: gives no rate for bf16"):
        load_spec(file, AcceleratorSpec)
