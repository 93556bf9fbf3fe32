"""``POST /v1/infer/{model}``: one picture in, one answer out, by the same door as a stream.

``/v1/infer/{model}/versions/{version}`` pins a version, spelt as KServe's ``/v2/models`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from engine.base import Engine
from engine.types import (
    AttachmentKind,
    Cancelled,
    Dropped,
    DropReason,
    Failed,
    Item,
    LaneSpec,
    Outcome,
    Policy,
    Priority,
    Progress,
    Result,
    Timing,
)
from gateway.api.forms import first_file
from gateway.config_sections import LimitsConfig, StreamsConfig
from gateway.errors import ProblemKind, RequestProblem, from_dropped, from_engine_error
from gateway.session.options import check_model
from gateway.session.pictures import check_picture
from gateway.stream.credit_pool import CreditPools
from gateway.wire.messages import StreamKind

# Each may hold a whole picture in memory while it waits.
MAX_CONCURRENT_REQUESTS = 64
DEFAULT_DEADLINE_MS = 10_000.0
MULTIPART_OVERHEAD_BYTES = 64 * 1024
ANNOTATIONS = ("boxes", "blur")
VERSION_HEADER = "Clawstream-Version"  # of what made the answer, for one that is no JSON
# The engine expires the item; this only guards the request against a fault of ours.
SAFETY_GAP_S = 1.0
_ITEM_ID = 1

Authenticate = Callable[[web.Request], str]


class InferResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON answer; ``data`` is the pipeline's, ``timing`` in microseconds."""

    model: str
    version: str
    data: msgspec.Raw
    timing: Timing


class InferApi:
    """Reads and checks a picture, and runs it as the only item of a lane of its own.

    At most ``MAX_CONCURRENT_REQUESTS`` at a time; beyond that the answer is 503. A client that
    leaves cancels its item. ``kinds`` are those of the models, as far as known.
    """

    def __init__(
        self,
        engine: Engine,
        limits: LimitsConfig,
        streams: StreamsConfig,
        kinds: Mapping[str, str],
        authenticate: Authenticate,
        admit: Callable[[str, Priority], Priority],
        credit: CreditPools,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._streams = streams
        self._kinds = kinds
        self._authenticate = authenticate
        self._admit = admit
        self._credit = credit
        self._num_running = 0

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/infer/{model}"
        return [web.post(one, self.infer), web.post(f"{one}/versions/{{version}}", self.infer)]

    async def infer(self, request: web.Request) -> web.Response:
        priority = self._admit(self._authenticate(request), Priority.STANDARD)
        if self._num_running >= MAX_CONCURRENT_REQUESTS:
            raise RequestProblem(ProblemKind.OVERLOADED, "too many requests", retry_after_ms=1000)
        self._num_running += 1
        try:
            return await self._infer(request, priority)
        finally:
            self._num_running -= 1

    async def _infer(self, request: web.Request, priority: Priority) -> web.Response:
        model = request.match_info["model"]
        self._check_model(model)  # no body could be an answer to the others
        annotate = self._annotation(request)
        deadline_ms = self._deadline_ms(request)
        picture = await read_body(request, self._limits)
        check_picture(picture, self._limits)
        deadline = asyncio.get_running_loop().time() + deadline_ms / 1000
        options = msgspec.json.encode({"annotate": annotate}) if annotate else b""
        item = Item(id=_ITEM_ID, payload=picture, options=options, deadline=deadline)
        spec = LaneSpec(
            model=model,
            policy=Policy.FIFO,
            priority=priority,
            version=request.match_info.get("version"),
        )
        result = result_of(await self._run(spec, item, deadline))
        return _picture_response(result) if annotate else _json_response(result)

    async def _run(self, spec: LaneSpec, item: Item, deadline: float) -> Outcome:
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def emit(_: int, event: Progress | Outcome) -> None:
            if not isinstance(event, Progress) and not answered.done():
                answered.set_result(event)

        share = self._credit.of(spec.model).open(1)  # a place that no stream was promised
        try:
            lane = self._engine.open_lane(spec, emit)
            try:
                lane.offer(item)
                async with asyncio.timeout_at(deadline + SAFETY_GAP_S):
                    return await answered
            except TimeoutError:
                return Dropped(DropReason.DEADLINE)
            finally:
                lane.close()
        finally:
            share.close()

    def _check_model(self, model: str) -> None:
        try:
            check_model(StreamKind.FRAMES, model, self._kinds)
        except RequestProblem as problem:
            detail = f"{problem.detail}; prompts go to /v1/chat/completions"
            raise RequestProblem(problem.kind, detail) from None

    def _annotation(self, request: web.Request) -> str | None:
        """Which annotated picture the caller wants instead of JSON; None: JSON."""
        annotate = request.query.get("annotate")
        if annotate is not None and annotate not in ANNOTATIONS:
            raise RequestProblem(
                ProblemKind.UNSUPPORTED_OPTION, f"annotate is one of {', '.join(ANNOTATIONS)}"
            )
        condition, mime = ("with", "image/jpeg") if annotate else ("without", "application/json")
        if not _accepts(request.headers.get("Accept") or "*/*", mime):
            detail = f"{condition} annotate the answer is {mime}, which Accept rules out"
            raise RequestProblem(ProblemKind.UNSUPPORTED_OPTION, detail)
        return annotate

    def _deadline_ms(self, request: web.Request) -> float:
        longest = self._streams.max_deadline_ms
        text = request.query.get("deadline_ms")
        if text is None:
            return min(DEFAULT_DEADLINE_MS, longest)
        try:
            deadline_ms = float(text)
        except ValueError:
            deadline_ms = 0.0
        if not 0 < deadline_ms <= longest:
            raise RequestProblem(
                ProblemKind.UNSUPPORTED_OPTION,
                f"deadline_ms is milliseconds, above 0 and at most {longest:.0f}",
            )
        return deadline_ms


async def read_body(request: web.Request, limits: LimitsConfig) -> bytes:
    """The picture: the raw body, or the first file of a form.

    Raises:
        RequestProblem: too large (by its header, before anything is read), too slow, or absent.
    """
    is_form = request.content_type.startswith("multipart/")
    largest = limits.max_frame_bytes + (MULTIPART_OVERHEAD_BYTES if is_form else 0)
    if request.content_length is not None and request.content_length > largest:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.assembly_timeout_s):
            body = await _collect(request, largest, limits)
    except TimeoutError:
        raise RequestProblem(
            ProblemKind.TIMEOUT, f"the body did not arrive in {limits.assembly_timeout_s:g} s"
        ) from None
    if is_form:
        body = first_file(body, request.headers["Content-Type"])
        if len(body) > limits.max_frame_bytes:
            raise _too_large(limits)
    return body


