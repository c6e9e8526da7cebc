"""What a request says beside what is to be answered: hints and bookkeeping, each checked, and told again where OpenAI
does so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from unicorn_async.server.protocol.fields import Fields

# No token of an answer depends on these: prompts that begin alike are found without, there is one way of serving, and
# there are no calls of built-in tools to count.
SHARED_HINTS = frozenset(
    {
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
RESPONSES_HINTS = SHARED_HINTS | {"client_metadata", "max_tool_calls"}
SERVICE_TIERS = ("auto", "default", "fast", "flex", "priority", "scale", "ultrafast")
SERVED_TIER = "default"  # whichever was asked for
INCLUDABLE = (
    "message.output_text.logprobs",
    # of reasoning, which is there as text, and of items that this server never makes
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
MAX_NAME = 512
MAX_TOOL_CALLS = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Hints:
    """The hints that a Response object tells again."""

    max_tool_calls: int | None = None
    parallel_tool_calls: bool = True
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the fields of the object."""
        return {
            "max_tool_calls": self.max_tool_calls,
            "parallel_tool_calls": self.parallel_tool_calls,
            "prompt_cache_key": self.prompt_cache_key,
            "prompt_cache_retention": self.prompt_cache_retention,
            "safety_identifier": self.safety_identifier,
            "service_tier": SERVED_TIER,
            "user": self.user,
        }


def parse_hints(fields: Fields) -> Hints:
    """Check the hints that both APIs have.

    Raises:
        ApiError: a value of the wrong type, or none of those that the API knows.
    """
    fields.choice("service_tier", SERVICE_TIERS)
    cache = fields.object("prompt_cache_options")
    if cache is not None:
        cache.refuse_unknown(("mode", "ttl"))
        cache.choice("mode", ("explicit", "implicit"))
        cache.string("ttl", max_length=MAX_NAME)
    fields.object("client_metadata")
    return Hints(
        max_tool_calls=fields.integer("max_tool_calls", 1, MAX_TOOL_CALLS),
        parallel_tool_calls=fields.boolean("parallel_tool_calls") is not False,
        prompt_cache_key=fields.string("prompt_cache_key", max_length=MAX_NAME),
        prompt_cache_retention=fields.choice("prompt_cache_retention", ("24h", "in_memory")),
        safety_identifier=fields.string("safety_identifier", max_length=MAX_NAME),
        user=fields.string("user", max_length=MAX_NAME),
    )


def parse_include(fields: Fields) -> frozenset[str]:
    """Return what a Responses request wants to have beside the text; raises as `parse_hints` does."""
    wanted = fields.array("include") or []
    for item in wanted:
        if item not in INCLUDABLE:
            raise fields.wrong("include", f"some of {', '.join(INCLUDABLE)}", code="invalid_value")
    return frozenset(item for item in wanted if isinstance(item, str))


def check_verbosity(fields: Fields) -> None:
    """Refuse a verbosity that the model would have to know of; `medium` is what it does by itself."""
    if fields.choice("verbosity", ("high", "low", "medium")) not in (None, "medium"):
        raise fields.unsupported(
            "verbosity", "this model answers with medium verbosity; say in the prompt what you want"
        )


class UsageOptions(NamedTuple):
    """Which chunks of a stream have the usage: one behind the last, or each as of then (vLLM's)."""

    at_end: bool = False
    in_each: bool = False


NO_USAGE = UsageOptions()


def parse_usage_options(fields: Fields) -> UsageOptions:
    """Return what a request's `stream_options` say of the usage; raises as `check_stream_options`."""
    options = check_stream_options(fields, ("include_usage", "continuous_usage_stats"))
    if options is None:
        return NO_USAGE
    at_end, in_each = (options.boolean(key) is True for key in ("include_usage", "continuous_usage_stats"))
    if in_each and not at_end:
        raise options.unsupported("continuous_usage_stats", "needs include_usage to be true")
    return UsageOptions(at_end, in_each)


def check_stream_options(fields: Fields, known: tuple[str, ...] = (), *, needs_stream: bool = True) -> Fields | None:
    """Return a request's `stream_options`, if it has some; obfuscation can only be off.

    Raises:
        ApiError: it asks for what is not there, or does not stream where it would have to.
    """
    options = fields.object("stream_options")
    if options is None:
        return None
    options.refuse_unknown(("include_obfuscation", *known))
    if options.boolean("include_obfuscation"):
        raise options.unsupported("include_obfuscation", "events are sent as long as they are, without obfuscation")
    if needs_stream and not fields.boolean("stream"):
        raise fields.unsupported("stream_options", "needs stream to be true")
    return options
