"""What the chunks of a streamed completion say. Pure."""

from __future__ import annotations

import msgspec

from engine.llm.messages import Finish

DONE = "[DONE]"
# Other servers' words for the three ways an answer ends; what is not listed counts as stop.
_REASONS = {"length": "length", "max_tokens": "length", "content_filter": "content_filter"}


class BadReply(Exception):
    """The upstream sent what is not a completion; the text is safe to show."""


class ReplyError(Exception):
    """The upstream says in the stream that it failed; the text is its own."""


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None  # of a chat
    text: str | None = None  # of a raw prompt's completion
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Error(msgspec.Struct):
    message: str = ""


class _Chunk(msgspec.Struct):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: _Error | str | None = None


_decoder = msgspec.json.Decoder(_Chunk)


class Reply:
    """One answer as it comes in. ``is_complete`` once the upstream said why it ends; ``is_done``
    when nothing can follow, not even the usage."""

    def __init__(self) -> None:
        self.num_pieces = 0
        self.is_done = False
        self._reason: str | None = None
        self._usage: _Usage | None = None

    @property
    def is_complete(self) -> bool:
        return self._reason is not None or self.is_done

    def take(self, data: str) -> str:
        """The text that an event adds; empty for a role, a usage or the end.

        Raises:
            BadReply: it is no chunk of a completion.
            ReplyError: it is an error message.
        """
        if data.strip() == DONE:
            self.is_done = True
            return ""
        try:
            chunk = _decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise BadReply(f"the upstream sent no completion chunk: {error}") from None
        if chunk.error is not None:
            raise ReplyError(chunk.error if isinstance(chunk.error, str) else chunk.error.message)
        if chunk.usage is not None:
            self._usage = chunk.usage
        return self._take_choice(chunk.choices[0]) if chunk.choices else ""

    def finish(self) -> Finish:
        """The end of the answer. Without a usage, pieces are counted and the prompt is not."""
        usage = self._usage or _Usage(completion_tokens=self.num_pieces)
        details = usage.prompt_tokens_details or _PromptDetails()
        return Finish(
            reason=_REASONS.get(self._reason or "", "stop"),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=details.cached_tokens or 0,
        )

    def _take_choice(self, choice: _Choice) -> str:
        if choice.finish_reason is not None:
            self._reason = choice.finish_reason
        text = choice.text if choice.delta is None else choice.delta.content
        if not text:
            return ""
        self.num_pieces += 1
        return text
