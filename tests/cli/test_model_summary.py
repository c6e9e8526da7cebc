"""What people are told of a model's configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.models.test_registry import LLAMA
from unicorn_async.cli.model_summary import config_lines
from unicorn_async.models.blocks.gated_ffn import GatedFFN
from unicorn_async.models.registry import model_spec


@dataclass(frozen=True, slots=True)
class Mixture(GatedFFN):
    """A kind of FFN that the summary has never heard of."""

    @property
    def summary(self) -> str:
        return f"8 experts of {self.intermediate_size}"


def test_each_kind_of_block_says_what_is_told_of_it() -> None:
    spec = model_spec(LLAMA)
    first, last = spec.layers
    attention, ffn = last.blocks
    assert isinstance(ffn, GatedFFN)
    mixture = Mixture(ffn.hidden_size, 96, ffn.activation, ffn.norm)
    mixed = replace(spec, layers=(first, replace(last, blocks=(attention, mixture))))
    (line,) = (line for line in config_lines(mixed) if line.startswith("hidden size"))
    assert line == f"hidden size    {spec.hidden_size}, FFN {ffn.intermediate_size} (silu), 8 experts of 96"
