import pytest

from slowtok.detectors.published_placement import EVERY_LAYER, Placement, placement_of


@pytest.mark.parametrize(
    ("said", "placement"),
    [
        ("", Placement()),
        ("-1", Placement()),
        ("GPU/CPU", Placement()),
        ("99", Placement(gpu_layers=99)),
        ("all", Placement(gpu_layers=EVERY_LAYER)),
        ("cpu", Placement(gpu_layers=0)),
        ("CPU", Placement(gpu_layers=0)),
        ("0", Placement(gpu_layers=0)),
        ("ngl 0", Placement(gpu_layers=0)),
        ("ngl 32/41", Placement(gpu_layers=32)),
        ("ngl 99 n-cpu-moe 36/48", Placement(gpu_layers=99, cpu_moe_layers=36)),
        ("99, no-kv-offload", Placement(gpu_layers=99, kv_on_gpu=False)),
        (
            "34/48 layers of experts on GPU, 14 on CPU (64 GB/s)",
            Placement(gpu_layers=EVERY_LAYER, cpu_moe_layers=14, ram_bandwidth_bytes_per_s=64e9),
        ),
        (
            "experts on CPU, rest on GPU",
            Placement(gpu_layers=EVERY_LAYER, cpu_moe_layers=EVERY_LAYER),
        ),
        ("few experts on CPU (64 GB/s)", Placement(ram_bandwidth_bytes_per_s=64e9)),
    ],
)
def test_words_of_those_who_measured(said: str, placement: Placement) -> None:
    assert placement_of(said) == placement
