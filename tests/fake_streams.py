"""Streams without hardware: one kind keeps clocks, to prove what happens before what; one is late with every copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

Clock = dict[str, int]


class ClockedStreams:
    """Vector clocks: ``meta`` is a device with streams, ``cpu`` is the host. What is queued has a name and a clock."""

    def __init__(self) -> None:
        self.clocks: dict[str, Clock] = {}
        self.done: dict[str, tuple[str, Clock]] = {}
        self.held: list[str] = []
        self.lanes: list[str] = []

    def overlaps(self, device: torch.device) -> bool:
        return device.type == "meta"

    def queues(self, source: torch.device, target: torch.device) -> bool:
        return self.overlaps(source) or self.overlaps(target)

    def compute(self, device: torch.device) -> str:
        return f"compute {device}"

    def lane(self, device: torch.device, direction: str) -> str:
        return f"{direction} {device}"

    @contextlib.contextmanager
    def on(self, lanes: Iterable[str]) -> Iterator[None]:
        self.lanes = list(lanes)
        yield
        self.lanes = []

    def record(self, stream: str) -> Clock:
        return dict(self._clock(stream))

    def wait(self, stream: str, event: Clock) -> None:
        clock = self._clock(stream)
        for other, time in event.items():
            clock[other] = max(clock.get(other, 0), time)

    def synchronize(self, event: Clock) -> None:
        self.wait("host", event)

    def hold(self, tensor: torch.Tensor, stream: str) -> None:
        self.held.append(stream)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if getattr(tensor, "is_pinned_here", False) else tensor.clone()

    def send(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        queued = next(  # as torch does: on the current stream of the source, or of the target if that is the host
            lane for place in (tensor.device, device) for lane in reversed(self.lanes) if lane.endswith(f" {place}")
        )
        current = {lane.partition(" ")[2]: lane for lane in self.lanes}
        for other in current.values():  # between two devices both streams wait for each other
            self.wait(queued, self.record(other))
        self.happens("copy", queued)
        for other in current.values():
            self.wait(other, self.record(queued))
        return torch.empty_like(tensor, device=device)

    def happens(self, what: str, stream: str) -> None:
        """Queue something on a stream."""
        clock = self._clock(stream)
        self.wait(stream, self._clock("host"))  # nothing runs before it was queued
        clock[stream] = clock.get(stream, 0) + 1
        self.done[what] = (stream, dict(clock))

    def is_before(self, one: str, other: str) -> bool:
        """Whether one thing has happened whenever the other one begins."""
        stream, clock = self.done[one]
        return self.done[other][1].get(stream, 0) >= clock[stream]

    def _clock(self, stream: str) -> Clock:
        return self.clocks.setdefault(stream, {})


class LateStreams:
    """The CPU as a device whose copies happen when somebody waits for them, and not a moment earlier.

    Until then a copy is full of nonsense; memory that nobody keeps is gone.
    """

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.kept: list[torch.Tensor] = []
        self.lost = 0
        self.sent = 0

    def overlaps(self, device: torch.device) -> bool:
        return True

    def queues(self, source: torch.device, target: torch.device) -> bool:
        return True

    def compute(self, device: torch.device) -> str:
        return "compute"

    def lane(self, device: torch.device, direction: str) -> str:
        return direction

    def on(self, lanes: Iterable[str]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def record(self, stream: str) -> int:
        return 0 if stream == "compute" else self.sent

    def wait(self, stream: str, event: int) -> None:
        if stream == "compute":
            self.synchronize(event)

    def synchronize(self, event: int) -> None:
        while self.jobs and self.sent - len(self.jobs) < event:
            self._run(*self.jobs.pop(0))
        if not self.jobs:
            self.kept.clear()

    def hold(self, tensor: torch.Tensor, stream: str) -> None:
        if stream != "compute":
            self.kept.append(tensor)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def send(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        return _Late.apply(tensor, self)

    def queue(self, source: torch.Tensor, target: torch.Tensor) -> None:
        place = (source.dtype, source.size(), source.stride(), source.storage_offset())
        self.jobs.append((StorageWeakRef(source.untyped_storage()), place, target))
        self.sent += 1

    def _run(self, reference: StorageWeakRef, place: Any, target: torch.Tensor) -> None:
        storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        if storage is None:
            self.lost += 1
            return
        dtype, size, stride, offset = place
        target.copy_(torch.empty(0, dtype=dtype).set_(storage, offset, size, stride))


class _Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, streams: LateStreams) -> torch.Tensor:
        nonsense = torch.full_like(tensor, float("nan") if tensor.is_floating_point() else 1)
        streams.queue(tensor, nonsense.detach())
        return nonsense

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.clone(), None
