"""Models and machines whose figures are published, for tests of what to expect of them."""

from dataclasses import replace

from slowtok.detectors.case.case import Envelope, Range
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts

ROW: dict[str, object] = {
    "gpu": "NVIDIA GeForce RTX 4090", "n_gpus": "1", "vram_gb": "24", "mem_bw_gbs": "1008.1",
    "backend": "llama.cpp CUDA", "engine_build": "4426e298 (b2824)",
    "model": "llama 8B Q4_K - Medium", "params_b": "8.03", "quant": "Q4_K_M",
    "weights_gib": "4.58", "n_layers": "32", "n_kv_heads": "8", "head_dim": "128",
    "context_depth": "4096", "kv_dtype": "f16", "ngl_or_offload": "99",
}  # fmt: skip
"""A setup in the columns of fit/data/decode_rates.csv, all of it text."""

LLAMA_CPP = ServerFacts(kind="llama-server", kv_type_k="f16", kv_type_v="f16")


def model(read_gb: float, layers: int, kv_kib: float, **more: object) -> ModelFacts:
    facts = ModelFacts(
        read_bytes=int(read_gb * 1e9), layers=layers, kv_bytes_per_token=kv_kib * 1024
    )
    return replace(facts, **more)  # type: ignore[arg-type]


# Bytes read per token: tensor tables of the published GGUF files (Q4_K_M, MXFP4); for Qwen3-32B and
# 30B-A3B active parameters x bits per weight.
LLAMA_3_8B = model(4.62, 32, 128)
QWEN3_8B = model(4.68, 36, 144)
QWEN3_32B = model(19.3, 64, 256)
QWEN3_30B_A3B = model(1.86, 48, 96, experts=128, experts_used=8, file_bytes=int(18.6e9))
GPT_OSS_120B = model(
    3.63, 36, 36, experts=128, experts_used=4,
    kv_window_tokens=128, kv_window_bytes_per_token=36 * 1024.0,
)  # fmt: skip
SMOLLM2 = model(0.0966, 30, 22.5, bits_per_weight=5.74)


def card(name: str, gb_s: float | None) -> DeviceFacts:
    bandwidth = None if gb_s is None else gb_s * 1e9
    return DeviceFacts(gpus=(GpuFacts(index=0, name=name, bandwidth_bytes_per_s=bandwidth),))


RTX_5090 = card("NVIDIA GeForce RTX 5090", 1792)
RTX_4090 = card("NVIDIA GeForce RTX 4090", 1008)
RTX_3090 = card("NVIDIA GeForce RTX 3090", 936)
RTX_3060 = card("NVIDIA GeForce RTX 3060", 360)
GB10 = card("NVIDIA GB10", None)
STRIX_HALO = card("AMD Radeon 8060S", None)
H100 = card("NVIDIA H100 80GB HBM3", 3351)
M4_MAX = card("Apple M4 Max (40-core)", None)
TWO_CORES = DeviceFacts(gpus=(), cpu_physical_cores=2, ram_bandwidth_bytes_per_s=50e9)


def band(envelope: Envelope) -> Range:
    assert envelope.decode is not None, envelope.because
    return envelope.decode
