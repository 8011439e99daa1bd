"""The machines a model is placed on: devices with memory and speed, and the links between them.

A :class:`Device` is a description, not a handle: planning works without the hardware, running needs ``torch_device``.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from fxpasses.errors import InputError, PlacementError, also_as, came_from
from fxpasses.units import GiB, MiB, parse_bytes, parse_count, parse_rate, parse_seconds, plain_number

if TYPE_CHECKING:
    import torch

__all__ = [
    "BACKENDS",
    "MAIN_MEMORY",
    "Device",
    "Link",
    "Topology",
    "as_given",
    "check_torch_devices",
    "detect",
    "fake_devices",
    "holds_no_data",
    "is_here",
    "is_known",
    "parse_device",
    "parse_link",
]

MAIN_MEMORY = "main memory"
"""The name of the place where inputs, results and offloaded parameters are; no device may have it."""

BACKENDS = ("eager", "inductor", "onnxruntime", "openvino")
"""What may compile a device's parts; :mod:`fxpasses.backends` has them."""

DEFAULT_FLOPS = 100e9
DEFAULT_BANDWIDTH = 20e9
DEFAULT_OVERHEAD = 5e-6
DEFAULT_LINK_BANDWIDTH = 16 * GiB
DEFAULT_LINK_LATENCY = 5e-6
_DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "complex32", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
)


def _no_limit(size: float | str | None) -> int | None:
    """A size as people write it: bytes, ``80e9``, ``"40MiB"``."""
    if size is None:
        return None
    number = parse_bytes(size) if isinstance(size, str) else plain_number(size)
    if not _is_float(number) or number < 0 or number % 1 != 0:
        raise InputError(f"A device's memory is a number of bytes, not {size!r}; leave it out for 'no limit'.")
    return int(number)


def _count(value: Any) -> Any:
    return parse_count(value, "a number of FLOP/s") if isinstance(value, str) else plain_number(value)


def _rate(value: Any) -> Any:
    return parse_rate(value) if isinstance(value, str) else plain_number(value)


def _time(value: Any) -> Any:
    return parse_seconds(value) if isinstance(value, str) else plain_number(value)


def _is_float(value: Any) -> bool:
    """Whether costs can be computed with a value: a number that a float can hold."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max
    return isinstance(value, float)


def _positive(what: str, whose: str = "device") -> Callable[[object, attrs.Attribute[Any], Any], None]:
    def check(_instance: object, _attribute: attrs.Attribute[Any], value: Any) -> None:
        if not (_is_float(value) and value > 0):
            raise InputError(f"A {whose}'s {what} must be a positive number, not {value!r}.")

    return check


def _seconds(what: str) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    def check(_instance: object, _attribute: attrs.Attribute[Any], value: Any) -> None:
        if not _is_float(value) or not 0 <= value < math.inf:
            raise InputError(f"{what} is a number of seconds from 0 on, not {value!r}.")

    return check


def _named(_instance: object, _attribute: attrs.Attribute[Any], name: Any) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"A device's name is a text that is not empty, not {name!r}.")
    if not name.isprintable():
        raise InputError(f"A device's name is a text that can be printed, not {name!r}.")


def _torch_name(device: Any) -> str:
    """What ``torch.device`` takes, as text."""
    if isinstance(device, str) or type(device).__name__ == "device":
        return str(device)
    raise InputError(f"A device's torch_device is what torch.device takes, like 'cpu' or 'cuda:0', not {device!r}.")


def _number(_instance: object, _attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"A device's logical_id is a whole number, not {value!r}.")


def _yes_or_no(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, bool):
        raise InputError(f"A device's {attribute.name} is True or False, not {value!r}.")


def _rates(given: Mapping[Any, float | str]) -> Mapping[str, float]:
    """Types may be given as ``torch.bfloat16`` too."""
    if not isinstance(given, Mapping):
        raise InputError(f'flops_by_dtype is a table like {{"bfloat16": 990e12}}, not {given!r}.')
    return {str(dtype).removeprefix("torch."): _count(rate) for dtype, rate in given.items()}


def _known_rates(instance: object, attribute: attrs.Attribute[Any], rates: Mapping[str, float]) -> None:
    for dtype, rate in rates.items():
        if dtype not in _DTYPES:
            raise InputError(
                f"flops_by_dtype names the type {dtype!r}, which torch does not have; write it like float16."
            )
        _positive(f"flops in {dtype}")(instance, attribute, rate)


def _backend_name(_instance: object, _attribute: attrs.Attribute[Any], name: Any) -> None:
    if not isinstance(name, str):
        raise InputError(f"A device's backend is the name of one, such as {', '.join(BACKENDS)}, not {name!r}.")


def _listed(values: Any) -> Any:
    """A tuple of what may be read only once."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else values


