import pytest

from slowtok.detectors.expectation.published import EVERY_LAYER, StatedPlacement, placement_of


@pytest.mark.parametrize(
    ("said", "placement"),
    [
        ("", StatedPlacement()),
        ("-1", StatedPlacement()),
        ("GPU/CPU", StatedPlacement()),
        ("99", StatedPlacement(gpu_layers=99)),
        ("all", StatedPlacement(gpu_layers=EVERY_LAYER)),
        ("cpu", StatedPlacement(gpu_layers=0)),
        ("CPU", StatedPlacement(gpu_layers=0)),
        ("0", StatedPlacement(gpu_layers=0)),
        ("ngl 0", StatedPlacement(gpu_layers=0)),
        ("ngl 32/41", StatedPlacement(gpu_layers=32)),
        ("ngl 99 n-cpu-moe 36/48", StatedPlacement(gpu_layers=99, cpu_moe_layers=36)),
        ("99, no-kv-offload", StatedPlacement(gpu_layers=99, kv_on_gpu=False)),
        (
            "34/48 layers of experts on GPU, 14 on CPU (64 GB/s)",
            StatedPlacement(
                gpu_layers=EVERY_LAYER, cpu_moe_layers=14, ram_bandwidth_bytes_per_s=64e9
            ),
        ),
        (
            "experts on CPU, rest on GPU",
            StatedPlacement(gpu_layers=EVERY_LAYER, cpu_moe_layers=EVERY_LAYER),
        ),
        ("few experts on CPU (64 GB/s)", StatedPlacement(ram_bandwidth_bytes_per_s=64e9)),
    ],
)
def test_words_of_those_who_measured(said: str, placement: StatedPlacement) -> None:
    assert placement_of(said) == placement
