"""The first stage: prompts as callers write them become sequences of token ids."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Full, Queue

import msgspec

from engine.errors import EngineError, InternalError, InvalidInput, Overloaded
from engine.llm.answer import Answer
from engine.llm.generation import Generation
from engine.llm.messages import Refused, Submit
from engine.llm.request import PromptPayload, Sampling
from engine.llm.sequence import Sequence
from engine.llm.speculation import LookAhead, NgramIndex
from engine.llm.text.content_filter import ContentFilter
from engine.llm.text.stream import TextStream
from engine.llm.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Tokenising:
    """Holds at most ``capacity`` prompts and refuses more; delivers each, unless it was
    withdrawn before, exactly once: to ``deliver``, or with a reason to ``refuse``.

    ``submit`` and ``withdraw`` are the reader thread's; any number of threads may work.

    Args:
        max_seq_length: prompt and answer together, in tokens.
        speculative_tokens: the longest look-ahead; 0 is none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        content_filter: ContentFilter | None,
        *,
        max_seq_length: int,
        speculative_tokens: int,
        capacity: int,
        deliver: Callable[[Generation], None],
        refuse: Callable[[Refused], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._filter = content_filter
        self._max_seq_length = max_seq_length
        self._longest_guess = speculative_tokens
        self._deliver = deliver
        self._refuse = refuse
        self._submitted: Queue[Submit] = Queue(capacity)
        self._live: set[int] = set()  # keys neither delivered nor refused nor withdrawn
        self._lock = threading.Lock()

    def submit(self, message: Submit) -> None:
        with self._lock:
            self._live.add(message.key)
        try:
            self._submitted.put_nowait(message)
        except Full:
            self._give_up(message.key, Overloaded("too many prompts are waiting"))

    def withdraw(self, key: int) -> bool:
        """Whether the prompt was still here; then nothing more is heard of it."""
        with self._lock:
            was_here = key in self._live
            self._live.discard(key)
            return was_here

    def has_work(self) -> bool:
        """False once everything submitted was delivered, refused or withdrawn."""
        with self._lock:
            return bool(self._live)

    def work_forever(self) -> None:
        while True:
            message = self._submitted.get()
            try:
                generation = self._tokenise(message)
            except EngineError as error:
                self._give_up(message.key, error)
            except Exception:  # one prompt's fault must not end the others
                fault = InternalError()
                logger.exception("a prompt was not tokenised, reference %s", fault.reference)
                self._give_up(message.key, fault, fault.reference)
            else:
                self._hand_over(generation)

    def _tokenise(self, message: Submit) -> Generation:
        try:
            payload = msgspec.json.decode(message.payload, type=PromptPayload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidInput(f"prompt: {error}") from None
        # At least one token must fit behind the prompt.
        token_ids = self._tokenizer.encode(payload, self._max_seq_length - 1)
        sampling = payload.sampling
        sequence = Sequence(
            key=message.key,
            prompt_ids=token_ids,
            max_tokens=sampling.max_tokens,
            rank=message.rank,
            weight=message.weight,
            tenant=message.tenant,
            arrived_at=message.arrived_us / 1e6,
            deadline=message.deadline_us / 1e6 if message.deadline_us else None,
        )
        continues = payload.messages is None
        text = TextStream(self._tokenizer, sampling, self._filter, continues=continues)
        return Generation(
            sequence=sequence,
            sampling=sampling,
            answer=Answer(message.key, len(token_ids), text),
            look_ahead=self._look_ahead(sequence, sampling),
        )

    def _look_ahead(self, sequence: Sequence, sampling: Sampling) -> LookAhead | None:
        """None where it would not help: a repetition penalty is there to make the model say
        something else than before."""
        if self._longest_guess < 1 or sampling.repetition_penalty != 1.0:
            return None
        index = NgramIndex(sequence.prompt_ids, self._max_seq_length)
        return LookAhead(index, self._longest_guess)

    def _hand_over(self, generation: Generation) -> None:
        # Under the lock: a cancel must find the prompt here or arrive behind it, never in between.
        with self._lock:
            if generation.key in self._live:
                self._deliver(generation)
                self._live.remove(generation.key)

    def _give_up(self, key: int, error: EngineError, detail: str | None = None) -> None:
        if self.withdraw(key):
            self._refuse(Refused(key, error.code, error.detail if detail is None else detail))
