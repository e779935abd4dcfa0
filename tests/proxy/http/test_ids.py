import re
import uuid

from slowtok.proxy.http.headers import make_request_id, make_traceparent


def test_request_id_is_a_uuid7_of_its_time() -> None:
    made = uuid.UUID(make_request_id(1_700_000_000.123))

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == 1_700_000_000_123


def test_request_ids_sort_by_time_and_do_not_repeat() -> None:
    ids = [make_request_id(second) for second in (1.0, 2.0, 3e9)]

    assert sorted(ids) == ids
    assert len({make_request_id(1.0) for _ in range(1000)}) == 1000


def test_traceparent_is_of_version_00_and_not_sampled() -> None:
    made = make_traceparent()

    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", made)
    assert made != make_traceparent()
    assert make_traceparent(recorded=True).endswith("-01")
