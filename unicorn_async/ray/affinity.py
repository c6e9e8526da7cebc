"""Which requests belong to one replica: those that begin alike, and those that go on from a response it holds.

Two texts are the session of a call, as Ray Serve's router takes it: a hash of a beginning, or a replica's name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.responses_request import RESPONSE_ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BEGINNING_CHARS = 1024  # a few hundred tokens, which is some tens of the cache's blocks
_OF_REPLICA = "replica:"
_NAME = re.compile(r"resp_([0-9a-z]{1,32})_[0-9a-f]{32}")  # that a replica chose


def response_names(replica: str) -> str:
    """Return what the names of a replica's responses begin with."""
    return f"resp_{replica}_"


def was_chosen(response_id: str) -> bool:
    """Whether a client may have given a response this name, which then tells nothing."""
    return RESPONSE_ID.fullmatch(response_id) is not None


def at_replica(replica: str) -> str:
    """Return the session of what has to go to one replica."""
    return _OF_REPLICA + replica


def wanted_replica(session: str) -> str | None:
    """Return the replica that a session names, None if it is a beginning's."""
    return session.removeprefix(_OF_REPLICA) if session.startswith(_OF_REPLICA) else None


def beginning(body: Mapping[str, object], salt: str, chars: int = BEGINNING_CHARS) -> str:
    """Return the session of a request that goes on from no stored response.

    It goes by what a prompt begins with: model and tools, instructions and the conversation up to the user's first
    message, at most so many characters of these. What a conversation gets at its end changes nothing. `salt` tells
    clients apart whose prompts share nothing; OpenAI's `prompt_cache_key` does what it does there.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (salt, body.get("prompt_cache_key"), body.get("model"), body.get("tools")):
        digest.update(_canonical(part).encode("utf-8", "surrogatepass") + b"\0")
    left = chars
    for part in _parts(body):
        text = _canonical(part)[:left]
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        left -= len(text)
        if left <= 0:
            break
    return digest.hexdigest()


def _parts(body: Mapping[str, object]) -> Iterator[object]:
    """What a prompt is made of, from its beginning."""
    yield body.get("instructions")
    for name in ("input", "messages", "prompt"):
        value = body.get(name)
        if not isinstance(value, list):
            yield value
            continue
        for item in value:
            yield item
            if isinstance(item, dict) and item.get("role") == "user":
                break


def _canonical(part: object) -> str:
    if part is None:
        return ""
    return part if isinstance(part, str) else json.dumps(part, sort_keys=True, separators=(",", ":"))


class Places:
    """Where responses are: most names tell it; of those that clients chose the ones seen last are remembered."""

    def __init__(self, max_names: int = 4096) -> None:
        self._max_names = max_names
        self._replicas: OrderedDict[str, str] = OrderedDict()

    def note(self, response_id: str, replica: str) -> None:
        """Remember where a response is."""
        if _NAME.fullmatch(response_id) is None:
            self._replicas[response_id] = replica
            self._replicas.move_to_end(response_id)
            if len(self._replicas) > self._max_names:
                self._replicas.popitem(last=False)

    def replica(self, response_id: str) -> str | None:
        """Return where a response is, or was while its replica lived; None if that is not known here."""
        named = _NAME.fullmatch(response_id)
        return named[1] if named is not None else self._replicas.get(response_id)
