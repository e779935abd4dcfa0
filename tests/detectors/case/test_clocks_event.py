"""One table of the reasons for lower clocks; other tables of them say the same."""

from slowtok.detectors.case.clocks_event import LABELS, NAMES, ClocksEvent
from slowtok.proxy.inspection.gpu import BITS
from slowtok.proxy.outputs.metrics.gpus import REASONS


def test_each_bit_has_its_name_and_its_label() -> None:
    assert list(NAMES) == list(LABELS) == [int(bit) for bit in ClocksEvent]


def test_other_tables_say_the_same() -> None:
    assert NAMES == REASONS
    assert BITS.items() <= LABELS.items()
