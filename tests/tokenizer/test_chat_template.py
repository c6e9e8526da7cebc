"""Chat templates as hostile programs."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from unicorn_async.errors import RequestError, TokenizerError
from unicorn_async.tokenizer import ChatMessage, ToolCall
from unicorn_async.tokenizer.chat_template import ChatTemplate

MESSAGES = [ChatMessage("user", "one"), ChatMessage("assistant", "two")]


def render(source: str) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES, add_generation_prompt=True)


def test_blocks_take_their_line_ends_with_them() -> None:
    assert render("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}\nx") == (
        "user\nassistant\nx"
    )


def test_loops_know_their_position_and_can_be_left() -> None:
    source = "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}"
    assert render(source) == "1/2False 2/2True "
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}") == "02"
    assert render("{% for i in nothing %}x{% else %}none{% endfor %}") == "none"


def test_the_usual_functions_are_there() -> None:
    assert render("{{ bos_token }}{{ strftime_now('%Y') }}") == f"<s>{time.localtime().tm_year}"
    assert json.loads(render("{{ messages | tojson(indent=2) }}"))[1] == {"role": "assistant", "content": "two"}
    assert render("{{ '<ä>' | tojson }}") == '"<ä>"'
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "one"
    assert render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}")
    assert render("{% set x %}{{ 'a' }}b{% endset %}{{ x }}{% set y | upper %}c{% endset %}{{ y }}") == "abC"
    assert render("{{ 'a' ~ 1 ~ tools }}{% if add_generation_prompt %}!{% endif %}") == "a1None!"
    assert render("{{ '%s-%05d' % ('x', 7) }}{{ '%s' | format(3) }}") == "x-000073"


def test_templates_have_calls_as_objects_and_tools_by_their_names() -> None:
    call = ToolCall("call_1", "add", '{"a": [1, "ä"]}')
    messages = [ChatMessage("assistant", "", (call,)), ChatMessage("tool", "3", tool_call_id="call_1")]
    source = "{% for t in tools %}{{ t | tojson }};{% endfor %}{{ messages | tojson }}"
    tools = [{"type": "function", "function": {"name": "add"}}]
    text = ChatTemplate(source, {}).render(messages, add_generation_prompt=True, tools=tools)
    told, _, conversation = text.partition(";")
    assert json.loads(told) == tools[0]
    assert json.loads(conversation) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": [1, "ä"]}}}
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "call_1", "name": "add"},
    ]
    broken = ChatMessage("assistant", "", (ToolCall("x", "add", "no JSON"),))
    text = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments }}", {}).render(
        [broken], add_generation_prompt=True
    )
    assert text == "no JSON"


def test_thoughts_before_calls_are_for_templates_with_channels() -> None:
    source = "{% for m in messages %}[{{ m.thinking }}]{% endfor %}"
    call = (ToolCall("call_1", "add", "{}"),)
    messages = [
        ChatMessage("assistant", "", call, thoughts="Why?"),
        ChatMessage("assistant", "Well.", call, thoughts="Why?"),
        ChatMessage("assistant", "", thoughts="Why?"),
    ]
    for text, expected in ((f"{source}{{# <|channel|> #}}", "[Why?][][]"), (source, "[][][]")):
        assert ChatTemplate(text, {}).render(messages, add_generation_prompt=True) == expected
    other = source.replace("thinking", "reasoning_content")
    for text, expected in ((f"{other}{{# <|channel>thought #}}", "[Why?][Why?][]"), (other, "[][][]")):
        assert ChatTemplate(text, {}).render(messages, add_generation_prompt=True) == expected


WRITES_CALLS = {
    "xml": "{% for k, v in c.arguments|items %}<parameter={{ k }}>\n{{ v | string if v is string else v | tojson }}\n"
    "</parameter>\n{% endfor %}",
    "keyed": "{% set a = c.arguments or {} %}{% for k, v in a.items() %}<arg_key>{{ k }}</arg_key>{{ v }}{% endfor %}",
    "python": "{% for k in c.arguments %}{{ k }}={{ c.arguments[k] | tojson }}{% if not loop.last %}, {% endif %}"
    "{% endfor %}",
    "text": "{{ '```json\\n' + c.arguments + '\\n```' }}",
}
WRITTEN_CALLS = {
    "xml": '<parameter=a>\n[1]\n</parameter>\n<parameter=b>\n"x"\n\n</parameter>\n',
    "keyed": '<arg_key>a</arg_key>[1]<arg_key>b</arg_key>"x"\n',
    "python": 'a=[1], b="\\"x\\"\\n"',
    "text": '```json\n{"a": [1], "b": "\\"x\\"\\n"}\n```',
}


@pytest.mark.parametrize("form", WRITES_CALLS)
def test_templates_write_the_arguments_of_calls_one_by_one_or_as_text(form: str) -> None:
    source = f"{{% for t in messages[0].tool_calls %}}{{% set c = t.function %}}{WRITES_CALLS[form]}{{% endfor %}}"
    template = ChatTemplate(source, {})
    for arguments, text in (('{"a": [1], "b": "\\"x\\"\\n"}', WRITTEN_CALLS[form]), ("", "```json\n\n```")):
        message = ChatMessage("assistant", "", (ToolCall("call_1", "add", arguments),))
        found = template.render([message], add_generation_prompt=False)
        assert found == (text if arguments or form == "text" else "")
    if form == "xml":
        with pytest.raises(TokenizerError, match="mapping"):
            template.render([replace(message, tool_calls=(ToolCall("c", "add", "[1"),))], add_generation_prompt=False)


def test_a_refusal_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="must alternate"):
        render("{{ raise_exception('must alternate') }}")


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ unclosed", "{% nonsense %}", "{{ x | nonsense }}", "{{" + "(" * 9999]
)
def test_an_invalid_template_is_an_error_when_loading(source: str) -> None:
    with pytest.raises(TokenizerError, match="chat template"):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ 1 / 0 }}",
        "{{ undefined.attribute }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'x' %}",
    ],
)
def test_what_templates_must_not_do_is_an_error(source: str) -> None:
    with pytest.raises(TokenizerError, match="chat template"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(10000000000) %}x{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * 'a' }}",
        "{{ [1] * 10000000000 }}",
        "{{ 9 ** 999999999 }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ '%0999999999d' | format(1) }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ 'a'.ljust(9999999999) }}",
        "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aa') %}"
        "{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{% for a in range(99999) %}" + "x" * 1000 + "{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_templates_are_bounded_in_time_and_size(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unicorn_async.tokenizer.sandbox.MAX_SECONDS", 0.5)
    with pytest.raises(TokenizerError, match="chat template"):
        render(source)
