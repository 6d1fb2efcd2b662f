"""`coordinate`: run the coordinator, which holds no parameters, until the loss is minimised."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

from sandtable.errors import MethodError
from sandtable.methods.server.addresses import address_registry
from sandtable.methods.server.distbelief.dispatcher import Dispatcher
from sandtable.methods.server.distbelief.lbfgs import LBFGS, Ending, Progress, minimize
from sandtable.methods.server.distbelief.operations import zero
from sandtable.methods.server.distbelief.remote_space import RemoteSpace, ShardRestartedError
from sandtable.methods.server.distbelief.settings import Sandblaster
from sandtable.methods.server.distbelief.work_queue import WorkQueue
from sandtable.methods.server.listener import listen

__all__ = ["CoordinatorReport", "coordinate"]

_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorReport:
    """The outcome. Bytes and messages are those between coordinator and servers, both ways."""

    loss: float
    gradient_norm: float
    ending: Ending
    num_iterations: int
    num_evaluations: int
    num_portions: int
    num_twice: int
    num_given_back: int
    num_recoveries: int
    num_messages: int
    sent_bytes: int
    received_bytes: int


def coordinate(
    *,
    settings: Sandblaster,
    num_samples: int,
    portion_size: int,
    lbfgs: LBFGS | None = None,
    after: Callable[[Progress], None] = lambda _: None,
    store: Store | None = None,
) -> CoordinatorReport:
    """Minimise the loss over samples 0 to `num_samples`, handed out in portions of `portion_size`.

    If all servers have a checkpoint in common, it resumes from there. `after` is called before the first iteration and
    after each, again for those that are repeated because a server was lost. On return, the replicas' models have the
    result.
    """
    registry = address_registry(settings.endpoints, store)
    queue = WorkQueue(num_samples=num_samples, size=portion_size)
    dispatcher = Dispatcher(queue, identity=settings.identity(settings.shards), timeout_s=settings.timeout_s)
    with listen(
        dispatcher.serve_connection,
        registry=registry,
        endpoint=settings.shards,
        name="the coordinator",
        limit_bytes=_LIMIT_BYTES,
        timeout_s=settings.timeout_s,
        close=dispatcher.close,
    ):
        session = uuid.uuid4().hex
        try:
            space = RemoteSpace(settings, registry, session=session)
            coordinator = _Coordinator(space, dispatcher, queue, lbfgs or LBFGS(), session=session)
            return coordinator.run(after)
        except BaseException as error:
            dispatcher.fail(error)
            raise


class _Coordinator:
    """Connects the vector space, the dispatcher and the optimizer."""

    def __init__(
        self, space: RemoteSpace, dispatcher: Dispatcher, queue: WorkQueue, lbfgs: LBFGS, *, session: str
    ) -> None:
        self._space, self._dispatcher, self._queue, self._lbfgs = space, dispatcher, queue, lbfgs
        self._session = session
        self._num_evaluations = 0
        self._num_recoveries = 0

    def run(self, after: Callable[[Progress], None]) -> CoordinatorReport:
        try:
            progress, final = self._minimize(after)
            self._dispatcher.finish(final)
            traffic = self._space.traffic
            self._space.done()
        finally:
            self._space.close()
        assert progress.ending is not None
        return CoordinatorReport(
            loss=progress.loss,
            gradient_norm=progress.gradient_norm,
            ending=progress.ending,
            num_iterations=progress.iteration,
            num_evaluations=progress.num_evaluations,
            num_portions=len(self._queue),
            num_twice=self._queue.num_twice,
            num_given_back=self._queue.num_given_back,
            num_recoveries=self._num_recoveries,
            num_messages=traffic.num_messages,
            sent_bytes=traffic.sent_bytes,
            received_bytes=traffic.received_bytes,
        )

    def _minimize(self, after: Callable[[Progress], None]) -> tuple[Progress, str]:
        """Return the final progress, and the name under which shards give the result."""

        def after_iteration(progress: Progress) -> None:
            _check_start(progress)
            self._space.keep(progress.iteration, progress.to_notes())
            after(progress)

        progress = self._restored()
        while True:
            try:
                end = minimize(self._space, self._evaluate, self._lbfgs, progress=progress, after=after_iteration)
                final = self._next_name()
                self._space.open(final, [])
                return end, final
            except ShardRestartedError as error:
                self._dispatcher.shut()
                progress = self._restored()
                if progress is None:
                    raise MethodError(
                        f"shards must have a checkpoint in common when one is restarted ({error}), but have none; "
                        "give serve_vectors(..., checkpoints=Checkpoints(...))"
                    ) from None
                self._num_recoveries += 1

    def _restored(self) -> Progress | None:
        notes = self._space.restore()
        return None if notes is None else Progress.from_notes(notes, self._lbfgs)

    def _evaluate(self) -> float:
        """Let the replicas compute loss and gradient at `weights`; the first answer for each portion counts."""
        evaluation = self._next_name()
        self._space.open(evaluation, [zero("gradient")])
        self._dispatcher.open(evaluation)
        num_counted = 0
        while num_counted < len(self._queue):
            reports = self._dispatcher.collect()
            # Also without reports: a restarted shard answers so.
            self._space.count(reports)
            self._dispatcher.resume()
            num_counted += len(reports)
        self._dispatcher.shut()
        return self._queue.loss

    def _next_name(self) -> str:
        """Return a name that no other evaluation has, of this coordinator or an earlier one."""
        self._num_evaluations += 1
        return f"{self._session}/{self._num_evaluations}"


def _check_start(progress: Progress) -> None:
    if progress.iteration == 0 and progress.gradient_norm == 0:
        raise MethodError(
            "a search must begin where the gradient is not 0, but it is 0 at the first weights (loss "
            f"{progress.loss:g}); begin with other weights, and rehearse with replicas on the CPU: a virtual GPU has "
            "no values to search by"
        )
