"""Grammars against a vocabulary: what may come next, and what is refused."""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from array import array

import jsonschema
import pytest

from unicorn_async.errors import GrammarError
from unicorn_async.grammar import MAX_GRAMMAR_CHARS, Grammar
from unicorn_async.guidance.matchers import Matchers, _explained
from unicorn_async.guidance.vocabulary import Vocabulary

from .schemas import SCHEMAS

WORDS = [
    b"true",
    b"false",
    b"null",
    b'{"',
    b'":',
    b'", "',
    b'"}',
    b"]}",
    b"name",
    b"12",
    b" the",
    b"\n  ",
    b"ab",
    b"ab",
]
EOS, TURN = 256 + len(WORDS), 257 + len(WORDS)


def made_vocabulary(size: int = 300) -> Vocabulary:
    """Every byte, some longer tokens, two end tokens, a control token, and logits of tokens that there are not."""
    pieces = [*(bytes((byte,)) for byte in range(256)), *WORDS, b"<eos>", b"<turn>", b"<call>"]
    data, ends = bytearray(), array("Q")
    for piece in pieces:
        data += piece
        ends.append(len(data))
    control = {EOS: "<eos>", TURN: "<turn>", TURN + 1: "<call>"}
    return Vocabulary(bytes(data), ends, control, (EOS, TURN), size)


@pytest.fixture(scope="module")
def matchers() -> Matchers:
    return Matchers(made_vocabulary())


