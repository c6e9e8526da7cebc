from __future__ import annotations

from unicorn_async.server.store import ResponseStore, StoredResponse
from unicorn_async.tokenizer import ChatMessage


def entry(name: str, chars: int = 10) -> StoredResponse:
    return StoredResponse(name, "", (ChatMessage("user", "x" * chars),), 1)


def test_what_was_not_used_for_longest_goes_first() -> None:
    store = ResponseStore(2, 1000)
    store.put(entry("a"))
    store.put(entry("b"))
    assert store.get("a") is not None
    store.put(entry("c"))
    assert store.get("b") is None
    assert store.get("a") is not None
    assert len(store) == 2


def test_characters_are_bounded_too() -> None:
    store = ResponseStore(100, 25)
    for name in "abc":
        store.put(entry(name))
    assert [store.get(name) is not None for name in "abc"] == [False, True, True]
    store.put(entry("huge", 26))
    assert len(store) == 0
    store.put(entry("d"))
    assert store.get("d") is not None


def test_a_response_put_again_counts_once() -> None:
    store = ResponseStore(100, 25)
    for _ in range(10):
        store.put(entry("a"))
    store.put(entry("b"))
    assert len(store) == 2
    assert store.remove("a")
    assert not store.remove("a")
