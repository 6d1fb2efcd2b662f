"""The message handler: what the launcher does with each message of a rank."""

from collections.abc import Callable, Sequence
from typing import Any

from sandtable.events import Listener, RankStepped
from sandtable.vgpu.broker import Broker
from sandtable.vgpu.group_order import MadeGroup
from sandtable.vgpu.host_clock import HostTime
from sandtable.vgpu.imports import ImportedModule
from sandtable.vgpu.key_value_store import KeyValueStore
from sandtable.vgpu.protocol import (
    Answer,
    Call,
    CallsLogged,
    FilesMade,
    FilesRemoved,
    GatherPosted,
    GroupsMade,
    ImportsLogged,
    LoaderState,
    Message,
    NodeMemoryNamed,
    PeerMet,
    PortFound,
    PortOwned,
    PortRecorded,
    PortWanted,
    RankFailed,
    RankSaved,
    ReceivePosted,
    SendPosted,
    StepEnded,
    StopOrdered,
    StoreAnswered,
    StoreRequested,
    ThreadWaiting,
)
from sandtable.vgpu.rank_process import RankOutcome, RankProcess
from sandtable.vgpu.shared_files import SharedFiles

__all__ = ["MessageHandler"]


class MessageHandler:
    """Passes calls on to the broker, and keeps the job's key-value store and the ports of ranks.

    `start_everyone(is_needed)` runs all ranks, because ranks find each other in their own ways, and
    `start_node(process)` those on the node of one; `meet(process, group, peer)` runs a rank that another one talks to
    point to point. `share_imports(modules)` imports what the first rank did for the ranks that follow, and
    `listen` takes an event for each step.
    """

    def __init__(
        self,
        broker: Broker,
        files: SharedFiles,
        *,
        start_everyone: Callable[[bool], None],
        start_node: Callable[[RankProcess], None],
        meet: Callable[[RankProcess, int, int], None],
        share_imports: Callable[[Sequence[ImportedModule]], None],
        listen: Listener,
    ) -> None:
        self._broker = broker
        self._files = files
        self._start_everyone = start_everyone
        self._start_node = start_node
        self._meet = meet
        self._share_imports = share_imports
        self._listen = listen
        self._stop_reason: str | None = None
        self._store = KeyValueStore()
        self._ports: dict[int, int] = {}
        self._handlers: dict[type, Callable[[RankProcess, Any], None]] = {
            GatherPosted: self._on_gather,
            ReceivePosted: self._on_receive,
            SendPosted: self._on_send,
            ThreadWaiting: self._on_thread,
            CallsLogged: self._on_calls,
            GroupsMade: self._on_groups,
            PeerMet: self._on_peer,
            StoreRequested: self._on_store,
            PortOwned: self._on_port,
            PortWanted: self._on_port_wanted,
            ImportsLogged: self._on_imports,
            StepEnded: self._on_step,
            NodeMemoryNamed: self._on_node_memory,
            FilesMade: self._on_files_made,
            FilesRemoved: self._on_files_removed,
            RankSaved: self._on_saved,
            RankFailed: self._on_failed,
        }

    def handle(self, process: RankProcess, message: Message) -> None:
        """Handle one message. Raises MismatchError or LaunchError."""
        self._handlers[type(message)](process, message)

    def stop_all(self, reason: str) -> None:
        """Start no more ranks, and answer every request with a stop from now on."""
        self._stop_reason = reason
        self._broker.stop_all(reason)

    def _on_gather(self, process: RankProcess, message: GatherPosted) -> None:
        call = Call(*message.call)
        self._broker.arrive(process.rank, call, HostTime(*message.host_time), message.timeout_seconds)
        self._broker.gather(process.rank, message.ticket, call, message.payload)

    def _on_receive(self, process: RankProcess, message: ReceivePosted) -> None:
        self._broker.receive(process.rank, message.ticket, Call(*message.call))

    def _on_send(self, process: RankProcess, message: SendPosted) -> None:
        self._broker.send(process.rank, Call(*message.call), message.payload)

    def _on_thread(self, process: RankProcess, message: ThreadWaiting) -> None:
        self._broker.note_aside(process.rank, message.ticket)

    def _on_calls(self, process: RankProcess, message: CallsLogged) -> None:
        self._broker.log(process.rank, message.texts, message.rows)

    def _on_groups(self, process: RankProcess, message: GroupsMade) -> None:
        self._broker.announce(process.rank, message)

    def _on_peer(self, process: RankProcess, message: PeerMet) -> None:
        if self._stop_reason is None:
            self._meet(process, message.group, message.peer)

    def _on_store(self, process: RankProcess, message: StoreRequested) -> None:
        if self._stop_reason is None:
            self._start_everyone(True)
        value = self._store.carry_out(message.operation, message.arguments)
        self._answer(process, StoreAnswered(message.ticket, value))

    def _on_port(self, process: RankProcess, message: PortOwned) -> None:
        if self._stop_reason is None:
            self._start_everyone(False)
        self._ports[message.port] = process.rank
        self._answer(process, PortRecorded(message.ticket))

    def _on_port_wanted(self, process: RankProcess, message: PortWanted) -> None:
        self._answer(process, PortFound(message.ticket, self._ports.get(message.port)))

    def _answer(self, process: RankProcess, answer: Answer) -> None:
        stop = self._stop_reason
        process.send(answer if stop is None else StopOrdered(answer.ticket, stop))

    def _on_imports(self, process: RankProcess, message: ImportsLogged) -> None:
        self._share_imports([ImportedModule(*module) for module in message.modules])

    def _on_step(self, process: RankProcess, message: StepEnded) -> None:
        self._listen(RankStepped(rank=process.rank, num_steps=message.num_steps))

    def _on_node_memory(self, process: RankProcess, message: NodeMemoryNamed) -> None:
        if self._stop_reason is None:
            self._start_node(process)

    def _on_files_made(self, process: RankProcess, message: FilesMade) -> None:
        self._files.add_made(process.rank, message.paths)

    def _on_files_removed(self, process: RankProcess, message: FilesRemoved) -> None:
        process.removed_files.extend(message.files)

    def _on_saved(self, process: RankProcess, message: RankSaved) -> None:
        process.private_bytes = message.private_bytes
        process.outcome = RankOutcome(
            stop_reason=message.stop_reason,
            digest=message.digest,
            num_steps=message.num_steps,
            has_flat_buffers=message.has_flat_buffers,
            chunked_dims=message.chunked_dims,
            stack=message.stack,
            loaders=tuple(LoaderState(*state) for state in message.loaders),
            made_groups=tuple(MadeGroup(*group) for group in message.made_groups),
            is_followed=message.is_followed,
            has_ended=message.has_ended,
        )

    def _on_failed(self, process: RankProcess, message: RankFailed) -> None:
        process.failure = message
