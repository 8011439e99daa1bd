"""Queue copies on side streams so that they overlap with computation, and make everybody wait who has to.

A copy is *begun* as soon as its value is there, *awaited* right before its first use, and *released* after its last.
Three rules hold, whatever runs when:

- nobody uses a copy before it has happened, and nobody changes what it reads before it was read;
- the memory that a copy reads is not given away before it was read;
- the memory of a copy is not given away before its last use has happened.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from fxpasses.devices import same_torch_device
from fxpasses.passes.placing_parts.copies import COPY
from fxpasses.passes.placing_parts.loading import note_load, under_functorch
from fxpasses.passes.placing_parts.streams import CudaStreams, Streams

__all__ = [
    "CopyEngine",
    "Ticket",
    "await_copy",
    "begin_copy",
    "begin_load",
    "finish_copies",
    "let_read",
    "release_copy",
]


class Ticket:
    """A copy under way.

    Attributes:
        copy: Where it goes; None once it was released.
        device: The device that receives it.
        event: Happens when it is done; None if it was done at once, from main memory to main memory.
        from_host: It reads the value itself in main memory, which only the host can wait for.
        is_kept: Autograd may keep the copy for the backward pass.
        staged: What the side stream reads, kept until the copy has surely happened; None where nobody has to.
        lane: The side stream.
    """

    __slots__ = ("copy", "device", "event", "from_host", "is_kept", "lane", "staged", "streams", "used")

    def __init__(
        self,
        streams: Streams,
        copy: torch.Tensor,
        device: torch.device,
        event: Any,
        *,
        from_host: bool,
        staged: torch.Tensor | None = None,
        lane: Any = None,
    ) -> None:
        self.streams = streams
        self.copy: torch.Tensor | None = copy
        self.device = device
        self.event = event
        self.from_host = from_host
        self.staged, self.lane = staged, lane
        self.is_kept = torch.is_grad_enabled()
        self.used = False

    def __del__(self) -> None:
        # Something raised before what is read was read, or before what was used was released: memory must outlive both.
        if self.staged is not None and self.streams.overlaps(self.staged.device):
            self.streams.hold(self.staged, self.lane)
        if self.copy is not None and self.used and self.streams.overlaps(self.device):
            self.streams.hold(self.copy, self.streams.compute(self.device))


class CopyEngine(torch.nn.Module):
    """Begins, awaits and releases copies. A module only because a graph can hold one; it has no state of the model.

    Args:
        streams: The streams of the devices; those of CUDA by default.
    """

    def __init__(self, streams: Streams | None = None) -> None:
        super().__init__()
        self.streams = streams or CudaStreams()

    def __deepcopy__(self, memo: dict[int, Any]) -> CopyEngine:
        return self  # streams are no state: two models may share them

    def __reduce__(self) -> Any:
        return (CopyEngine, ())

    def begin(self, value: torch.Tensor, device: torch.device) -> Ticket:
        """Queue a copy of ``value`` to ``device``; returns before it has happened."""
        streams, source = self.streams, value.device
        lanes = self._lanes(source, device)
        if not lanes:  # the caller gives in main memory what the model was captured with on a device
            return Ticket(streams, streams.send(value, device), device, None, from_host=False)
        if streams.overlaps(source):
            streams.wait(lanes[0], streams.record(streams.compute(source)))
        sent = self._readable(value)
        with streams.on(lanes):
            copy = streams.send(sent, device)
        from_host = sent is value and not streams.overlaps(source)
        staged: torch.Tensor | None = sent
        if streams.overlaps(source) and streams.overlaps(device):  # the host does not learn when it has happened
            streams.hold(value, lanes[0])
            staged = None
        event = streams.record(lanes[0])
        return Ticket(streams, copy, device, event, from_host=from_host, staged=staged, lane=lanes[0])

    def _readable(self, value: torch.Tensor) -> torch.Tensor:
        """What the side stream reads instead of a value: a pinned copy, or a view.

        Autograd remembers for each leaf the stream on which it was first used, and warns when gradients come on
        another one; the view is made on the stream on which operators run.
        """
        has_gradient = value.requires_grad and torch.is_grad_enabled()
        if not self.streams.overlaps(value.device):
            return value if has_gradient else self.streams.pinned(value)
        return value.view_as(value) if has_gradient and value.is_leaf else value

    def _lanes(self, source: torch.device, device: torch.device) -> list[Any]:
        """The side streams that a copy takes; the first one is that on which it is queued."""
        streams = self.streams
        lanes = (
            [streams.lane(source, "out")] if streams.overlaps(source) and not same_torch_device(source, device) else []
        )
        return [*lanes, streams.lane(device, "in")] if streams.overlaps(device) else lanes

    def wait(self, ticket: Ticket) -> torch.Tensor:
        """Give the copy to whoever comes next on its device."""
        if self.streams.overlaps(ticket.device):
            self.streams.wait(self.streams.compute(ticket.device), ticket.event)
        elif ticket.event is not None:
            self.streams.synchronize(ticket.event)
            ticket.staged = None  # it was read: its memory is free for the next value at once
        ticket.used = True
        assert ticket.copy is not None  # a graph awaits before it releases
        return ticket.copy

    def let_read(self, ticket: Ticket, device: torch.device) -> None:
        """Let who is about to write to the source, on ``device``, wait until the copy has read it."""
        if ticket.event is None:
            return
        if self.streams.overlaps(device):
            self.streams.wait(self.streams.compute(device), ticket.event)
        elif ticket.from_host:
            self.streams.synchronize(ticket.event)

    def release(self, ticket: Ticket) -> None:
        """Give the memory of a copy back once its last use, which is queued by now, has happened.

        Where nobody else holds it, the lane waits for the use and the memory is free for the next copy at once. Where
        autograd or a result may hold it, the allocator is told to look when the last holder lets go.
        """
        copy, device = ticket.copy, ticket.device
        if copy is None or not self.streams.overlaps(device):
            ticket.copy = None
            return
        compute = self.streams.compute(device)
        ticket.copy = None
        if ticket.is_kept or _is_held_elsewhere(copy):
            self.streams.hold(copy, compute)
        else:
            self.streams.wait(self.streams.lane(device, "in"), self.streams.record(compute))

    def finish(self, *tickets: Ticket) -> None:
        """Wait until copies that read main memory have done so: the caller may write to it."""
        for ticket in tickets:
            if ticket.from_host:
                self.streams.synchronize(ticket.event)


def _is_held_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether another variable than the caller's, or a view, keeps the memory of a tensor."""
    return any(now > alone for now, alone in zip(_holders(tensor), _holders_of_one(), strict=True))