def _names_of_devices(_instance: object, _attribute: attrs.Attribute[Any], names: Any) -> None:
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(f"A link's via is a list of the names of devices, not {names!r}.")


def _answers(_device: Any, _field: Any, supports: Any) -> None:
    if supports is not None and not callable(getattr(supports, "is_node_supported", supports)):
        raise InputError(f"supports is called as supports(submodules, node), and {supports!r} cannot be called.")


@attrs.frozen
class Device:
    """A place that holds tensors and runs operators.

    Args:
        name: How plans and reports call it; unique among the devices of one placement.
        available_mem_bytes: Its memory budget in bytes, or as text (``"40MiB"``); None means no limit.
        logical_id: A number that partitioners of the ``torch.fx`` family use; -1 when it does not matter.
        torch_device: Where tensors really go, as ``torch.device`` takes it: ``"cpu"``, ``"cuda:0"``.
        flops: Peak floating-point operations per second, or as text (``"40T"``).
        bandwidth: Memory bandwidth in bytes per second, or as text (``"900GB/s"``; a small ``b`` counts bits).
        overhead: Seconds that launching one operator costs, or as text (``"5us"``).
        backend: The backend that compiles this device's parts.
        supports: Says whether the device can run a node: called as ``supports(submodules, node)``; None means all.
        flops_by_dtype: Peak rates of types that are faster or slower than ``flops``: ``{"bfloat16": 990e12}``, or
            ``{"bfloat16": "990T"}``.
        is_fake: Whether it stands for hardware that is not here, though it runs on ``torch_device``: what kernels need
            for themselves is then not counted, as nothing is known of them.

    Raises:
        InputError: a size or a rate that makes no sense.
    """

    name: str = attrs.field(validator=_named)
    available_mem_bytes: int | None = attrs.field(default=None, converter=_no_limit)
    logical_id: int = attrs.field(default=-1, converter=plain_number, validator=_number)
    torch_device: str = attrs.field(default="cpu", kw_only=True, converter=_torch_name)
    flops: float = attrs.field(default=DEFAULT_FLOPS, kw_only=True, converter=_count, validator=_positive("flops"))
    bandwidth: float = attrs.field(
        default=DEFAULT_BANDWIDTH, kw_only=True, converter=_rate, validator=_positive("bandwidth")
    )
    overhead: float = attrs.field(
        default=DEFAULT_OVERHEAD, kw_only=True, converter=_time, validator=_seconds("A device's overhead")
    )
    backend: str = attrs.field(default="eager", kw_only=True, validator=_backend_name)
    supports: Any = attrs.field(default=None, kw_only=True, eq=False, repr=False, validator=_answers)
    flops_by_dtype: Mapping[str, float] = attrs.field(
        factory=dict, kw_only=True, converter=_rates, validator=_known_rates, hash=False
    )
    is_fake: bool = attrs.field(default=False, kw_only=True, validator=_yes_or_no)

    def peak_flops(self, dtype: str) -> float:
        """Peak floating-point operations per second in a type, as ``torch`` calls it: ``"float32"``."""
        return self.flops_by_dtype.get(dtype, self.flops)

    @property
    def has_known_kernels(self) -> bool:
        """Whether its kernels are those of this machine's CPU, of which it is known what they need for themselves."""
        return not self.is_fake and self.torch_device.partition(":")[0] == "cpu"

    @property
    def memory(self) -> float:
        """The budget in bytes, ``inf`` when there is none."""
        return math.inf if self.available_mem_bytes is None else float(self.available_mem_bytes)

    def runs(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        """Whether this device can run ``node``, by asking ``supports`` (or its ``is_node_supported``)."""
        if self.supports is None:
            return True
        question = getattr(self.supports, "is_node_supported", self.supports)
        try:
            return bool(question(submodules, node))
        except Exception as error:
            raise also_as(PlacementError, error)(
                f"Whether {self.name} supports {node.name} ({node.target}) is not known: its `supports` raised "
                f"{type(error).__name__}: {error}{came_from(node)}. Let it return True or False for every node.",
                node=node,
                reason=f"supports raised {type(error).__name__}",
            ) from error


def _end_of_link(_instance: object, _attribute: attrs.Attribute[Any], end: Any) -> None:
    if not isinstance(end, str):
        told = f"write {end.name!r} for it" if isinstance(end, Device) else f"{end!r} is no name"
        raise InputError(f"A link joins two devices by their names; {told}.")


@attrs.frozen
class Link:
    """A connection between two devices, the same in both directions unless another link leads the other way.

    Args:
        first: Name of one device.
        second: Name of the other.
        bandwidth: Bytes per second, or as text (``"16GiB/s"``, ``"100Gb/s"`` in bits).
        latency: Seconds before the first byte arrives, or as text (``"5us"``).
        via: The devices by way of which it leads, of a route that :meth:`Topology.routed` found over other links.
    """

    first: str = attrs.field(validator=_end_of_link)
    second: str = attrs.field(validator=_end_of_link)
    bandwidth: float = attrs.field(
        default=DEFAULT_LINK_BANDWIDTH, converter=_rate, validator=_positive("bandwidth", "link")
    )
    latency: float = attrs.field(default=DEFAULT_LINK_LATENCY, converter=_time, validator=_seconds("A link's latency"))
    via: tuple[str, ...] = attrs.field(
        default=(), kw_only=True, converter=_listed, validator=_names_of_devices, eq=False, repr=False
    )

    def __attrs_post_init__(self) -> None:
        if self.first == self.second:
            raise InputError(f"A link joins two devices, and this one {self.first!r} with itself; leave it out.")

    def seconds(self, size: float) -> float:
        """The time that ``size`` bytes take."""
        return self.latency + size / self.bandwidth


def as_given(place: object) -> str:
    """What was given where the name of a device is wanted, for a sentence.

    >>> as_given("gpu"), as_given(Device("gpu"))
    ("'gpu'", "'gpu' as a Device, write its name")
    """
    return f"{place.name!r} as a Device, write its name" if isinstance(place, Device) else repr(place)


@attrs.frozen
class Topology:
    """A set of devices and the links between them; pairs that no link names use the default link.

    One link between two devices counts both ways; where two join them, each counts from its first to its second.

    Raises:
        InputError: no device, two of one name, one called "main memory", a link to a device that is not there, or two
            from one device to another.
    """

    devices: tuple[Device, ...] = attrs.field(converter=_listed)
    links: tuple[Link, ...] = attrs.field(default=(), converter=_listed)

    def __attrs_post_init__(self) -> None:
        for what, given in (("Devices", self.devices), ("Links", self.links)):
            if not isinstance(given, tuple):
                raise InputError(f"{what} come as a list of fxpasses.{what[:-1]} objects, not as {given!r}.")
        if not self.devices:
            raise InputError("There is no device to place the model on; give at least one, such as Device('cpu').")
        names: dict[str, Device] = {}
        for device in self.devices:
            if not isinstance(device, Device):
                raise InputError(f"Devices are fxpasses.Device objects, not {type(device).__name__} ({device!r}).")
            if device.name == MAIN_MEMORY:
                raise InputError(
                    f"A device cannot be called {MAIN_MEMORY!r}: that is where reports say that inputs, results and "
                    "offloaded parameters are; call it cpu, or host."
                )
            if device.name in names:
                raise InputError(f"Two devices are called {device.name!r}; give each its own name.")
            names[device.name] = device
        known: dict[tuple[str, str], None] = {}
        for link in self.links:
            self._check_link(link, names)
            if (ends := (link.first, link.second)) in known:
                raise InputError(
                    f"Two links lead from {link.first} to {link.second}; give one, which counts both ways, or write "
                    f"the way back as {link.second}:{link.first}."
                )
            known[ends] = None

    def _check_link(self, link: Any, names: Mapping[str, Device]) -> None:
        if not isinstance(link, Link):
            raise InputError(f"Links are fxpasses.Link objects, not {type(link).__name__} ({link!r}).")
        for end in (link.first, link.second, *link.via):
            if end not in names:
                raise InputError(
                    f"The link {link.first}:{link.second} names the device {end!r}, which is not among "
                    f"{', '.join(names)}."
                )

    def __getitem__(self, name: str) -> Device:
        if (device := self._by_name.get(name)) is not None:
            return device
        raise InputError(f"There is no device {name!r}; there are {', '.join(d.name for d in self.devices)}.")

    def link(self, source: str, target: str) -> Link:
        """The link from one device to another; the default one where none was given.

        Raises:
            InputError: one of them is not there.
        """
        ends = (source, target)
        if (known := self._links.get(ends)) is None:
            known = self._links.get(ends[::-1]) or Link(self[source].name, self[target].name)
            self._links[ends] = known
        return known

    @cached_property
    def _by_name(self) -> dict[str, Device]:
        return {device.name: device for device in self.devices}

    @cached_property
    def _links(self) -> dict[tuple[str, str], Link]:
        """The links by their ends as they were given, and as somebody has asked for them since."""
        return {(link.first, link.second): link for link in self.links}

    def seconds(self, source: str, target: str, size: float, returned: float = 0) -> float:
        """The time that ``size`` bytes take from one device to another; 0 within a device.

        With what is ``returned`` later, as the gradient of a value is; the latency counts once, on the way there.
        """
        if source == target:
            return 0.0
        back = returned / self.link(target, source).bandwidth if returned else 0.0
        return self.link(source, target).seconds(size) + back

    def there_and_back(self) -> Topology:
        """The same for what goes one way and comes back as large, a value and its gradient, as one of both sizes.

        The latency counts once, on the way there. Where links are alike both ways that is no other topology.
        """
        pairs = [(link, self.link(link.second, link.first)) for link in self.links]
        if all(way.bandwidth == back.bandwidth for way, back in pairs):
            return self
        slow = [(way, (1 / way.bandwidth + 1 / back.bandwidth) / 2) for way, back in pairs]
        links = [attrs.evolve(way, bandwidth=1 / each if each else math.inf) for way, each in slow]
        return Topology(self.devices, links)

    def least_one_way(self) -> float:
        """The least share of its time :meth:`there_and_back` that a byte takes which does not come back."""
        times = [(1 / link.bandwidth, 1 / self.link(link.second, link.first).bandwidth) for link in self.links]
        return min((2 * way / (way + back) for way, back in times if way != back), default=1.0)

    @classmethod
    def routed(cls, devices: Iterable[Device], links: Iterable[Link], *, size: float | str = MiB) -> Topology:
        """Join all pairs along the routes that some links make: a line, a ring, a star, islands.

        The latencies of a route add up, and it is as fast as its slowest link. Each pair gets the route over which
        ``size`` bytes arrive first. What different pairs send over one link does not slow them down.

        Args:
            devices: The devices.
            links: The links that there are.
            size: For how many bytes routes are compared: a number, or ``"1MiB"``.

        Raises:
            InputError: no route joins two of the devices, that is no size, or what else a topology refuses.
        """
        known, compared = cls.of(devices, links), parse_bytes(size) if isinstance(size, str) else plain_number(size)
        if not _is_float(compared) or not 0 <= compared < math.inf:
            raise InputError(f"Routes are compared for a number of bytes from 0 on, not {size!r}.")
        ends = {pair for link in known.links for pair in ((link.first, link.second), (link.second, link.first))}
        beside: dict[str, list[Link]] = {device.name: [] for device in known.devices}
        for first, second in sorted(ends):
            beside[first].append(attrs.evolve(known.link(first, second), first=first, second=second))
        best = {pair: link for name in beside for pair, link in _best_routes(beside, name, compared)}
        pairs = list(itertools.combinations(sorted(device.name for device in known.devices), 2))
        for one, other in pairs:
            if (one, other) not in best:
                raise InputError(f"No route joins {one} and {other}; give a link that does.")
        there, back = [best[one, other] for one, other in pairs], [best[other, one] for one, other in pairs]
        apart = [way for route, way in zip(there, back, strict=True) if not _are_alike(route, way)]
        return cls(known.devices, (*there, *apart))

    @classmethod
    def of(cls, devices: Topology | Iterable[Device], links: Iterable[Link] = ()) -> Topology:
        """Take devices as users hand them over.

        Raises:
            InputError: one device or link that is not in a list, or links beside a topology, which has its own.
        """
        if isinstance(links, Link):
            raise InputError(f"Links come as a list; write [Link({links.first!r}, {links.second!r}, ...)].")
        if isinstance(devices, Device):
            raise InputError(f"Devices come as a list; write [Device({devices.name!r}, ...)].")
        if not isinstance(devices, Topology):
            return cls(devices, links)
        if _listed(links):
            raise InputError("A Topology has its own links; give the others to it: Topology(devices, links).")
        return devices


def _best_routes(
    beside: Mapping[str, Sequence[Link]], source: str, size: float
) -> Iterator[tuple[tuple[str, str], Link]]:
    """The route from one device to each other one over which so many bytes arrive first, with both ends.

    Routes are followed by latency, and on from a device only those that are faster than all that came there before
    (Hansen, "Bicriterion path problems", 1980): others arrive nowhere first.
    """
    found: dict[str, tuple[tuple[float, float], Link]] = {}
    fastest = dict.fromkeys(beside, 0.0)
    waiting: list[tuple[float, float, int, tuple[str, ...]]] = [(0.0, -math.inf, 0, (source,))]
    while waiting:
        latency, slowness, stops, path = heapq.heappop(waiting)
        here, bandwidth = path[-1], -slowness
        if bandwidth <= fastest[here]:
            continue
        fastest[here] = bandwidth
        if here != source:
            route = Link(source, here, bandwidth, latency, via=path[1:-1])
            rank = (route.seconds(size), slowness)
            if here not in found or rank < found[here][0]:
                found[here] = rank, route
        for link in beside[here]:
            rate = min(bandwidth, link.bandwidth)
            if rate > fastest[link.second]:
                heapq.heappush(waiting, (latency + link.latency, -rate, stops + 1, (*path, link.second)))
    return (((source, there), route) for there, (_rank, route) in found.items())


def _are_alike(first: Link, second: Link) -> bool:
    """Whether two links take the same for everything."""
    return (first.bandwidth, first.latency) == (second.bandwidth, second.latency)


_DEVICE_OPTIONS = ("memory", "flops", "bandwidth", "overhead", "backend")


def parse_device(text: str) -> Device:
    """Read a device as the command line takes it: ``NAME=TORCH_DEVICE[,memory=40MiB][,flops=..][,bandwidth=..]``.

    ``flops.bfloat16=990e12`` gives the rate in one type.

    >>> parse_device("left=cpu,memory=40MiB").available_mem_bytes
    41943040

    Raises:
        InputError: the text does not parse or makes no sense, or the torch device does not exist.
    """
    head, *options = text.split(",")
    name, equals, torch_device = head.partition("=")
    if not equals or not name.strip() or not torch_device.strip():
        raise InputError(f"--device {text!r} does not read NAME=TORCH_DEVICE; write it like left=cpu,memory=40MiB.")
    real = _real_device(torch_device.strip(), text)
    facts: dict[str, Any] = {}
    rates: dict[str, str] = {}
    for option in options:
        key, equals, value = (part.strip() for part in option.partition("="))
        known, _, dtype = key.partition(".")
        if known not in _DEVICE_OPTIONS or not equals or ("." in key and (known != "flops" or not dtype)):
            raise InputError(
                f"--device {text!r} has an option {option!r}; there are {', '.join(_DEVICE_OPTIONS)} and flops.DTYPE."
            )
        given, name_of_it = (rates, dtype) if dtype else (facts, key)
        if name_of_it in given:
            raise InputError(f"--device {text!r} gives {key} twice; take one out.")
        given[name_of_it] = value
    try:
        return Device(name.strip(), facts.pop("memory", None), torch_device=real, flops_by_dtype=rates, **facts)
    except InputError as error:
        raise InputError(f"--device {text!r}: {error}") from error


def _real_device(torch_device: str, text: str) -> str:
    import torch

    try:
        return str(torch.device(torch_device))
    except RuntimeError:
        raise InputError(
            f"--device {text!r} asks for the torch device {torch_device!r}, which torch does not know; "
            "write cpu, cuda:0, mps, ..."
        ) from None


def check_torch_devices(devices: Iterable[Device]) -> None:
    """Look whether torch knows the torch devices; they need not be on this machine.

    Raises:
        InputError: it does not know one.
    """
    for device in devices:
        if not is_known(device.torch_device):
            raise InputError(
                f"The device {device.name!r} is on the torch device {device.torch_device!r}, which torch does not "
                "know; write cpu, cuda:0, mps, ..."
            )


def is_known(torch_device: str) -> bool:
    """Whether torch knows a torch device; it need not be on this machine."""
    import torch

    try:
        torch.device(torch_device)
    except RuntimeError:
        return False
    return True


def holds_no_data(torch_device: str) -> bool:
    """Whether a torch device knows only what tensors look like: ``meta``, which is for planning."""
    import torch

    return is_known(torch_device) and torch.device(torch_device).type == "meta"


def is_here(torch_device: str) -> bool:
    """Whether this machine has a torch device."""
    import torch

    if not is_known(torch_device):
        return False
    device = torch.device(torch_device)
    if device.type in ("cpu", "meta"):
        return True
    backend = getattr(torch, device.type, None)
    if backend is None or not getattr(backend, "is_available", bool)():
        return False
    return (device.index or 0) < int(getattr(backend, "device_count", lambda: 1)())


def same_torch_device(one: str | torch.device, other: str | torch.device) -> bool:
    """Whether two devices are one, an index left out meaning the first of a kind; also of kinds that torch has not.

    >>> same_torch_device("cuda", "cuda:0"), same_torch_device("cuda:0", "cuda:1")
    (True, False)
    """
    (first, _, at), (second, _, there) = str(one).partition(":"), str(other).partition(":")
    return (first, at or "0") == (second, there or "0")


def is_given_on(given: torch.device, torch_device: str) -> bool:
    """Whether an input or a result of a model, as it was captured, is on a torch device when the model runs.

    A model captured on ``meta`` is planned as if its tensors were in main memory.
    """
    return same_torch_device(given, torch_device) or (given.type == "meta" and same_torch_device("cpu", torch_device))


def lies_on(given: torch.device, device: Device) -> bool:
    """Whether what lies on a torch device before a model is placed is on a device; not on hardware that is not here."""
    return not device.is_fake and is_given_on(given, device.torch_device)


def parse_link(text: str) -> Link:
    """Read a link as the command line takes it: ``A:B=16GiB/s,5us``.

    >>> parse_link("left:right=1GiB/s,5us")
    Link(first='left', second='right', bandwidth=1073741824.0, latency=5e-06)

    Raises:
        InputError: the text does not parse, or makes no sense.
    """
    ends, equals, facts = text.partition("=")
    first, colon, second = (end.strip() for end in ends.partition(":"))
    if not equals or not colon or not first or not second:
        raise InputError(f"--link {text!r} does not read A:B=RATE,LATENCY; write it like left:right=16GiB/s,5us.")
    rate, _, latency = facts.partition(",")
    try:
        return Link(first, second, rate, latency if latency.strip() else DEFAULT_LINK_LATENCY)
    except InputError as error:
        raise InputError(f"--link {text!r}: {error}") from error


def fake_devices(
    count: int,
    *,
    memory: float | str | Sequence[float | str | None] | None = None,
    flops: float | str | Sequence[float | str] = DEFAULT_FLOPS,
    bandwidth: float | str | Sequence[float | str] = DEFAULT_BANDWIDTH,
    overhead: float | str | Sequence[float | str] = DEFAULT_OVERHEAD,
    flops_by_dtype: Mapping[str, float | str] | Sequence[Mapping[str, float | str]] | None = None,
    torch_device: str = "cpu",
) -> tuple[Device, ...]:
    """Make ``count`` devices for planning without hardware; a sequence gives each its own memory or speed.

    They run on ``torch_device``, and stand for others: what kernels there need for themselves is not counted. What each
    argument means is told by :class:`Device`.

    >>> [device.name for device in fake_devices(2)]
    ['device0', 'device1']

    Raises:
        InputError: no device, or a sequence of another length.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"fake_devices makes 1 device or more, not {count!r}.")

    def each(what: str, given: Any) -> list[Any]:
        if isinstance(given, str) or not isinstance(given, Sequence):
            return [given] * count
        if len(given) != count:
            raise InputError(f"{what} has {len(given)} entries for {count} devices; give one for each, or one for all.")
        return list(given)

    memories, speeds = each("memory", memory), each("flops", flops)
    bandwidths, overheads = each("bandwidth", bandwidth), each("overhead", overhead)
    rates = each("flops_by_dtype", {} if flops_by_dtype is None else flops_by_dtype)
    return tuple(
        Device(
            f"device{index}",
            memories[index],
            index,
            torch_device=torch_device,
            flops=speeds[index],
            bandwidth=bandwidths[index],
            overhead=overheads[index],
            flops_by_dtype=rates[index],
            is_fake=True,
        )
        for index in range(count)
    )


# By CUDA compute capability: dense FLOP/s in float32 and in 16 bits, memory bytes/s (vendor data sheets; no TF32).
_CUDA_SPEED = {
    (7, 0): (14e12, {"float16": 112e12}, 0.9e12),
    (7, 5): (8e12, {"float16": 65e12}, 0.3e12),
    (8, 0): (19.5e12, {"float16": 312e12, "bfloat16": 312e12}, 1.6e12),
    (9, 0): (60e12, {"float16": 990e12, "bfloat16": 990e12}, 3.3e12),
}


def detect(*, reserve: float = 0.1) -> tuple[Device, ...]:
    """List what this machine has: each CUDA device, then the CPU.

    Args:
        reserve: The share of each device's free memory that is left to others.

    Raises:
        InputError: such a share makes no sense.
    """
    import torch

    reserve = plain_number(reserve)
    if not _is_float(reserve) or not 0 <= reserve < 1:
        raise InputError(f"detect leaves a share of the memory to others, from 0 to below 1, not {reserve!r}.")
    found = []
    for index in range(torch.cuda.device_count()):
        free, _total = torch.cuda.mem_get_info(index)
        capability = torch.cuda.get_device_capability(index)
        flops, by_dtype, usual = _CUDA_SPEED.get(capability, (20e12, {"float16": 40e12, "bfloat16": 40e12}, 1e12))
        found.append(
            Device(
                f"cuda{index}",
                int(free * (1 - reserve)),
                index,
                torch_device=f"cuda:{index}",
                flops=flops,
                flops_by_dtype=by_dtype,
                bandwidth=_cuda_bandwidth(torch.cuda.get_device_properties(index)) or usual,
            )
        )
    threads = torch.get_num_threads()
    memory = int(_free_memory() * (1 - reserve))
    return (*found, Device("cpu", memory, len(found), flops=threads * 30e9))


def _cuda_bandwidth(properties: Any) -> float:
    """Memory bytes/s of a CUDA device, two transfers a clock; 0 where the driver does not tell."""
    kilohertz, bits = (getattr(properties, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    return 2 * 1e3 * kilohertz * bits / 8


def _free_memory() -> int:
    """Bytes of main memory that are free or can be freed (Linux), else the physical size, else 8 GiB."""
    import os

    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8 * GiB
