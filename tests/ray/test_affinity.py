"""Where requests belong: by how they begin, and by what they go on from."""

from __future__ import annotations

import pytest

from unicorn_async.ray.affinity import Places, at_replica, beginning, response_names, wanted_replica

LONG = "You are a careful assistant. " * 100
FIRST = {"role": "user", "content": "What is Vulkan?"}
AGAIN = [{"role": "assistant", "content": "An API."}, {"role": "user", "content": "Whose?"}]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"messages": [FIRST]}, {"messages": [FIRST, *AGAIN]}),
        ({"input": [FIRST]}, {"input": [FIRST, *AGAIN], "temperature": 0}),
        ({"instructions": LONG, "input": "a"}, {"instructions": LONG, "input": "b"}),
        ({"prompt": LONG + "a"}, {"prompt": LONG + "b"}),
        (
            {"messages": [{"role": "system", "content": LONG}, FIRST]},
            {"messages": [{"content": LONG, "role": "system"}]},
        ),
    ],
)
def test_what_begins_alike_belongs_together(one: dict[str, object], other: dict[str, object]) -> None:
    assert beginning(one, "") == beginning(other, "")


@pytest.mark.parametrize(
    "other",
    [
        {"input": "Hello there"},
        {"input": "Hello", "model": "other"},
        {"input": "Hello", "instructions": "Be brief."},
        {"input": "Hello", "tools": [{"type": "function", "name": "look"}]},
        {"input": "Hello", "prompt_cache_key": "mine"},
        {"input": [{"role": "user", "content": "\ud800"}]},
    ],
)
def test_what_begins_otherwise_may_belong_elsewhere(other: dict[str, object]) -> None:
    assert beginning(other, "") != beginning({"input": "Hello"}, "")


def test_clients_that_share_no_prefixes_share_no_place() -> None:
    assert beginning({"input": "Hello"}, "key ann") != beginning({"input": "Hello"}, "key bob")


def test_a_beginning_is_as_long_as_wanted() -> None:
    one, other = {"input": "Hello Ann"}, {"input": "Hello Bob"}
    assert beginning(one, "", 6) == beginning(other, "", 6)
    assert beginning(one, "", 7) != beginning(other, "", 7)


def test_a_response_s_name_tells_its_replica() -> None:
    assert Places().replica(response_names("ab12cd34") + 32 * "0") == "ab12cd34"
    assert wanted_replica(at_replica("ab12cd34")) == "ab12cd34"
    assert wanted_replica(beginning({}, "")) is None


def test_of_names_that_clients_chose_those_seen_last_are_remembered() -> None:
    places = Places(max_names=2)
    for number in range(3):
        places.note(f"resp_{number:032x}", f"replica{number}")
    found = [places.replica(f"resp_{number:032x}") for number in range(3)]
    assert found == [None, "replica1", "replica2"]