def _holders(tensor: torch.Tensor) -> tuple[int, int]:
    return sys.getrefcount(tensor), int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _holders_of_one() -> tuple[int, int]:
    """Holders of a tensor in one variable, counted as deep as above: how many a call takes changes in a process.

    Once ``torch.compile`` has failed, for one, each call of a Python function holds its arguments once more.
    """

    def called_with(tensor: torch.Tensor) -> tuple[int, int]:
        return _holders(tensor)

    tensor = torch.empty(0)
    return called_with(tensor)


def begin_copy(engine: CopyEngine, value: torch.Tensor, device: torch.device) -> Ticket | torch.Tensor:
    """In a graph: :meth:`CopyEngine.begin`; while the graph is captured, a plain copy, which compilers know."""
    if torch.compiler.is_compiling():
        return _plain(value, device)
    return engine.begin(value, device)


def begin_load(engine: CopyEngine, value: torch.Tensor, device: torch.device) -> Ticket | torch.Tensor:
    """In a graph: :meth:`CopyEngine.begin` for a parameter of an offloaded part; while it is captured, a plain copy."""
    if torch.compiler.is_compiling():
        return _plain(value, device)
    is_recorded = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(is_recorded):  # the parameter is no inference tensor
        ticket = engine.begin(value, device)
    assert ticket.copy is not None  # it was begun just now
    if value.requires_grad and not (is_recorded or under_functorch()):
        ticket.copy.requires_grad_()  # as what is loaded without streams
    if note_load(ticket.copy, value):
        ticket.is_kept = False
    return ticket


def _plain(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    copy: torch.Tensor = COPY(value, device=device)
    return copy


def await_copy(engine: CopyEngine, ticket: Ticket | torch.Tensor) -> torch.Tensor:
    """In a graph: :meth:`CopyEngine.wait`."""
    return engine.wait(ticket) if isinstance(ticket, Ticket) else ticket


def let_read(engine: CopyEngine, ticket: Ticket | torch.Tensor, device: torch.device) -> None:
    """In a graph: :meth:`CopyEngine.let_read`."""
    if isinstance(ticket, Ticket):
        engine.let_read(ticket, device)


def release_copy(engine: CopyEngine, ticket: Ticket | torch.Tensor) -> None:
    """In a graph: :meth:`CopyEngine.release`."""
    if isinstance(ticket, Ticket):
        engine.release(ticket)


def finish_copies(engine: CopyEngine, *tickets: Ticket | torch.Tensor) -> None:
    """In a graph: :meth:`CopyEngine.finish`."""
    engine.finish(*[ticket for ticket in tickets if isinstance(ticket, Ticket)])
