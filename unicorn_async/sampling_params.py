"""How the tokens of one request are chosen, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unicorn_async.converted import Converted
from unicorn_async.errors import ConfigError
from unicorn_async.grammar import Grammar
from unicorn_async.number_kinds import is_count, is_number, is_whole

MAX_TOP_LOGPROBS = 20
MAX_TOP_K = 1024
MAX_BIAS = 100.0  # magnitude of a token's bias
MAX_LOGIT_BIASES = 1024
MAX_BIASED_TOKENS = 1536  # of one request: those with a bias, and those that would end its answer too early
MAX_STOPS, MAX_STOP_CHARS = 16, 1024
_BIASES = f"up to {MAX_LOGIT_BIASES} numbers by token id, {-MAX_BIAS:g} to {MAX_BIAS:g}"
_STOPS = f"a tuple of up to {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters"


def _are_strings(values: object) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) <= MAX_STOPS
        and all(isinstance(value, str) and 0 < len(value) <= MAX_STOP_CHARS for value in values)
    )


def _are_biases(values: object) -> bool:
    if not isinstance(values, tuple) or len(values) > MAX_LOGIT_BIASES:
        return False
    pairs = (item for item in values if isinstance(item, tuple) and len(item) == 2)
    found = {key: value for key, value in pairs if is_whole(key) and key >= 0}
    return len(found) == len(values) and all(is_number(value, -MAX_BIAS, MAX_BIAS) for value in found.values())


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens of one request are chosen, and when it ends. The defaults are greedy.

    temperature 0 is greedy. `top_k` 0 and `top_p` 1 switch those filters off, as does `min_p` 0. The order is
    penalties, temperature, top-k, top-p, min-p. `repetition_penalty` (1 = off) counts prompt and output, as in
    transformers; `presence_penalty` and `frequency_penalty` (0 = off) count the output alone, as in OpenAI's API.
    `seed` None draws one. `top_logprobs` None gives no log-probabilities, 0 the chosen token's alone. Log-probabilities
    are of the model's distribution, before penalties and temperature.

    `logit_bias` has a number for each of up to 1,024 tokens, -100 to 100, which is added to the token's logit before
    anything else; -100 bans the token. Before the answer has `min_tokens` neither end tokens nor `stop_token_ids` come,
    and nothing in it is taken for a `stop` string. Log-probabilities are those after both.

    With a `grammar` only tokens are chosen with which the answer can still become what it describes: for all of the
    above, log-probabilities too, the others are not there, so that there may be fewer than `top_logprobs`.
    It goes before bans: what alone fits it comes, banned or not.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    grammar: Grammar | None = None
    min_tokens: int = 0
    logit_bias: Converted[tuple[tuple[int, float], ...], Mapping[int, float]] = Converted(())

    def __post_init__(self) -> None:
        if isinstance(self.logit_bias, Mapping):
            object.__setattr__(self, "logit_bias", tuple(self.logit_bias.items()))
        checks: tuple[tuple[str, bool, str], ...] = (
            ("max_tokens", is_count(self.max_tokens), "a whole number of at least 1"),
            ("min_tokens", is_whole(self.min_tokens) and self.min_tokens >= 0, "a whole number of at least 0"),
            ("temperature", is_number(self.temperature, 0.0, 100.0), "0 to 100"),
            ("top_k", is_whole(self.top_k) and 0 <= self.top_k <= MAX_TOP_K, f"a whole number, 0 to {MAX_TOP_K}"),
            ("top_p", is_number(self.top_p, 0.0, 1.0) and self.top_p > 0, "more than 0, at most 1"),
            ("min_p", is_number(self.min_p, 0.0, 1.0), "0 to 1"),
            (
                "repetition_penalty",
                is_number(self.repetition_penalty, 0.0, 100.0) and self.repetition_penalty > 0,
                "more than 0, at most 100",
            ),
            ("presence_penalty", is_number(self.presence_penalty, -2.0, 2.0), "-2 to 2"),
            ("frequency_penalty", is_number(self.frequency_penalty, -2.0, 2.0), "-2 to 2"),
            (
                "seed",
                self.seed is None or (is_whole(self.seed) and 0 <= self.seed < 1 << 64),
                "a whole number, 0 to 2**64 - 1",
            ),
            (
                "stop",
                _are_strings(self.stop),
                _STOPS,
            ),
            (
                "stop_token_ids",
                isinstance(self.stop_token_ids, tuple) and all(is_whole(i) and i >= 0 for i in self.stop_token_ids),
                "a tuple of token ids",
            ),
            ("ignore_eos", isinstance(self.ignore_eos, bool), "True or False"),
            (
                "top_logprobs",
                self.top_logprobs is None
                or (is_whole(self.top_logprobs) and 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS),
                f"a whole number, 0 to {MAX_TOP_LOGPROBS}",
            ),
            ("logit_bias", _are_biases(self.logit_bias), _BIASES),
            ("grammar", self.grammar is None or isinstance(self.grammar, Grammar), "a Grammar"),
        )
        for name, good, wanted in checks:
            if not good:
                raise ConfigError(f"{name}: expected {wanted}, got {getattr(self, name)!r}")

    @property
    def has_biases(self) -> bool:
        """Whether single tokens may have biases, or be banned, at one of its steps."""
        return bool(self.logit_bias) or self.min_tokens > 0

    @property
    def has_penalties(self) -> bool:
        """Whether the request needs counts of the tokens that it has seen."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