def ids_of(mask: bytes) -> list[int]:
    return [index for index in range(len(mask) * 8) if mask[index // 8] >> (index % 8) & 1]


def generated(matchers: Matchers, grammar: Grammar, seed: int, *, most: int = 400) -> bytes | None:
    """An answer of tokens drawn at random among those that may come, mostly short ones; None if it does not end."""
    rng, tokens, text = random.Random(seed), made_vocabulary().tokens(), b""
    mask = matchers.open(seed, grammar)
    try:
        for count in range(most):
            ids = ids_of(mask)
            ends = [token_id for token_id in ids if token_id in (EOS, TURN)]
            closing = [token_id for token_id in ids if tokens[token_id][-1:] in b'"}]'] if rng.random() < 0.5 else []
            token_id = rng.choice(ends or closing or ids) if count > most // 8 else rng.choice(ids)
            if token_id in (EOS, TURN):
                return text
            assert token_id < len(tokens)
            text += tokens[token_id]
            mask = matchers.advance(seed, [token_id]).mask
    finally:
        matchers.close(seed)
    return None


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_is_valid(matchers: Matchers, name: str) -> None:
    schema, num_ended = SCHEMAS[name], 0
    grammar = Grammar.json_schema(schema)
    for seed in range(12):
        text = generated(matchers, grammar, seed)
        if text is None:
            continue
        num_ended += 1
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    assert num_ended > 0, "none came to an end"


def test_masks_that_are_foreseen_are_those_that_come(matchers: Matchers) -> None:
    rng, num_foreseen = random.Random(5), 0
    for schema in SCHEMAS.values():
        grammar, tokens = Grammar.json_schema(schema), list[int]()
        matchers.open(1, grammar)
        matchers.open(2, grammar)
        masks = matchers.advance(1, [])
        for _ in range(20):
            token = rng.choice(ids_of(masks.mask))
            if token in (EOS, TURN):
                break
            masks = matchers.advance(1, [token], rng.choices([*b' "}1,', 256, 260], k=2), 5)
            assert masks.mask == matchers.advance(2, [token]).mask
            tokens.append(token)
            num_foreseen += len(masks.foreseen)
            matchers.open(3, grammar)
            matchers.advance(3, tokens)
            for foreseen, mask in masks.foreseen:
                assert matchers.advance(3, [foreseen]).mask == mask
    assert num_foreseen > 100
    for key in (1, 2, 3):
        matchers.close(key)


def test_what_is_forced_is_foreseen_in_the_longest_tokens(matchers: Matchers) -> None:
    grammar = Grammar.regex('x(\\{"name":"[ab]+"\\}|y)')
    matchers.open(1, grammar)
    assert matchers.advance(1, [ord("x")], [], 9).foreseen == ()  # two texts may follow
    found = matchers.advance(1, [ord("{")], [], 9).foreseen
    assert [token for token, _ in found] == [ord('"'), 256 + WORDS.index(b"name"), 256 + WORDS.index(b'":'), ord('"')]
    assert ids_of(found[-1][1]) == [97, 98, 256 + WORDS.index(b"ab"), 256 + len(WORDS) - 1]
    text = [*b'"na', *b'me"']  # as the model itself has cut it before
    found = matchers.advance(1, [], text, 9).foreseen
    assert [token for token, _ in found] == [*text, ord(":"), ord('"')]
    matchers.advance(1, [*b'"name":"a'])
    last = matchers.advance(1, [ord('"')], [], 9).foreseen
    assert [token for token, _ in last] == [ord("}")]  # and no end token behind it
    matchers.close(1)


def test_limits_that_a_foreseen_token_runs_into_are_no_error(matchers: Matchers) -> None:
    matchers.open(1, Grammar.regex("a[^a]"))
    found = matchers.advance(1, [97], [255, 97, 400], 3)  # no byte of a character, what may not come, no token
    assert found.foreseen == ()
    assert 98 in ids_of(found.mask)
    matchers.close(1)


def test_only_end_tokens_may_follow_the_end(matchers: Matchers) -> None:
    mask = matchers.open(1, Grammar.choice(["true"]))
    assert [made_vocabulary().tokens()[token_id] for token_id in ids_of(mask)] == [b"t", b"true"]
    for token_id in (256, EOS, EOS):
        mask = matchers.advance(1, [token_id]).mask
        assert ids_of(mask) == [EOS, TURN]
    matchers.close(1)
    assert len(mask) == 40  # of 300 logits, in whole words


def test_tokens_of_equal_text_may_come_alike_and_those_without_any_never(matchers: Matchers) -> None:
    ids = ids_of(matchers.open(1, Grammar.regex("(ab|.)*")))
    assert {256 + WORDS.index(b"ab"), 256 + len(WORDS) - 1} <= set(ids)
    assert max(ids) < TURN + 1  # neither the other control token nor what is no token
    matchers.close(1)


def test_a_control_token_comes_where_the_grammar_names_it(matchers: Matchers) -> None:
    assert ids_of(matchers.open(1, Grammar.lark(f"start: <[{TURN + 1}]> /[a-c]/"))) == [TURN + 1]
    assert ids_of(matchers.advance(1, [TURN + 1]).mask) == [97, 98, 99]
    matchers.close(1)


def test_white_space_comes_to_an_end(matchers: Matchers) -> None:
    grammar = Grammar.json_schema({"type": "array", "items": {"const": 1}, "minItems": 1})
    matchers.open(1, grammar)
    for token in b"[\n":
        mask = matchers.advance(1, [token]).mask
    for _ in range(32):
        mask = matchers.advance(1, [32]).mask
    assert ids_of(mask) == [ord("1")]
    matchers.close(1)


def test_keywords_that_are_not_known_are_refused_in_strict_schemas_alone(matchers: Matchers) -> None:
    schema = {"type": "string", "not": {"const": "a"}}
    with pytest.raises(GrammarError, match="not"):
        matchers.compile(Grammar.json_schema(schema))
    matchers.compile(Grammar.json_schema(schema, strict=False))


OPEN = {"type": "object", "patternProperties": {"^a$": {"const": 1}}, "additionalProperties": False}


def test_strict_schemas_may_not_ask_for_more_keys_than_are_sure_to_differ(matchers: Matchers) -> None:
    for schema in (
        {**OPEN, "minProperties": 2},
        {"type": "array", "items": {"type": "object", "minProperties": 3, "properties": {"a": {}}, "required": ["a"]}},
        {"$defs": {"minProperties": {"minProperties": 2}}, "$ref": "#/$defs/minProperties"},
    ):
        with pytest.raises(GrammarError, match=r"minProperties: [23] can't be held to"):
            matchers.compile(Grammar.json_schema(schema))
        matchers.compile(Grammar.json_schema(schema, strict=False))
    named = {"a": {"const": 1}, "b": {"const": 2}}
    for schema in (
        {**OPEN, "minProperties": 1},
        {"type": "object", "properties": named, "required": ["a", "b"], "minProperties": 3},
        {"const": {"minProperties": 9}},
    ):
        matchers.compile(Grammar.json_schema(schema))


def test_what_the_library_says_is_told_in_words() -> None:
    told = _explained("Parser Error: Current row has 10001 items")
    assert told == "the grammar is too complex (Current row has 10001 items)"
    assert "nothing can follow here" in _explained("NoExtensionBias")
    assert _explained("No rule is named x") == "No rule is named x"


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        (Grammar.json_schema({"not": {}}), r'Unimplemented keys: ["not"]'),
        (Grammar.json_schema({"$ref": "#/x"}, strict=False), "Pointer '/x' does not exist"),
        (Grammar.regex("a("), 'invalid regex "a(" (in regex): regex parse error: a( ^ error: unclosed group'),
        (Grammar.lark('start: "a" b\nb: c'), 'line 2, column 4: unknown name: "c"'),
    ],
)
def test_what_is_wrong_is_told_of_what_the_client_sent(matchers: Matchers, grammar: Grammar, told: str) -> None:
    with pytest.raises(GrammarError) as refused:
        matchers.compile(grammar)
    assert str(refused.value) == told


