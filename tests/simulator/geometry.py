"""Models to simulate, with the geometry that their published configurations give."""

from dataclasses import dataclass

from slowtok.detectors.case.engine import ModelFacts

BITS = {
    "Q3_K_M": 3.91, "IQ4_XS": 4.3, "Q4_K_M": 4.85, "Q5_K_M": 5.7, "Q6_K": 6.56, "Q8_0": 8.5,
    "FP8": 8.2, "F16": 16.0, "AWQ": 4.4,
}  # fmt: skip
"""Bits that a weight takes on average, all tensors together."""

KV_SIZE = {"f16": 1.0, "q8_0": 0.531, "q4_0": 0.281, "fp8": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One architecture; `kv_bytes` is what a token adds to the cache at 16 bits."""

    name: str
    parameters: float
    read_parameters: float
    layers: int
    hidden: int
    kv_bytes: float
    window_tokens: int = 0
    window_bytes: float = 0.0
    experts: int | None = None
    experts_used: int | None = None
    bits: float | None = None
    read_bytes: float | None = None
    state_mib: float = 0.0

    def file_bytes(self, quantisation: str) -> float:
        """Bytes of all weights."""
        return self.parameters * 1e9 * (self.bits or BITS[quantisation]) / 8

    def pass_bytes(self, quantisation: str, sequences: float = 1.0) -> float:
        """Bytes of weights read in one pass; several sequences use more of the experts."""
        one = self.read_bytes or self.read_parameters * 1e9 * BITS[quantisation] / 8
        if not self.experts or not self.experts_used or sequences <= 1:
            return one
        share = self.experts_used / self.experts
        union = (1 - float((1 - share) ** sequences)) / share
        return min(one * (0.35 + 0.65 * union), self.file_bytes(quantisation))

    def context_bytes(self, tokens: float, kv_type: str = "f16") -> float:
        """Bytes of the cache for one sequence of `tokens`."""
        grown = self.kv_bytes * tokens + self.window_bytes * min(tokens, self.window_tokens or 0)
        return grown * KV_SIZE[kv_type]

    def facts(self, quantisation: str) -> ModelFacts:
        """Return what the product reads out of the model's file."""
        return ModelFacts(
            name=f"{self.name}-{quantisation}".lower(),
            path=f"/models/{self.name}-{quantisation}.gguf",
            digest=f"sha256:{self.name}-{quantisation}",
            quantisation=quantisation if self.bits is None else "MXFP4",
            parameters=int(self.parameters * 1e9),
            file_bytes=int(self.file_bytes(quantisation)),
            read_bytes=int(self.pass_bytes(quantisation)),
            layers=self.layers,
            experts=self.experts,
            experts_used=self.experts_used,
            kv_bytes_per_token=self.kv_bytes,
            kv_window_tokens=self.window_tokens or None,
            kv_window_bytes_per_token=self.window_bytes or None,
            bits_per_weight=self.bits or BITS[quantisation],
            state_bytes=self.state_mib * 2**20,
        )


def _dense(name: str, size: float, read: float, layers: int, hidden: int, kv_bytes: float) -> Model:
    return Model(
        name=name,
        parameters=size,
        read_parameters=read,
        layers=layers,
        hidden=hidden,
        kv_bytes=kv_bytes,
    )


DENSE = (
    _dense("Qwen3-0.6B", 0.596, 0.596, 28, 1024, 114688),
    _dense("Llama-3.2-1B", 1.236, 1.236, 16, 2048, 32768),
    _dense("Llama-3.2-3B", 3.213, 3.213, 28, 3072, 114688),
    _dense("Qwen3-4B", 4.022, 4.022, 36, 2560, 147456),
    _dense("Llama-3-8B", 8.03, 7.505, 32, 4096, 131072),
    _dense("Qwen3-8B", 8.191, 7.569, 36, 4096, 147456),
    _dense("Qwen2.5-7B", 7.616, 7.071, 28, 3584, 57344),
    _dense("Mistral-Nemo-12B", 12.248, 11.577, 40, 5120, 163840),
    _dense("Qwen3-14B", 14.768, 13.99, 40, 5120, 163840),
    _dense("Mistral-Small-24B", 23.572, 22.901, 40, 5120, 163840),
    _dense("Qwen3-32B", 32.762, 31.984, 64, 5120, 262144),
    _dense("Qwen2.5-72B", 72.706, 71.46, 80, 8192, 327680),
    _dense("Llama-3-70B", 70.554, 69.503, 80, 8192, 327680),
)
SPECIAL = (
    Model(
        name="Gemma-3-12B",
        parameters=11.766,
        read_parameters=11.766,
        layers=48,
        hidden=3840,
        kv_bytes=65536,
        window_tokens=1024,
        window_bytes=327680,
    ),
    Model(
        name="gpt-oss-20b",
        parameters=20.915,
        read_parameters=3.03,
        layers=24,
        hidden=2880,
        kv_bytes=24576,
        window_tokens=128,
        window_bytes=24576,
        experts=32,
        experts_used=4,
        bits=4.63,
        read_bytes=2.58e9,
    ),
    Model(
        name="gpt-oss-120b",
        parameters=116.83,
        read_parameters=5.13,
        layers=36,
        hidden=2880,
        kv_bytes=36864,
        window_tokens=128,
        window_bytes=36864,
        experts=128,
        experts_used=4,
        bits=4.34,
        read_bytes=3.63e9,
    ),
    Model(
        name="Qwen3-30B-A3B",
        parameters=30.532,
        read_parameters=3.04,
        layers=48,
        hidden=2048,
        kv_bytes=98304,
        experts=128,
        experts_used=8,
    ),
    Model(
        name="DeepSeek-V2-Lite",
        parameters=15.706,
        read_parameters=2.45,
        layers=27,
        hidden=2048,
        kv_bytes=31104,
        experts=64,
        experts_used=6,
    ),
)
MODELS = {model.name: model for model in (*DENSE, *SPECIAL)}
