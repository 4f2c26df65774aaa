"""The datasheet of one accelerator: what its maker states and what has been measured on it."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from hetplan.specs.quantities import Bytes, BytesPerSecond, FlopsPerSecond, Spec, Watts, quantity_error

Format = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
"""Number formats that a matrix product can run in; mxfp8 runs at the fp8 rate, nvfp4 at the fp4 rate."""


class Rates(Spec):
    """Dense matrix-product rates by number format, without sparsity."""

    fp32_flops_per_s: FlopsPerSecond | None = Field(None, alias="fp32", description="fp32 vector rate")
    tf32_flops_per_s: FlopsPerSecond | None = Field(None, alias="tf32", description="TF32 matrix rate")
    fp16_flops_per_s: FlopsPerSecond | None = Field(None, alias="fp16", description="fp16 with fp32 accumulation")
    bf16_flops_per_s: FlopsPerSecond | None = Field(None, alias="bf16", description="bf16 with fp32 accumulation")
    fp8_flops_per_s: FlopsPerSecond | None = Field(None, alias="fp8", description="fp8 matrix rate")
    fp4_flops_per_s: FlopsPerSecond | None = Field(None, alias="fp4", description="fp4 matrix rate")

    def rate(self, number_format: Format) -> float | None:
        """FLOP/s in this format, or None where none is given."""
        column = {"mxfp8": "fp8", "nvfp4": "fp4"}.get(number_format, number_format)
        value: float | None = getattr(self, f"{column}_flops_per_s")
        return value


class AcceleratorSpec(Spec):
    """One accelerator as one device: the figures of its datasheet and the measured ones, each with its source."""

    name: str = Field(description="catalogue name", min_length=1, max_length=100)
    aliases: tuple[str, ...] = Field((), description="names that drivers print for this device")
    vendor: str = Field("unknown", description="nvidia, amd, intel, huawei, google, aws, ...")
    architecture: str = Field("unknown", description="architecture family, such as ampere or cdna3")
    compute_capability: str | None = Field(None, description="compute capability or gfx target")
    formats: tuple[Format, ...] = Field(description="number formats that training can run in on this device")
    peak: Rates = Field(description="datasheet matrix rates, dense")
    measured: Rates = Field(default_factory=Rates, description="best measured matrix rates, dense")
    achievable_share: float = Field(
        0.7, gt=0, le=1, description="share of peak taken as achievable in a format without a measured rate"
    )
    memory_size_bytes: Bytes = Field(alias="memory_size", description="datasheet memory, GB = 10^9 bytes")
    memory_reported_bytes: Bytes | None = Field(
        None, alias="memory_reported", description="memory that the driver reports"
    )
    memory_bandwidth_bytes_per_s: BytesPerSecond = Field(alias="memory_bandwidth", description="datasheet memory rate")
    link_kind: str = Field("unknown", description="link inside the node: nvlink3, xgmi, pcie4, ...")
    link_bytes_per_s: BytesPerSecond = Field(alias="link", description="per direction, over all peers in the node")
    link_per_peer_bytes_per_s: BytesPerSecond | None = Field(
        None, alias="link_per_peer", description="per direction, to any single peer, where that is less"
    )
    tdp_watts: Watts | None = Field(None, alias="tdp", description="board power")
    price_per_hour: float | None = Field(None, gt=0, description="example price, USD per device and hour")
    flash_attention: bool = Field(True, description="whether a flash-attention kernel exists for it")
    confidence: Literal["high", "medium", "low", "unknown"] = Field("unknown", description="how well sourced it is")
    notes: str = Field("", description="what to know before planning with it")
    sources: dict[str, str] = Field(default_factory=dict, description="where each figure comes from")

    @field_validator("peak")
    @classmethod
    def _rate_for_each_format(cls, peak: Rates, info: ValidationInfo) -> Rates:
        """A format without a rate could be chosen but not planned for."""
        for number_format in info.data.get("formats", ()):
            if peak.rate(number_format) is None:
                raise quantity_error(f"gives no rate for {number_format}", "add the rate, or take it out of formats")
        return peak

    def supports(self, number_format: Format) -> bool:
        """Whether training can run in this format here."""
        return number_format in self.formats

    def peak_flops_per_s(self, number_format: Format) -> float:
        """Datasheet FLOP/s; raises KeyError for a format that the datasheet does not give."""
        value = self.peak.rate(number_format)
        if value is None:
            raise KeyError(number_format)
        return value

    def achievable_flops_per_s(self, number_format: Format) -> float:
        """Best measured FLOP/s, or the estimated share of peak where nobody measured it."""
        measured = self.measured.rate(number_format)
        return measured if measured is not None else self.achievable_share * self.peak_flops_per_s(number_format)

    def is_measured(self, number_format: Format) -> bool:
        """Whether `achievable_flops_per_s` rests on a measurement in this format."""
        return self.measured.rate(number_format) is not None
