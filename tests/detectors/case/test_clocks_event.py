"""The table of reasons for lower clocks."""

from slowtok.detectors.case.clocks_event import LABELS, NAMES, ClocksEvent


def test_each_bit_has_its_name_and_its_label() -> None:
    assert list(NAMES) == list(LABELS) == [int(bit) for bit in ClocksEvent]
