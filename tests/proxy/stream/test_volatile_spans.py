"""What in a prompt may change from call to call: places and kinds."""

import pytest

from slowtok.proxy.stream.prompt_fingerprint import MARKED_CHARS, MAX_MARKS, find_marks, kind_at


def marked(text: str) -> list[tuple[str, str]]:
    return [(mark.kind, text[mark.begin : mark.end]) for mark in find_marks(text)]


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("", []),
        ("Be kind to dragons.", []),
        ("It is 2026-11-20T07:00:01Z.", [("time", "2026-11-20T07:00:01Z")]),
        ("on 20.11.2026 or 11/20/26", [("time", "20.11.2026"), ("time", "11/20/26")]),
        ("at 7:05 today", [("time", "7:05")]),
        ("now=1795158000 s", [("time", "1795158000")]),
        ("now=1795158000123", [("time", "1795158000123")]),
        ("Friday, November 20 is", [("time", "Friday, November 20")]),
        ("on the 20th November", [("time", "20th")]),
        (
            "Fri Nov 20 07:00:00",
            [("time", "Fri Nov 20"), ("time", "07:00:00")],
        ),
        ("18,201 tokens left", [("number", "18,201")]),
        ("18.5 of 40 GiB", [("number", "18.5"), ("number", "40")]),
        ("the 3rd rule", [("number", "3rd")]),
        ("0199f3c2-0000-7000-8000-000000000001", [("id", "0199f3c2-0000-7000-8000-000000000001")]),
        ("commit deadbeef1", [("id", "deadbeef1")]),
        ("cch=a1b2c;", [("id", "a1b2c")]),
        ("v2 of it", [("number", "v2")]),
    ],
)
def test_marks(text: str, marks: list[tuple[str, str]]) -> None:
    found = [(kind, part.rstrip(".")) for kind, part in marked(text)]

    assert found == marks


def test_the_header_is_one_mark_to_the_end_of_its_line() -> None:
    header = "x-anthropic-billing-header: cc_version=2.1.36.a3f; cch=00ab1;"

    assert marked(f"At 7:00\n{header}\nIt is 8:00") == [
        ("time", "7:00"),
        ("attribution-header", header),
        ("time", "8:00"),
    ]


def test_marks_are_bounded() -> None:
    assert len(find_marks("7:00 " * MAX_MARKS * 2)) == MAX_MARKS
    assert find_marks("x" * MARKED_CHARS + " 7:00") == ()


def test_a_long_word_of_digits_and_letters_is_marked_once() -> None:
    assert len(find_marks("1a" * 30_000)) == 1


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("7:00 is 12 and 13", "7:00 is 12 and 14", "number"),
        ("7:00 is 12 and 13", "7:01 is 12 and 13", "time"),
        ("7:00 is 12 and 13", "7:00 is 12 and 13", None),
        ("7:00 is 12 and 13", "a1b2c3 is 12", None),
        ("7:00 is now", "now it is", None),
    ],
)
def test_kind_of_what_differs(old: str, new: str, kind: str | None) -> None:
    assert kind_at(find_marks(new), find_marks(old), 0, 20) == kind


def test_what_differs_elsewhere_does_not_count() -> None:
    assert kind_at(find_marks("7:00 is 12"), find_marks("7:00 is 13"), 0, 7) is None
