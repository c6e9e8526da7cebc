"""A model's tokenizer: text and conversations to token ids, and back."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Self, TypeVar

import tokenizers

from unicorn_async.errors import PromptTooLongError, RequestError, TokenizerError
from unicorn_async.tokenizer.apart import LONG_CHARS, Call
from unicorn_async.tokenizer.control_tokens import ControlTokens
from unicorn_async.tokenizer.conversation import Conversation
from unicorn_async.tokenizer.encoder import BackendEncoder, Encoder, WholeNeededError
from unicorn_async.tokenizer.facts import TokenizerFacts, facts_of
from unicorn_async.tokenizer.files import TokenizerFiles, check_model
from unicorn_async.tokenizer.gguf.backend import backend_of
from unicorn_async.tokenizer.gguf.vocabulary import WORLD, GgufVocabulary
from unicorn_async.tokenizer.library_errors import library_errors
from unicorn_async.tokenizer.stream_decoder import StreamDecoder
from unicorn_async.tokenizer.world_encoder import WorldEncoder
from unicorn_async.tokenizer.world_vocabulary import FILE_NAME, WorldVocabulary, gguf_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from unicorn_async.tokenizer.apart import Apart
    from unicorn_async.tokenizer.conversation import ChatText, Conversations
    from unicorn_async.tokenizer.message import ChatMessage
    from unicorn_async.tokenizer.pieces import PieceTable

_THINKING = ("<think>", "</think>")
_BRACKETS = ("[THINK]", "[/THINK]")  # Mistral's
_CHANNEL = ("<|channel>", "<channel|>")  # Gemma 4's, whose thoughts are in a channel of that name
_ANALYSIS = "<|channel|>analysis"  # gpt-oss's channel of thoughts
_SPACES = (" ", "▁")
_MAX_SPELLING_DEPTH = 32  # a control token spelled out in plain ones, which may hold another


T = TypeVar("T")


class Tokenizer:
    """Encodes and decodes by a tokenizer.json, a world vocabulary or a GGUF file's; thread-safe.

    Control tokens (those that tokenizer.json, the vocabulary or the model's configuration marks as special, and the end
    tokens) come from the chat template alone: typed by a user they are plain text. `pieces` has the tokens' bytes,
    `control_ids` the control tokens; `hidden_ids`, all of these but the marks of thoughts, are no part of a text.
    `encoder` does what the vocabulary is needed for, `apart` all that is done with long texts; who made them closes
    them.
    """

    def __init__(self, encoder: Encoder, facts: TokenizerFacts, apart: Apart | None = None) -> None:
        self._encoder = encoder
        self._apart = apart
        self._facts = facts
        self.eos_token_ids = facts.eos_token_ids
        self.bos_token_id = facts.bos_token_id
        self.control_ids = frozenset(facts.control)
        shown = self._shown_marks
        self.hidden_ids = frozenset(i for i, token in facts.control.items() if token.content not in shown)
        self.pieces = encoder.pieces
        self._control = ControlTokens(facts.control)
        self._prefix = list(facts.prefix)
        self._conversations: Conversations | None = None

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the tokenizer of the model in `directory`; it blocks on the disk, a large vocabulary takes a second.

        Raises:
            TokenizerError: tokenizer.json is missing, damaged or of a kind that is not supported.
        """
        path, world = directory / "tokenizer.json", directory / FILE_NAME
        if not path.is_file() and not world.is_file():
            raise TokenizerError(f"{directory}: tokenizer.json is missing")
        files = TokenizerFiles.read(directory)
        if not path.is_file():
            return cls._of_world(WorldVocabulary.read(world), files)
        check_model(path)
        with library_errors(str(path)):
            return cls._of(tokenizers.Tokenizer.from_file(str(path)), files)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Self:
        """Make the tokenizer that the metadata of a GGUF file describes; a large vocabulary takes seconds.

        Raises:
            TokenizerError: it is missing, damaged or of a kind that is not supported.
        """
        vocabulary = GgufVocabulary.read(metadata)
        if vocabulary.model == WORLD:
            tokens = WorldVocabulary.of_gguf(vocabulary.tokens, vocabulary.types)
            return cls._of_world(tokens, gguf_files(vocabulary.files()))
        with library_errors("tokenizer.ggml"):
            return cls._of(backend_of(vocabulary), vocabulary.files())

    @classmethod
    def _of(cls, backend: tokenizers.Tokenizer, files: TokenizerFiles) -> Self:
        encoder = BackendEncoder(backend)
        return cls(encoder, facts_of(backend, files))

    @classmethod
    def _of_world(cls, vocabulary: WorldVocabulary, files: TokenizerFiles) -> Self:
        return cls(WorldEncoder(vocabulary), vocabulary.facts(files))

    @property
    def outages(self) -> dict[str, str]:
        """Why `tokenizer`, `long_texts` or `chat_template` are not to be had now: a process of theirs is not."""
        named = (
            (getattr(part, "part", ""), getattr(part, "outage", None)) for part in (self._apart, self._conversations)
        )
        return {part: reason for part, reason in named if reason is not None}

    def with_apart(self, apart: Apart) -> Tokenizer:
        """Return the same tokenizer, which has long texts encoded elsewhere."""
        changed = copy(self)
        changed._apart = apart
        return changed

    def with_conversations(self, conversations: Conversations) -> Tokenizer:
        """Return the same tokenizer, which has conversations rendered elsewhere."""
        changed = copy(self)
        changed._conversations = conversations
        return changed

    def hasty(self) -> Tokenizer:
        """Return one for short texts that others wait for: `RenderingSlowError` says that one takes longer."""
        changed = copy(self)
        if self._conversations is not None:
            changed._conversations, changed._apart = self._conversations.hasty(), None
        return changed

    @property
    def encoder(self) -> Encoder:
        """What encodes plain text."""
        return self._encoder

    @property
    def facts(self) -> TokenizerFacts:
        """All that is known beside the vocabulary's rules."""
        return self._facts

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self._facts.vocab_size

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be encoded."""
        return bool(self._facts.chat_template)

    def encode(
        self,
        text: str,
        *,
        add_bos: bool = True,
        add_eos: bool = False,
        with_control: bool = False,
        max_context: int | None = None,
    ) -> list[int]:
        """Return the ids of raw text; control tokens' strings in it are plain text, unless `with_control`.

        `add_bos` puts the beginning token in front where the model wants one, and the text does not begin with it;
        `add_eos` puts behind the text what the model wants behind one that nothing follows.
        `max_context` has to have room for the ids and one more; a text that is sure to have more is not encoded to find
        that out.

        Raises:
            RequestError: the text is not valid Unicode; as PromptTooLongError, there is no such room.
        """
        if self._apart is not None and len(text) > LONG_CHARS:
            named = {"add_bos": add_bos, "add_eos": add_eos, "with_control": with_control, "max_context": max_context}
            return self._apart.run(Call("encode", (text,), named))
        self._check_bytes(text, max_context)
        if self._facts.puts_space_once and text.startswith(_SPACES):
            text = " " + text  # as SentencePiece, by which such models were trained, puts one whatever is there
        ids = self._encode(text, with_control=with_control)
        has_bos = with_control and bool(self._prefix) and ids[:1] == self._prefix
        ids += self._facts.suffix if add_eos else ()
        return check_room(self._prefix + ids if add_bos and not has_bos else ids, max_context)

    @property
    def chat_template(self) -> str | None:
        """The chat template's source."""
        return self._facts.chat_template or None

    def control_id(self, text: str) -> int | None:
        """Return the id of the control token that a text stands for, if it does for one."""
        found = (token_id for token_id, token in self._facts.control.items() if token.content == text)
        return next(found, None)

    @property
    def thinks(self) -> bool:
        """Whether the model may think before it answers, by its chat template: between its marks, or in a channel."""
        template = self._facts.chat_template or ""
        return self.thinking_marks[1] in template or _ANALYSIS in template

    @property
    def thinking_marks(self) -> tuple[str, str]:
        """What stands around a model's thoughts, if it has some."""
        shown = self._shown_marks
        return (f"{_CHANNEL[0]}thought", _CHANNEL[1]) if shown is _CHANNEL else shown

    @property
    def _shown_marks(self) -> tuple[str, str]:
        """The control tokens around thoughts, by the chat template."""
        template = self._facts.chat_template or ""
        others = (marks for marks in (_CHANNEL, _BRACKETS) if all(mark in template for mark in marks))
        return next(others, _THINKING)

    @property
    def template_names(self) -> frozenset[str]:
        """Names of variables that the chat template asks for; none without a template."""
        return self._made_conversations().names if self.has_chat_template else frozenset()

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        variables: Mapping[str, object] | None = None,
        max_context: int | None = None,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> list[int]:
        """Return the ids of a conversation, beginning token included, ready for the answer.

        The template's control tokens are control tokens; what looks like one in a message is plain text. With
        `continue_final` the ids end with the last message's text, for the answer to go on with it. The template sees
        `variables`, whose texts are taken as if it had them itself, and `tools` as OpenAI's chat API has them, whose
        texts are plain. `max_context` is as in `encode`.

        Raises:
            RequestError: the template refuses the conversation, a role is unknown, or a text is not valid Unicode; as
                PromptTooLongError, it is too long.
            TokenizerError: there is no chat template, or it fails.
        """
        conversation = Conversation(tuple(messages), add_generation_prompt, continue_final, variables or {}, tools)
        return self.encode_rendered(self._made_conversations().text(conversation), max_context=max_context)

    def encode_rendered(self, chat: ChatText, *, max_context: int | None = None) -> list[int]:
        """Return the ids of a conversation that was rendered; all else as `encode_chat`."""
        if self._apart is not None and len(chat.text) > LONG_CHARS:
            return self._apart.run(Call("encode_rendered", (chat,), {"max_context": max_context}))
        self._check_bytes(chat.plain, max_context)
        is_marked = chat.mark in chat.text
        ids = self._encode_marked(chat) if is_marked else self._encode(chat.text, with_control=True)
        return check_room(self._with_one_bos(ids), max_context)

    async def encode_soon(
        self,
        encode: Callable[[Tokenizer], T],
        run: Callable[[Callable[[], T]], Awaitable[T]],
    ) -> T:
        """Return what `encode` makes with this tokenizer, in whatever thread `run` has for it: none waits there.

        Where only the whole of a large vocabulary can tell, and is not there yet, that is awaited, and `run` called
        again.

        Raises:
            RequestError, TokenizerError: as what `encode` calls.
        """
        encoder = self._encoder.at_once()
        if encoder is not None:
            at_once = copy(self)
            at_once._encoder, at_once._apart = encoder, None
            try:
                return await run(lambda: encode(at_once))
            except WholeNeededError:
                await self._encoder.whole()
        return await run(lambda: encode(self))

    def chat_text(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        variables: Mapping[str, object] | None = None,
        tools: Sequence[Mapping[str, object]] = (),
    ) -> str:
        """Return the text that the chat template makes of a conversation; all else as `encode_chat`."""
        conversation = Conversation(tuple(messages), add_generation_prompt, continue_final, variables or {}, tools)
        return self._made_conversations().text(conversation).plain

    def _made_conversations(self) -> Conversations:
        if not self._facts.chat_template:
            raise TokenizerError("the model has no chat template")
        if self._conversations is None:
            # Jinja takes longer to import than all of this package, and an engine has it in another process.
            from unicorn_async.tokenizer.local_conversations import LocalConversations

            self._conversations = LocalConversations(self._facts.template_source(self._facts.chat_template))
        return self._conversations

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of the tokens; bytes that are not UTF-8 become U+FFFD, unknown ids nothing."""
        decoder = StreamDecoder(self, skip_special=skip_special)
        return "".join([decoder.add(token_id) for token_id in ids]) + decoder.finish()

    def added_text(self, token_id: int) -> str:
        """Return the text of a token that was added to the vocabulary; "" for all others."""
        return self.token_text(token_id) if token_id in self._facts.added_ids else ""

    def token_text(self, token_id: int) -> str:
        """Return the text of one token as it stands inside a text; half a character is U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token as they stand inside a text, UTF-8; none for an unknown id."""
        return self.pieces[token_id]

    def _check_bytes(self, text: str, max_context: int | None) -> None:
        if max_context is None or len(text) < max_context:  # of which each may be a token
            return
        least = self._encoder.least_tokens(text)
        if least >= max_context:
            message = (
                f"the prompt has {least} tokens at least; a context of {max_context} has no room for an answer to it"
            )
            raise PromptTooLongError(message)

    def piece_table(self) -> PieceTable:
        """Return the bytes of all tokens, borrowed; a large vocabulary takes up to a second."""
        return self.pieces.table(self._facts.num_ids)

    def _encode_marked(self, chat: ChatText) -> list[int]:
        ids: list[int] = []
        for match in self._control.split(chat.text):
            if match.token_id is None:
                ids += self._encode(match.text.replace(chat.mark, ""), with_control=False)
            else:
                ids.append(match.token_id)
        return ids

    def _encode(self, text: str, *, with_control: bool, depth: int = 0) -> list[int]:
        if depth > _MAX_SPELLING_DEPTH:
            raise RequestError(f"the text can't be encoded: {text!r} gives a control token however it is spelled")
        ids = self._encoder.encode(text, with_control=with_control)
        return ids if with_control or self.control_ids.isdisjoint(ids) else self._spelled(ids, depth + 1)

    def _spelled(self, ids: list[int], depth: int) -> list[int]:
        """Control tokens spelled out in plain ones: some models have them among the pieces of plain text."""
        result: list[int] = []
        for token_id in ids:
            text = self._control.text_of(token_id) if token_id in self.control_ids else None
            if text is None:
                result.append(token_id)
            else:
                for part in (text[0], text[1:]):
                    result += self._encode(part, with_control=False, depth=depth)
        return result

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        if self.bos_token_id is None:
            return ids
        count = next((index for index, token_id in enumerate(ids) if token_id != self.bos_token_id), len(ids))
        return ([self.bos_token_id] if count else self._prefix) + ids[count:]


def check_room(ids: list[int], max_context: int | None) -> list[int]:
    """Return the ids if a context has room for them and one more; else raise PromptTooLongError."""
    if max_context is not None and len(ids) >= max_context:
        message = f"the prompt has {len(ids)} tokens; a context of {max_context} has no room for an answer to it"
        raise PromptTooLongError(message)
    return ids
