from slowtok.proxy.runtime.bounded_map import BoundedMap


def filled(most: int, *keys: str) -> BoundedMap[str, int]:
    found: BoundedMap[str, int] = BoundedMap(most)
    for number, key in enumerate(keys):
        found[key] = number
    return found


def test_the_oldest_makes_room() -> None:
    assert list(filled(2, "a", "b", "c")) == ["b", "c"]


def test_what_is_set_again_becomes_the_newest() -> None:
    assert filled(2, "a", "b", "a", "c") == {"a": 2, "c": 3}


def test_what_is_looked_up_stays_as_old_as_it_was() -> None:
    found = filled(2, "a", "b")
    assert found["a"] == found.get("a") == 0
    found["c"] = 2

    assert "a" not in found


def test_a_default_is_an_entry_like_others() -> None:
    found = filled(2, "a", "b")
    assert found.setdefault("c", 9) == 9

    assert list(found) == ["b", "c"]
