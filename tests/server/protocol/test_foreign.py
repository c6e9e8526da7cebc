"""Fields of other servers' requests: what changes nothing is taken, all else refused with the way to do it here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unicorn_async.sampling_params import SamplingParams
from unicorn_async.server.protocol.chat_request import parse_chat_request
from unicorn_async.server.protocol.completion_request import parse_completion_request
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.fields import Fields
from unicorn_async.server.protocol.foreign import FOREIGN, IN_RESPONSES, OF_CHAT
from unicorn_async.server.protocol.responses_request import parse_responses_request

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULTS = SamplingParams(top_k=5, seed=7)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
APIS: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
    (parse_chat_request, CHAT, {**FOREIGN, **OF_CHAT}),
    (parse_completion_request, {"prompt": "Hi"}, FOREIGN),
    (parse_responses_request, {"input": "Hi"}, IN_RESPONSES),
]


def parsed(parse: Callable[..., Any], body: dict[str, Any], **more: object) -> Any:
    return parse(Fields({**body, **more}), defaults=DEFAULTS)


@pytest.mark.parametrize(("parse", "body", "known"), APIS)
def test_what_is_done_anyhow_changes_nothing(
    parse: Callable[..., Any], body: dict[str, Any], known: dict[str, Any]
) -> None:
    plain = parsed(parse, body)
    for name, field in known.items():
        for value in (None, *field.neutral):
            assert parsed(parse, body, **{name: value}) == plain


@pytest.mark.parametrize(("parse", "body", "known"), APIS)
def test_all_else_is_refused_with_the_way_to_do_it(
    parse: Callable[..., Any], body: dict[str, Any], known: dict[str, Any]
) -> None:
    for name, field in known.items():
        for value in ("x", {"a": 1}, 17):
            with pytest.raises(ApiError) as refused:
                parsed(parse, body, **{name: value})
            assert (refused.value.param, refused.value.code) == (name, "unsupported_value")
            assert field.way in str(refused.value)
            assert repr(value) in str(refused.value)


def test_the_way_is_one_that_the_api_has() -> None:
    for (parse, body, _), wanted in zip(APIS, ("response_format", "response_format", "text.format"), strict=True):
        for name in ("json_schema", "guided_json"):
            with pytest.raises(ApiError, match=f"{wanted} of type json_schema"):
                parsed(parse, body, **{name: {}})


@pytest.mark.parametrize("value", [1, 0, "true"])
def test_a_number_is_no_boolean_nor_the_other_way_round(value: object) -> None:
    for name, wrong in (("use_beam_search", value), ("length_penalty", True), ("mirostat", False)):
        with pytest.raises(ApiError, match=name):
            parsed(parse_chat_request, CHAT, **{name: wrong})


def test_an_unknown_role_is_told_all_that_there_are() -> None:
    with pytest.raises(ApiError, match="one of system, developer, user, assistant, tool, got 'x'"):
        parsed(parse_chat_request, {}, messages=[{"role": "x", "content": "y"}])


@pytest.mark.parametrize(("parse", "body", "known"), APIS)
def test_minus_one_is_no_filter_and_any_seed(
    parse: Callable[..., Any], body: dict[str, Any], known: dict[str, Any]
) -> None:
    sampling = parsed(parse, body, top_k=-1, seed=-1).sampling
    assert (sampling.top_k, sampling.seed) == (0, None)
    assert parsed(parse, body).sampling.seed == 7


def test_llama_servers_name_for_the_limit_of_tokens_is_one_too() -> None:
    for parse, body, _ in APIS[:2]:
        limits = [parsed(parse, body, **more).max_tokens for more in ({"n_predict": 5}, {"n_predict": -1})]
        assert limits == [5, None]
        assert parsed(parse, body, n_predict=-1, max_tokens=3).max_tokens == 3
    assert parsed(parse_completion_request, {"prompt": "Hi"}).max_tokens == 16


@pytest.mark.parametrize(
    ("api", "limits", "param"),
    [
        (0, {"max_completion_tokens": 6, "max_tokens": 5}, "max_tokens"),
        (0, {"max_tokens": 8, "n_predict": 4}, "n_predict"),
        (1, {"max_tokens": 8, "n_predict": 4}, "n_predict"),
        (1, {"max_tokens": 0, "echo": True, "n_predict": 4}, "n_predict"),
    ],
)
def test_limits_that_differ_are_refused(api: int, limits: dict[str, Any], param: str) -> None:
    parse, body, _ = APIS[api]
    with pytest.raises(ApiError, match=f"{param}: expected .*, got {limits[param]}") as refused:
        parsed(parse, body, **limits)
    assert refused.value.param == param
    agreeing = {name: 7 for name in limits if name != "echo"}
    assert parsed(parse, body, **agreeing).max_tokens == 7


def test_the_documents_list_them() -> None:
    text = (Path(__file__).parents[3] / "docs/serving.md").read_text()
    assert [name for name in (*FOREIGN, *OF_CHAT) if f"`{name}" not in text] == []
