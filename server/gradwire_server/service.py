"""The gRPC face of the server: one handler per RPC, each a thin shell around the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from gradwire import ops, v1
from gradwire_server import callers, encoding, wire
from gradwire_server.backends import Backend, inline_work_of
from gradwire_server.backends.call_deadline import computing_until
from gradwire_server.callers import claim_of
from gradwire_server.calls import ActiveCalls, Call, Context, Metadata
from gradwire_server.device_watch import DeviceWatch
from gradwire_server.engine import (
    TURN_S,
    Admission,
    Claim,
    Evaluation,
    EvaluationRequest,
    Preparer,
    TurnedWork,
    Turns,
    exceeded,
)
from gradwire_server.errors import InvalidDataError, StartingError, UseStreamError
from gradwire_server.phases import Phases
from gradwire_server.pool import submit
from gradwire_server.recipes import Recipe, Recipes
from gradwire_server.refusals import QuickRefusals
from gradwire_server.server_info import server_info
from gradwire_server.settings import Settings
from gradwire_server.small_calls import SmallCalls
from gradwire_server.transit import Transit

NAME = "gradwire.v1.GradientService"
T = TypeVar("T")


class Do(Protocol):
    """Does a part of an evaluation when it is its turn."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Return what the work returns."""
        ...


@dataclass(frozen=True, slots=True)
class Workshop:
    """What handlers share: the parts that compute and the rules that bound them."""

    settings: Settings
    backend: Backend
    backend_reason: str
    preparer: Preparer
    admission: Admission
    pool: ThreadPoolExecutor
    active: ActiveCalls
    device: DeviceWatch
    ready: asyncio.Event
    draining: asyncio.Event
    recipes: Recipes = field(default_factory=Recipes)

    @property
    def inline_work(self) -> int:
        """Multiplications up to which a call is computed on the event loop."""
        given, usual = self.settings.inline_work, inline_work_of(self.backend)
        if given < 0:
            return usual
        return min(given, usual) if self.backend.may_wait else given

    async def prepare(self, request: EvaluationRequest, context: callers.Context) -> Evaluation:
        """Lower a request: here where that is quick, else in a thread, in turn.

        Raises StartingError before the server is ready, OverloadedError where it is full.
        """
        return await self._prepared(request, context, _measured)

    async def recipe(
        self, header: bytes, request: EvaluationRequest, context: callers.Context
    ) -> Recipe:
        """Lower a request likewise, and keep what that gave for others with this header."""
        recipe = await self._prepared(request, context, self._recipe)
        self.recipes.keep(header, recipe)
        return recipe

    def _recipe(self, evaluation: Evaluation) -> Recipe:
        recipe = Recipe.of(evaluation, self.backend, inline_work=self.inline_work)
        _measured(evaluation)
        _ = recipe.batch
        return recipe

    async def _prepared(
        self,
        request: EvaluationRequest,
        context: callers.Context,
        finish: Callable[[Evaluation], T],
    ) -> T:
        if not self.ready.is_set():
            after = self.settings.retry_after_s
            raise StartingError(
                f"the server is getting ready; retry after {after} s", retry_after_s=after
            )
        needs = self.preparer.preparation(request)
        if needs.is_quick:
            return finish(self.preparer.prepare(request))
        limits = {
            name: getattr(self.settings, name)
            for name in ("max_memory_bytes", "max_request_memory_bytes")
        }
        limit = max(limits, key=limits.__getitem__)
        if needs.memory_bytes > limits[limit]:
            came = f"building the tables of this request may take {needs.memory_bytes} bytes"
            raise exceeded(came, limit, limits[limit])
        building = TurnedWork(
            lambda check: finish(self.preparer.prepare(request, check=check)), turn_s=TURN_S
        )
        claim = callers.claim_of_tables(needs, context)
        admission = self.admission
        memory = admission.memory(needs.memory_bytes, measured=False)
        with memory, admission.turns(claim) as turns, building:
            # The whole of it is a wait of the call that needs the tables.
            while await self._in_turn(Phases(), turns, building.turn):
                pass
        return building.result()

    def refuse_bulk(self, request: EvaluationRequest, method: str) -> None:
        """Raise UseStreamError where a tensor is too large for one message."""
        allowed = self.settings.max_unary_bytes
        _, output = request.resolved()
        for name, spec in (("input", request.input), ("output", output)):
            if spec.wire_bytes > allowed:
                raise UseStreamError(
                    f"{name} is {spec.wire_bytes} bytes; {method} takes {allowed} (its setting "
                    "GRADWIRE_MAX_UNARY_BYTES), EvaluateStream any number",
                    limit="max_unary_bytes",
                    allowed=allowed,
                )

    @contextmanager
    def computing(self, evaluation: Evaluation, call: Call, *, left: float) -> Generator[Do]:
        """Let a stream in, and give what does a step of it: here if it is small, else in turn.

        left  part of the evaluation that is not done yet
        """
        if evaluation.passes_through or evaluation.inline_work <= self.inline_work:
            yield partial(_at_once, call.phases)
            return
        with self.turns(claim_of(evaluation, call.context, left=left, paced=True), call) as do:
            yield do

    @contextmanager
    def turns(self, claim: Claim, call: Call) -> Generator[Do]:
        """Let what claims slots in, and give what does a part of it in a thread, in turn."""
        with self.admission.turns(claim) as turns:
            yield partial(self._in_turn, call.phases, turns)

    async def _in_turn(self, phases: Phases, turns: Turns, work: Callable[[], T]) -> T:
        with phases.spending("queue"):
            slot = await turns.slot()
        with slot, phases.spending("compute"):
            done, outcome = submit(self.pool, partial(_timed, work, turns.claim.deadline))
            slot.until(done)
            try:
                result, seconds = await self._result(done, outcome)
            finally:
                done.cancel()  # which does nothing once it has begun
        turns.spend(seconds)
        return result

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Do work in the thread pool."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def compute(self, work: Callable[[], T]) -> T:
        """Do work of the backend in the thread pool, out of turn."""
        return await self._result(*submit(self.pool, work))

    def _result(self, done: Future[None], outcome: asyncio.Future[T]) -> Awaitable[T]:
        """Return the outcome of work in a thread, watched where a device does it."""
        return self.device.result(done, outcome) if self.backend.may_wait else outcome


