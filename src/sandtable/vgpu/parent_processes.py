"""Parent processes: the script itself, once per node, where it starts the ranks.

They are forked like ranks, and their output is shown, but they are none: what they record is not used.
"""

import selectors
from collections.abc import Callable, Iterable

from sandtable.events import Listener
from sandtable.vgpu.failures import died, script_error
from sandtable.vgpu.fork_client import ForkClient
from sandtable.vgpu.fork_protocol import RankExited, RankForked
from sandtable.vgpu.processes import wants_core
from sandtable.vgpu.protocol import RankFailed, RankSaved
from sandtable.vgpu.rank_process import RankOutcome, RankProcess
from sandtable.vgpu.settings import RankTask

__all__ = ["ParentProcesses"]


class ParentProcesses:
    """The parent processes that run, by node; `selector` calls back when one prints or reports."""

    def __init__(self, client: ForkClient, listen: Listener, selector: selectors.BaseSelector) -> None:
        self.ranks: set[int] = set()
        """The processes among them that have become ranks, and report elsewhere how they end."""
        self._client = client
        self._listen = listen
        self._selector = selector
        self._processes: dict[int, RankProcess] = {}

    def __bool__(self) -> bool:
        return bool(self._processes)

    def __contains__(self, node: int) -> bool:
        return node in self._processes

    @property
    def are_busy(self) -> bool:
        """Whether one of them computes or reads a file."""
        numbers = [process.process_id for process in self._processes.values()]
        return any(number is not None and wants_core(number) for number in numbers)

    def start(self, node: int, task: RankTask) -> None:
        """Run the script on another node. It prints what the first one has printed, so this is not shown."""
        process = RankProcess(node, self._listen, is_sample=True, is_hidden=True)
        self._client.start(task, process.far_ends)
        process.close_far_ends()
        self.adopt([process])

    def adopt(self, processes: Iterable[RankProcess]) -> None:
        """Watch these processes from now on."""
        for process in processes:
            self._processes[process.rank] = process
            self._selector.register(process.channel, selectors.EVENT_READ, self._reporter(process))
            for pipe in (process.out, process.err):
                self._selector.register(pipe, selectors.EVENT_READ, self._reader(process, pipe))

    def on_event(self, event: RankForked | RankExited, *, is_ending: bool) -> None:
        """Take a report of the fork server. Raises ScriptError if a parent failed, unless all are being ended."""
        process = self._processes[event.rank]
        if isinstance(event, RankForked):
            process.process_id = event.process
            return
        self._take_messages(process, is_last=True)
        process.finish_output()
        registered = self._selector.get_map()
        for source in (process.channel, process.out, process.err):
            if source in registered:
                self._selector.unregister(source)
        process.close()
        del self._processes[event.rank]
        has_ended_well = process.failure is None and process.outcome is not None
        if not (is_ending or has_ended_well or process.process_id in self.ranks):
            process.out_lines.reveal()
            process.err_lines.reveal()
            raise script_error(event.rank, process.failure or died(event.exit_code, process.err_lines.kept))

    def _reporter(self, process: RankProcess) -> Callable[[], None]:
        def take() -> None:
            self._take_messages(process)
            if not process.is_open:
                self._selector.unregister(process.channel)

        return take

    def _reader(self, process: RankProcess, pipe: int) -> Callable[[], None]:
        def read() -> None:
            if not process.read_output(pipe):
                self._selector.unregister(pipe)

        return read

    def _take_messages(self, process: RankProcess, *, is_last: bool = False) -> None:
        for message in process.messages(is_last=is_last):
            if isinstance(message, RankFailed):
                process.failure = message
            elif isinstance(message, RankSaved):
                process.outcome = RankOutcome(
                    stop_reason=message.stop_reason, digest=message.digest, num_steps=message.num_steps
                )
