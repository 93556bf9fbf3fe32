"""Static batching over transformers, as one would serve it without an engine.

``python -m loadtest.peers.static_batches MODEL_FOLDER`` prints its address and its settings,
and serves ``POST /v1/completions`` (SSE) until its standard input ends. Requests that wait are
gathered for 20 ms, padded on the left and generated together; a row that is done keeps its place
until the batch ends, which is what ``generate`` does. Weights are fp32, one thread.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from aiohttp import web

GATHER_S = 0.02
MAX_BATCH = 32
MAX_WAITING = 1024


@dataclass(slots=True)
class Request:
    """One completion; its tokens' texts arrive on ``texts``, None ends it."""

    prompt: str
    max_tokens: int
    texts: asyncio.Queue[str | None] = field(
        default_factory=lambda: asyncio.Queue(maxsize=4096)  # more than any max_tokens here
    )


class StaticBatcher:
    """Gathers requests and generates one padded batch at a time, on a thread."""

    def __init__(self, folder: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.eval()  # type: ignore[no-untyped-call]
        self.description = (
            f"transformers {version('transformers')}, torch {torch.__version__}, fp32, 1 thread, "
            f"static batches of up to {MAX_BATCH}, {torch.backends.cpu.get_cpu_capability()}"
        )
        self.waiting: asyncio.Queue[Request] = asyncio.Queue(maxsize=MAX_WAITING)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self.waiting.get()]
            await asyncio.sleep(GATHER_S)
            while not self.waiting.empty() and len(batch) < MAX_BATCH:
                batch.append(self.waiting.get_nowait())
            await loop.run_in_executor(None, self._generate, batch, loop)

    def _generate(self, batch: list[Request], loop: asyncio.AbstractEventLoop) -> None:
        inputs = self._tokenizer([each.prompt for each in batch], padding=True, return_tensors="pt")
        streamer = _BatchStreamer(self._tokenizer, batch, loop)
        longest = max(each.max_tokens for each in batch)
        with self._torch.inference_mode():
            self._model.generate(
                **inputs,
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=False,
                streamer=streamer,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        for each in batch:
            loop.call_soon_threadsafe(each.texts.put_nowait, None)


class _BatchStreamer:
    """What ``generate`` calls with the prompt once, then with one token per row and step."""

    def __init__(self, tokenizer: Any, batch: list[Request], loop: asyncio.AbstractEventLoop):
        self._tokenizer = tokenizer
        self._batch = batch
        self._loop = loop
        self._num_steps = -1  # the first call brings the prompts

    def put(self, value: Any) -> None:
        self._num_steps += 1
        if self._num_steps == 0:
            return
        texts = self._tokenizer.batch_decode(value.reshape(-1, 1))
        self._loop.call_soon_threadsafe(self._hand_out, texts, self._num_steps)

    def end(self) -> None:
        """Nothing is held back."""

    def _hand_out(self, texts: list[str], step: int) -> None:
        for request, text in zip(self._batch, texts, strict=True):
            if step <= request.max_tokens:
                request.texts.put_nowait(text)


async def complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    batcher: StaticBatcher = request.app["batcher"]
    waiting = Request(prompt=body["prompt"], max_tokens=body["max_tokens"])
    batcher.waiting.put_nowait(waiting)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    count = 0
    while (text := await waiting.texts.get()) is not None:
        count += 1
        chunk = {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    usage = {"choices": [], "usage": {"completion_tokens": count}}
    await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
    return response


async def serve(folder: str) -> None:
    app = web.Application()
    batcher = StaticBatcher(folder)
    app["batcher"] = batcher
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    print(f"http://127.0.0.1:{port}")
    print(batcher.description, flush=True)
    running = asyncio.create_task(batcher.run(), name="batcher")
    await asyncio.to_thread(sys.stdin.read)
    running.cancel()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