async def _collect(request: web.Request, largest: int, limits: LimitsConfig) -> bytes:
    body = bytearray()
    async for chunk in request.content.iter_any():  # waits whenever it has taken what was there
        body += chunk
        if len(body) > largest:
            raise _too_large(limits)
    return bytes(body)


def _too_large(limits: LimitsConfig) -> RequestProblem:
    return RequestProblem(
        ProblemKind.FRAME_TOO_LARGE, f"a picture has at most {limits.max_frame_bytes} bytes"
    )


def result_of(outcome: Outcome) -> Result:
    match outcome:
        case Result():
            return outcome
        case Failed(error):
            raise from_engine_error(error)
        case Dropped(reason):
            raise from_dropped(reason)
        case Cancelled():
            raise from_dropped(DropReason.SHUTDOWN)


def _accepts(accept: str, mime: str) -> bool:
    """Whether one of the ranges of an Accept header covers ``mime``; weights do not matter here."""
    ranges = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return not ranges.isdisjoint({"*/*", f"{mime.partition('/')[0]}/*", mime})


def _json_response(result: Result) -> web.Response:
    answer = InferResponse(
        model=result.model,
        version=result.version,
        data=msgspec.Raw(result.data),
        timing=result.timing,
    )
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def _picture_response(result: Result) -> web.Response:
    for attachment in result.attachments:
        if attachment.kind is AttachmentKind.ANNOTATED_FRAME:
            headers = {VERSION_HEADER: result.version}
            return web.Response(body=attachment.payload, content_type="image/jpeg", headers=headers)
    raise RequestProblem(ProblemKind.UNSUPPORTED_OPTION, "this model does not annotate")