def test_one_of_many_texts_comes_and_one_may_go_on_as_another(matchers: Matchers) -> None:
    texts = [f"t {number}" for number in range(10_000)]
    mask = matchers.open(1, Grammar.choice(texts))
    for byte in b"t 12":
        assert byte in ids_of(mask)
        mask = matchers.advance(1, [byte]).mask
    assert ids_of(mask) == [*b"0123456789", 256 + WORDS.index(b"12"), EOS, TURN]
    for byte in b"34":
        mask = matchers.advance(1, [byte]).mask
    assert ids_of(mask) == [EOS, TURN]
    matchers.close(1)


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '{"type":"null"}' + "}" * depth


HOSTILE = {
    "deep": Grammar.json_schema(nested(4000)),
    "circle": Grammar.json_schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
    "many properties": Grammar.json_schema({"properties": {f"p{n}": {"type": "string"} for n in range(4000)}}),
    "many values": Grammar.json_schema({"enum": [f"value {n}" for n in range(8000)]}),
    "long array": Grammar.json_schema({"minItems": 10**9, "items": {"minItems": 10**9, "type": "array"}}),
    "long text": Grammar.json_schema({"type": "string", "minLength": 10**6, "maxLength": 10**9}),
    "all of any of": Grammar.json_schema(
        {"allOf": [{"anyOf": [{"properties": {f"x{i}{j}": {"type": "string"}}} for j in range(9)]} for i in range(9)]}
    ),
    "doubling": Grammar.json_schema(
        {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}},
        }
    ),
    "pattern": Grammar.json_schema({"type": "string", "pattern": "^(a+)+(b{1,5000}c?){5000}$"}),
    "far away": Grammar.json_schema({"$ref": "http://localhost:1/schema.json"}),
    "no number": Grammar.json_schema({"type": "number", "multipleOf": 1e-300}),
    "deep regex": Grammar.regex("(" * 30000 + "a" + ")" * 30000),
    "powers": Grammar.regex("((((a{1,100}){1,100}){1,100}){1,100}){1,100}"),
    "backtracking": Grammar.regex("(.*a){0,30}.{1000}(x|.*y){100}"),
    "many branches": Grammar.regex("|".join("a" * n for n in range(500))),
    "deep lark": Grammar.lark("start: " + "(" * 30000 + '"a"' + ")" * 30000),
    "left recursion": Grammar.lark('start: start start | "a" |'),
    "many rules": Grammar.lark(
        "start: " + " ".join(f"r{n}" for n in range(3000)) + "\n" + "\n".join(f'r{n}: "{n}"' for n in range(3000))
    ),
    "long rule": Grammar.lark('start: a{1000000}\na: "x"{1000000} b\nb: "y"'),
    "other options": Grammar.lark('%llguidance {"no_forcing": 5}\nstart: "a"'),
    "null": Grammar.regex("\0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused_or_followed_and_take_no_time(matchers: Matchers, name: str) -> None:
    started = time.thread_time()
    try:
        text = generated(matchers, HOSTILE[name], 1, most=30)
    except GrammarError as exc:
        assert 0 < len(str(exc)) < 400
        assert "panic" not in str(exc)
    else:
        assert text is None or len(text) < 400
    assert time.thread_time() - started < 60  # of the processor, more of it on a busy machine


def test_sizes_are_bounded() -> None:
    with pytest.raises(GrammarError, match=f"at most {MAX_GRAMMAR_CHARS} characters, got {MAX_GRAMMAR_CHARS + 1}"):
        Grammar.regex("a" * (MAX_GRAMMAR_CHARS + 1))
    with pytest.raises(GrammarError, match="none of them empty"):
        Grammar.choice(["a", ""])
    with pytest.raises(GrammarError, match="at least one character"):
        Grammar.lark("")
    with pytest.raises(GrammarError, match="not JSON"):
        Grammar.json_schema({"const": float("nan")})


def test_what_was_compiled_last_is_kept_and_answers_are_forgotten() -> None:
    matchers, grammar = Matchers(made_vocabulary()), Grammar.choice(["text"])
    for number in range(40):
        matchers.open(number, grammar)
    assert len(matchers) == 40
    assert matchers.compile(grammar) is matchers.compile(Grammar.choice(["text"]))
    found = [sys.getrefcount(matcher) for matcher in matchers._matchers.values()]
    assert set(found) == {found[0]}
    for number in range(40):
        matchers.close(number)
    gc.collect()
    assert len(matchers) == 0
    with pytest.raises(GrammarError, match="has ended"):
        matchers.advance(3, [5])


def test_a_vocabulary_without_an_end_has_no_grammars() -> None:
    with pytest.raises(GrammarError, match="no token that ends an answer"):
        Matchers(made_vocabulary()._replace(eos_token_ids=(400,)))
