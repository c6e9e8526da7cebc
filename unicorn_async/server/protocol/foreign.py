"""Fields of vLLM's and llama-server's requests that this server has no use for, or calls otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unicorn_async.server.protocol.fields import Fields


class Foreign(NamedTuple):
    """The values with which a field asks for what is done anyhow, null beside them; and what to do for others."""

    neutral: tuple[object, ...]
    way: str


_NO_BEAMS = "there is no beam search; n gives several answers, best_of of /v1/completions the likeliest of them"
_NO_FILTER = "there is no such filter; temperature, top_k, top_p and min_p there are"
_NO_IDS = "answers are text; /tokenize returns ids"
FOREIGN: dict[str, Foreign] = {
    # vLLM's
    "allowed_token_ids": Foreign((), "structured_outputs says what an answer may be, logit_bias -100 bans a token"),
    "bad_words": Foreign(([],), "logit_bias -100 bans a token"),
    "detokenize": Foreign((True,), _NO_IDS),
    "early_stopping": Foreign((False,), _NO_BEAMS),
    "guided_choice": Foreign((), "is structured_outputs.choice now"),
    "guided_decoding_backend": Foreign((), "there is one way to follow a grammar"),
    "guided_grammar": Foreign((), "is structured_outputs.grammar now, which takes Lark"),
    "guided_json": Foreign((), "is structured_outputs.json now, or response_format of type json_schema"),
    "guided_regex": Foreign((), "is structured_outputs.regex now"),
    "guided_whitespace_pattern": Foreign((), "white space between JSON's tokens is a space or a line's end"),
    "include_stop_str_in_output": Foreign((False,), "an answer ends before its stop string"),
    "length_penalty": Foreign((1,), _NO_BEAMS),
    "priority": Foreign((0,), "clients take turns"),
    "prompt_logprobs": Foreign((), "log-probabilities are those of the answer"),
    "return_token_ids": Foreign((False,), _NO_IDS),
    "return_tokens_as_token_ids": Foreign((False,), _NO_IDS),
    "skip_special_tokens": Foreign((True,), "control tokens are no part of an answer's text"),
    "spaces_between_special_tokens": Foreign((True, False), ""),
    "truncate_prompt_tokens": Foreign((), "a prompt is not cut; truncation of the Responses API leaves out old turns"),
    "use_beam_search": Foreign((False,), _NO_BEAMS),
    # llama-server's
    "cache_prompt": Foreign((True,), "what prompts have in common is kept for all, or with --no-prefix-cache for none"),
    "dry_multiplier": Foreign((0,), "repetition_penalty, presence_penalty and frequency_penalty there are"),
    "dynatemp_range": Foreign((0,), _NO_FILTER),
    "grammar": Foreign(("",), "structured_outputs.grammar takes Lark, structured_outputs.regex a regular expression"),
    "id_slot": Foreign((-1,), "there are no slots; prompts that begin alike find each other"),
    "json_schema": Foreign((), "response_format of type json_schema takes it, or structured_outputs.json"),
    "mirostat": Foreign((0,), _NO_FILTER),
    "n_probs": Foreign((0,), "logprobs tells how likely tokens were"),
    "post_sampling_probs": Foreign((False,), "log-probabilities are those before temperature and filters"),
    "repeat_penalty": Foreign((1,), "is repetition_penalty here"),
    "return_progress": Foreign((False,), "a stream shows a sign of life while a prompt is read"),
    "slot_id": Foreign((-1,), "there are no slots; prompts that begin alike find each other"),
    "timings_per_token": Foreign((False,), "/metrics has times, `unicorn.watch` over the websocket those of steps"),
    "typical_p": Foreign((1,), _NO_FILTER),
    "xtc_probability": Foreign((0,), _NO_FILTER),
}
_NO_BEAMS_AT_ALL = "there is no beam search; n of chat completions gives several answers"
IN_RESPONSES: dict[str, Foreign] = {
    **FOREIGN,
    "early_stopping": Foreign((False,), _NO_BEAMS_AT_ALL),
    "guided_json": Foreign((), "is structured_outputs.json now, or text.format of type json_schema"),
    "json_schema": Foreign((), "text.format of type json_schema takes it, or structured_outputs.json"),
    "length_penalty": Foreign((1,), _NO_BEAMS_AT_ALL),
    "n_probs": Foreign((0,), "top_logprobs tells how likely tokens were"),
    "truncate_prompt_tokens": Foreign((), "a prompt is not cut; truncation leaves out old turns"),
    "use_beam_search": Foreign((False,), _NO_BEAMS_AT_ALL),
}
OF_CHAT: dict[str, Foreign] = {
    "add_special_tokens": Foreign((False,), "the chat template puts control tokens where they belong"),
    "best_of": Foreign((1,), "is of /v1/completions alone; n gives several answers"),
    "chat_template": Foreign((), "the model's own is used; /v1/completions continues a text of any form"),
    "documents": Foreign(([],), "put them into a message"),
    "echo": Foreign((False,), "is of /v1/completions alone; continue_final_message goes on with a message"),
    "include_reasoning": Foreign((True,), "reasoning_effort none keeps a model from thinking"),
}


def refuse_foreign(fields: Fields, known: Mapping[str, Foreign] = FOREIGN) -> None:
    """Refuse what is asked for by other servers' names, and say how to ask for it here.

    Raises:
        ApiError: with the field's name.
    """
    for key, (neutral, way) in known.items():
        value = fields.value(key)
        if value is not None and not any(_is_same(value, one) for one in neutral):
            raise fields.unsupported(key, f"{way or 'expected true or false'}; got {value!r}"[:300])


def _is_same(value: object, other: object) -> bool:
    """Whether both mean the same in JSON, where true is no 1."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)
