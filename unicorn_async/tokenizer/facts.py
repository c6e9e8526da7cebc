"""What a tokenizer knows beside the rules by which it encodes: small, and fit to be sent to another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import AddedToken, pre_tokenizers

from unicorn_async.tokenizer.conversation import TemplateSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tokenizers

    from unicorn_async.tokenizer.files import TokenizerFiles


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A control token's string, and whether it swallows the space beside it."""

    content: str
    lstrip: bool
    rstrip: bool


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """`control` are the control tokens by id, `prefix` what begins a text, `suffix` what ends one that nothing follows.

    Ids are below `num_ids`, not all of which need be tokens; those of tokens that were added to a vocabulary, or are
    marked in it, are `added_ids`. `puts_space_once` says that the encoder puts a space in front of a text that has none
    there.
    """

    vocab_size: int
    num_ids: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    prefix: tuple[int, ...]
    control: Mapping[int, ControlToken]
    chat_template: str | None
    special_tokens: Mapping[str, str]
    puts_space_once: bool
    suffix: tuple[int, ...] = ()
    added_ids: tuple[int, ...] = ()

    def template_source(self, text: str) -> TemplateSource:
        """Return a chat template with what it has to know of the tokens."""
        return TemplateSource(text, self.special_tokens, tuple(token.content for token in self.control.values()))


def facts_of(backend: tokenizers.Tokenizer, files: TokenizerFiles) -> TokenizerFacts:
    """Gather the facts, and make every control token special in the backend."""
    backend.no_truncation()
    backend.no_padding()
    named_eos = _id_of(backend, files.special_tokens.get("eos_token"))
    eos_token_ids = tuple(dict.fromkeys([*files.eos_token_ids, *([] if named_eos is None else [named_eos])]))
    control = _mark_control_tokens(backend, files.control_strings, eos_token_ids)
    added = backend.encode("", add_special_tokens=True).ids
    bos = _id_of(backend, files.special_tokens.get("bos_token"))
    first_added = next((token_id for token_id in added if token_id not in eos_token_ids), None)
    bos_token_id = first_added if bos is None else bos
    wants_bos = bos_token_id in added if files.add_bos is None else files.add_bos
    vocab_size = backend.get_vocab_size(with_added_tokens=True)
    added_ids = tuple(sorted(backend.get_added_tokens_decoder()))
    return TokenizerFacts(
        vocab_size=vocab_size,
        num_ids=max([vocab_size, *(token_id + 1 for token_id in added_ids[-1:])]),
        eos_token_ids=eos_token_ids,
        bos_token_id=bos_token_id,
        prefix=(bos_token_id,) if wants_bos and bos_token_id is not None else (),
        control={i: ControlToken(token.content, token.lstrip, token.rstrip) for i, token in control.items()},
        chat_template=files.chat_template,
        special_tokens=files.special_tokens,
        puts_space_once=_puts_space_once(backend),
        suffix=(named_eos,) if files.add_eos and named_eos is not None else _suffix(backend),
        added_ids=added_ids,
    )


def _suffix(backend: tokenizers.Tokenizer) -> tuple[int, ...]:
    """What the tokenizer puts behind a text; it is found behind one that has a token at least."""
    plain, whole = (backend.encode("a", add_special_tokens=added).ids for added in (False, True))
    first = next((start for start in range(len(whole)) if whole[start : start + len(plain)] == plain), len(whole))
    return tuple(whole[first + len(plain) :])


def _puts_space_once(backend: tokenizers.Tokenizer) -> bool:
    first = backend.pre_tokenizer
    return isinstance(first, pre_tokenizers.Metaspace) and first.prepend_scheme == "first"


def _id_of(backend: tokenizers.Tokenizer, token: str | None) -> int | None:
    return None if token is None else backend.token_to_id(token)


def _mark_control_tokens(
    backend: tokenizers.Tokenizer, strings: frozenset[str], eos_token_ids: tuple[int, ...]
) -> dict[int, AddedToken]:
    """Make every control token special in the backend, which then parses none of them in plain text."""
    added = backend.get_added_tokens_decoder()
    wanted = {token_id for text in strings if (token_id := backend.token_to_id(text)) is not None}
    wanted.update(token_id for token_id in eos_token_ids if backend.id_to_token(token_id) is not None)
    new: list[AddedToken] = []
    for token_id in wanted:
        token = added.get(token_id)
        if token is None:
            new.append(AddedToken(backend.id_to_token(token_id), special=True, normalized=False))
        elif not token.special:
            token.special = True
            new.append(token)
    backend.add_special_tokens(new)  # at once: the library looks through all of them at every call
    return {token_id: token for token_id, token in backend.get_added_tokens_decoder().items() if token.special}
