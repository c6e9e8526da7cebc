"""Items of type `compaction`: a summary that stands for an earlier part of a conversation.

`encrypted_content` is opaque to clients, and no secret: a version, a checksum and the summary. A client may write any
summary, as it may write any message, and gains nothing by it; so there is no key, and every server of this project
reads what another has made. The checksum tells what was cut off or changed on the way.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.tokenizer import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unicorn_async.server.protocol.fields import Fields

SUMMARY = "summary"  # role of a message that stands for others; no template sees it
VERSION = "unicorn-summary-1"
MAX_SUMMARY_BYTES = 1 << 18
_MAX_CONTENT = len(VERSION) + 32 + 4 * MAX_SUMMARY_BYTES // 3
_DIGEST_CHARS = 16
_ASKED = "Summarise our conversation so far."
ITEM_FIELDS = frozenset({"created_by", "encrypted_content", "id", "type"})


def compaction_item(name: str, summary: str) -> dict[str, object]:
    """Return the item of a summary."""
    body = base64.urlsafe_b64encode(summary.encode()).decode()
    content = f"{VERSION}.{_digest(body)}.{body}"
    return {"id": name, "type": "compaction", "encrypted_content": content}


def parse_compaction_item(fields: Fields) -> ChatMessage:
    """Return the message of an item `compaction`.

    Raises:
        ApiError: no server of this project has made it, or it was changed on the way.
    """
    fields.refuse_unknown_values(ITEM_FIELDS)
    content = fields.string("encrypted_content", max_length=_MAX_CONTENT)
    if content is None:
        raise fields.wrong("encrypted_content", "a string")
    name = fields.name("encrypted_content")
    version, _, rest = content.partition(".")
    digest, _, body = rest.partition(".")
    if version != VERSION:
        message = f"{name}: expected {VERSION}.…, as this server's compactions begin, got {content[:24]!r}"
        raise ApiError(message, code="invalid_encrypted_content", param=name)
    summary = _decoded(body) if digest == _digest(body) else ""
    if not summary or len(summary) > MAX_SUMMARY_BYTES:
        message = f"{name}: {len(content)} characters that are no whole compaction"
        raise ApiError(message, code="invalid_encrypted_content", param=name)
    return ChatMessage(SUMMARY, summary)


def with_summaries(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Return a conversation as a template takes it: a summary is what the assistant said when the user asked for one.

    The user's messages right before it become one with that question, since many templates want turns.
    """
    found: list[ChatMessage] = []
    for message in messages:
        if message.role != SUMMARY:
            found.append(message)
            continue
        asked = [_ASKED]
        while found and found[-1].role == "user":
            asked.insert(0, found.pop().content)
        found += [ChatMessage("user", "\n\n".join(asked)), ChatMessage("assistant", message.content)]
    return tuple(found)


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:_DIGEST_CHARS]


def _decoded(body: str) -> str:
    try:
        return base64.b64decode(body, altchars=b"-_", validate=True).decode()
    except ValueError:  # of either
        return ""