class GradientService:
    """Answers gradwire.v1.GradientService, but for the streams, which streams.py and many.py do."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        room = workshop.admission.has_room
        self._small = SmallCalls(workshop.backend, workshop.active, room=room)
        self._refusals = QuickRefusals(workshop.admission, workshop.recipes, workshop.active)
        self._transit = Transit(workshop.admission, workshop.settings)
        self._operators = v1.ListOperatorsResponse(
            operators=[ops.describe(operator) for operator in ops.OPERATORS.values()]
        )

    async def evaluate(self, metadata: Metadata, _requests: object, context: Context) -> bytes:
        """Evaluate one operator on one small tensor; metadata is what came with the call."""
        message = await self._transit.receive(context)
        if isinstance(message, bytes):
            reply = self._small.answer(message, context, metadata)
            if reply is not None:
                self._workshop.preparer.note_hit()
                return reply
            if self._refusals.refuse(message, context, metadata):
                self._workshop.preparer.note_hit()
                # With any status but OK grpc sends no reply.
                return b""
        call = self._call("Evaluate", context)
        return await call.answer(lambda: self._evaluate(message, call))

    def _call(self, method: str, context: Context) -> Call:
        return Call(method, context, self._workshop.active)

    async def _evaluate(self, message: bytes | encoding.Malformed, call: Call) -> bytes:
        request_id, header, data = encoding.read_request(encoding.sound(message))
        call.request_id = wire.read_request_id(request_id.decode()) or call.request_id
        recipe = self._workshop.recipes.get(header)
        if recipe is None:
            recipe = await self._prepare(header, len(data), call)
        else:
            self._workshop.preparer.note_hit()
            _note(call, recipe.evaluation.request, len(data))
            _check_length(len(data), recipe.evaluation.request)
        self._transit.check(call.context, recipe.memory_bytes)
        self._workshop.admission.take_memory(recipe.memory_bytes)
        reply = b""
        try:
            result = await self._compute(recipe, np.frombuffer(data, np.uint8), call)
            with call.phases.spending("send"):
                call.sent_bytes = len(result)
                reply = encoding.response(call.request_id, recipe.header, result.data)
        finally:
            self._transit.send(call.context, reply, held=recipe.memory_bytes)
        return reply

    async def _prepare(self, header: bytes, length: int, call: Call) -> Recipe:
        with call.phases.spending("receive"):
            decoded = wire.read_request(encoding.request_header(header))
            _note(call, decoded, length)
            self._workshop.refuse_bulk(decoded, "Evaluate")
            _check_length(length, decoded)
        with call.phases.spending("queue"):
            recipe = await self._workshop.recipe(header, decoded, call.context)
        if recipe.inline:
            self._small.keep(header, recipe)
        return recipe

    async def _compute(self, recipe: Recipe, data: encoding.Bytes, call: Call) -> encoding.Bytes:
        evaluation = recipe.evaluation
        if recipe.inline:
            with call.phases.spending("compute"):
                return evaluation.run_whole(data, self._workshop.backend)
        result = np.empty(evaluation.output.wire_bytes, np.uint8)
        steps = recipe.in_memory.run(result, data)
        with self._workshop.turns(claim_of(evaluation, call.context), call) as do:
            while await do(partial(take_turn, steps)):
                pass
        return result

    async def list_operators(self, _requests: object, context: Context) -> v1.ListOperatorsResponse:
        """List the operators."""
        request = await self._transit.receive(context)
        call = self._call("ListOperators", context)
        return await call.answer(lambda: self._list_operators(request))

    async def _list_operators(self, request: object) -> v1.ListOperatorsResponse:
        encoding.sound(request)
        return self._operators

    async def get_server_info(
        self, _requests: object, context: Context
    ) -> v1.GetServerInfoResponse:
        """Give version, backend and limits."""
        request = await self._transit.receive(context)
        call = self._call("GetServerInfo", context)
        return await call.answer(lambda: self._get_server_info(request))

    async def _get_server_info(self, request: object) -> v1.GetServerInfoResponse:
        encoding.sound(request)
        workshop = self._workshop
        return server_info(workshop.settings, workshop.backend.name, workshop.backend_reason)


def _note(call: Call, request: EvaluationRequest, length: int) -> None:
    """Tell the call what its log line and its metrics say of the request."""
    call.note_request(request.operator, request.input, received=length)


def _check_length(length: int, request: EvaluationRequest) -> None:
    needed = request.input.wire_bytes
    if length != needed:
        raise InvalidDataError("data", f"{length} bytes; input's descriptor takes {needed}")


def _timed(work: Callable[[], T], deadline: float) -> tuple[T, float]:
    began = time.perf_counter()
    with computing_until(deadline):
        return work(), time.perf_counter() - began


def _measured(evaluation: Evaluation) -> Evaluation:
    """Work out what the event loop asks of an evaluation, which takes long where tables are."""
    _ = evaluation.memory_bytes, evaluation.inline_work, evaluation.step_part
    return evaluation


async def _at_once(phases: Phases, work: Callable[[], T]) -> T:
    with phases.spending("compute"):
        return work()


def take_turn(steps: Iterator[object]) -> bool:
    """Do as many steps as make a turn, at least one; return whether there may be more."""
    until = time.perf_counter() + TURN_S
    return any(time.perf_counter() >= until for _ in steps)
