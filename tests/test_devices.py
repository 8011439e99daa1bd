"""Devices and links: how they are described, and what is refused."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from work import lines_run

from fxpasses.devices import Device, Link, Topology, detect, fake_devices, parse_device, parse_link
from fxpasses.errors import InputError
from fxpasses.units import GiB, MiB

NO_DEVICE = "There is no device to place the model on; give at least one, such as Device('cpu')."


def test_a_device_is_read_from_the_command_line() -> None:
    device = parse_device("gpu=cuda:1,memory=40MiB,flops=19.5T,bandwidth=1.5TB/s,overhead=3us")

    assert Device("gpu", 40 * MiB, torch_device="cuda:1", flops=19.5e12, bandwidth=1.5e12, overhead=3e-6) == device


def test_a_link_is_read_from_the_command_line() -> None:
    assert Link("a", "b", 16 * GiB, 5e-6) == parse_link("a:b=16GiB/s,5us")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("left", "--device 'left' does not read NAME=TORCH_DEVICE; write it like left=cpu,memory=40MiB."),
        ("=cpu", "--device '=cpu' does not read NAME=TORCH_DEVICE; write it like left=cpu,memory=40MiB."),
        (
            "a=cpu,memory=4u",
            "--device 'a=cpu,memory=4u': '4u' is not a size in bytes: there is no unit 'u'; "
            "write it like 40MiB or 2GB.",
        ),
        (
            "a=cpu,colour=red",
            "--device 'a=cpu,colour=red' has an option 'colour=red'; there are memory, flops, bandwidth, overhead, "
            "backend and flops.DTYPE.",
        ),
        (
            "a=cpu,flops.=1e9",
            "--device 'a=cpu,flops.=1e9' has an option 'flops.=1e9'; there are memory, flops, bandwidth, overhead, "
            "backend and flops.DTYPE.",
        ),
        (
            "a=cpu,flops.float12=1e9",
            "--device 'a=cpu,flops.float12=1e9': flops_by_dtype names the type 'float12', which torch does not have; "
            "write it like float16.",
        ),
        (
            "a=cpu,flops=0",
            "--device 'a=cpu,flops=0': A device's flops must be a positive number, not 0.0.",
        ),
        (
            "a=toaster",
            "--device 'a=toaster' asks for the torch device 'toaster', which torch does not know; write cpu, cuda:0, "
            "mps, ...",
        ),
        ("a=cpu,memory=1GB,memory=2GB", "--device 'a=cpu,memory=1GB,memory=2GB' gives memory twice; take one out."),
        (
            "a=cpu,flops.float16=1T,flops.float16=2T",
            "--device 'a=cpu,flops.float16=1T,flops.float16=2T' gives flops.float16 twice; take one out.",
        ),
        (
            "a=cpu,flops=1e400",
            "--device 'a=cpu,flops=1e400': '1e400' is not a number of FLOP/s: it is too large for a number; write it "
            "like 2.5T.",
        ),
    ],
)
def test_a_device_that_makes_no_sense_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_device(text)

    assert sentence == str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a-b", "--link 'a-b' does not read A:B=RATE,LATENCY; write it like left:right=16GiB/s,5us."),
        ("a:b=0", "--link 'a:b=0': A link's bandwidth must be a positive number, not 0.0."),
        ("a:b=1GB/s,soon", "--link 'a:b=1GB/s,soon': 'soon' is not a time; write it like 5us."),
    ],
)
def test_a_link_that_makes_no_sense_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_link(text)

    assert sentence == str(caught.value)


def test_a_link_to_an_unknown_device_is_refused() -> None:
    with pytest.raises(InputError, match=r"^The link a:z names the device 'z', which is not among a, b\.$"):
        Topology((Device("a"), Device("b")), (Link("a", "z"),))


@pytest.mark.parametrize(
    ("end", "told"), [(Device("b"), "write 'b' for it"), (None, "None is no name"), (1, "1 is no name")]
)
def test_a_link_between_other_things_than_names_is_refused(end: Any, told: str) -> None:
    with pytest.raises(InputError) as caught:
        Link("a", end)

    assert f"A link joins two devices by their names; {told}." == str(caught.value)


def test_a_negative_memory_is_refused() -> None:
    with pytest.raises(InputError, match=r"^A device's memory is a number of bytes, not -1; leave it out"):
        Device("a", -1)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Device("a", overhead=-1e-6), "A device's overhead is a number of seconds from 0 on, not -1e-06."),
        (lambda: Device(""), "A device's name is a text that is not empty, not ''."),
        (lambda: Device(0), "A device's name is a text that is not empty, not 0."),  # type: ignore[arg-type]
        (lambda: Device("gpu\n"), "A device's name is a text that can be printed, not 'gpu\\n'."),
        (lambda: Device("gpu\udcff"), "A device's name is a text that can be printed, not 'gpu\\udcff'."),
        (lambda: Device("a", flops=True), "A device's flops must be a positive number, not True."),
        (lambda: Device("a", 1, "x"), "A device's logical_id is a whole number, not 'x'."),  # type: ignore[arg-type]
        (lambda: Device("a", is_fake="yes"), "A device's is_fake is True or False, not 'yes'."),  # type: ignore[arg-type]
        (
            lambda: Device("a", torch_device=None),  # type: ignore[arg-type]
            "A device's torch_device is what torch.device takes, like 'cpu' or 'cuda:0', not None.",
        ),
        (
            lambda: Device("a", flops_by_dtype=["float16"]),  # type: ignore[arg-type]
            "flops_by_dtype is a table like {\"bfloat16\": 990e12}, not ['float16'].",
        ),
        (lambda: Link("a", "b", 0), "A link's bandwidth must be a positive number, not 0."),
        (lambda: Link("a", "b", 1e9, -1), "A link's latency is a number of seconds from 0 on, not -1."),
        (lambda: Link("a", "a"), "A link joins two devices, and this one 'a' with itself; leave it out."),
        (
            lambda: Topology(fake_devices(2), (Link("device0", "device1"), Link("device0", "device1", 1e9))),
            "Two links lead from device0 to device1; give one, which counts both ways, or write the way back as "
            "device1:device0.",
        ),
        (
            lambda: Topology(fake_devices(1), ("a:b",)),  # type: ignore[arg-type]
            "Links are fxpasses.Link objects, not str ('a:b').",
        ),
        (
            lambda: Topology.of([Device("a"), Device("main memory")]),
            "A device cannot be called 'main memory': that is where reports say that inputs, results and offloaded "
            "parameters are; call it cpu, or host.",
        ),
        (
            lambda: Topology.of(fake_devices(2), Link("device0", "device1")),  # type: ignore[arg-type]
            "Links come as a list; write [Link('device0', 'device1', ...)].",
        ),
        (lambda: Topology.of(Device("a")), "Devices come as a list; write [Device('a', ...)]."),
        (
            lambda: Topology.of(Topology(fake_devices(2)), [Link("device0", "device1")]),
            "A Topology has its own links; give the others to it: Topology(devices, links).",
        ),
        (lambda: Topology.of(3), "Devices come as a list of fxpasses.Device objects, not as 3."),  # type: ignore[arg-type]
        (
            lambda: Topology.of(fake_devices(2), None),  # type: ignore[arg-type]
            "Links come as a list of fxpasses.Link objects, not as None.",
        ),
        (
            lambda: Topology.of([]),
            "There is no device to place the model on; give at least one, such as Device('cpu').",
        ),
        (
            lambda: Device("a", "12 parsecs"),
            "'12 parsecs' is not a size in bytes: there is no unit 'parsecs'; write it like 40MiB or 2GB.",
        ),
        (lambda: Device("a", "lots"), "'lots' is not a size in bytes; write it like 40MiB or 2GB."),
        (lambda: Device("a", "-40MiB"), "'-40MiB' is not a size in bytes; write it like 40MiB or 2GB."),
        (
            lambda: Device("a", backend=["eager"]),  # type: ignore[arg-type]
            "A device's backend is the name of one, such as eager, inductor, onnxruntime, openvino, not ['eager'].",
        ),
        (lambda: fake_devices(0), "fake_devices makes 1 device or more, not 0."),
        (
            lambda: fake_devices(2, memory=[1]),
            "memory has 1 entries for 2 devices; give one for each, or one for all.",
        ),
        (
            lambda: fake_devices(2, flops_by_dtype=[{"bfloat16": "1T"}] * 3),
            "flops_by_dtype has 3 entries for 2 devices; give one for each, or one for all.",
        ),
    ],
)
def test_devices_and_links_that_make_no_sense_are_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        make()

    assert sentence == str(caught.value)


def test_a_size_may_be_a_text_or_a_whole_number() -> None:
    assert [40 * MiB, 80 * 10**9] == [Device("a", "40MiB").available_mem_bytes, Device("a", 80e9).available_mem_bytes]
    assert [GiB, GiB] == [device.available_mem_bytes for device in fake_devices(2, memory="1GiB")]

    for size in (1.5, float("nan"), float("inf"), True, [1], 10**400):
        with pytest.raises(InputError, match=r"^A device's memory is a number of bytes, not "):
            Device("a", size)  # type: ignore[arg-type]


def test_devices_and_links_may_come_one_by_one() -> None:
    """They are read twice: once to look whether they make sense."""
    topology = Topology((Device(name) for name in "ab"), (Link("a", each) for each in "b"))

    assert (("a", "b"), 1) == (tuple(device.name for device in topology.devices), len(topology.links))


def test_a_rate_is_a_number_that_a_float_can_hold() -> None:
    """JSON has whole numbers of any length."""
    with pytest.raises(InputError, match=r"^A device's flops must be a positive number, not 1000"):
        Device("a", flops=10**400)
    with pytest.raises(InputError, match=r"^A device's overhead is a number of seconds from 0 on, not 1000"):
        Device("a", overhead=10**400)


def test_pairs_without_a_link_use_the_default_and_nothing_is_sent_within_a_device() -> None:
    topology = Topology((Device("a"), Device("b"), Device("c")), (Link("b", "a", 1e9, 1e-6),))

    assert pytest.approx(topology.seconds("a", "b", 1e6)) == 1e-6 + 1e-3
    assert topology.seconds("a", "c", 1e6) < 1e-3
    assert 0.0 == topology.seconds("a", "a", 1e6)


def test_numbers_may_be_those_of_numpy() -> None:
    device = Device(
        "a", np.int64(GiB), np.int32(3), flops=np.float32(2.0), bandwidth=np.int64(4), overhead=np.float32(0)
    )

    assert Device("a", GiB, 3, flops=2.0, bandwidth=4, overhead=0.0) == device
    assert int is type(device.available_mem_bytes)
    assert Link("a", "b", 8, 0.5) == Link("a", "b", np.int64(8), np.float32(0.5))
    with pytest.raises(InputError, match="A device's flops must be a positive number, not -1"):
        Device("a", flops=np.float32(-1))


def test_pairs_are_joined_along_the_fastest_routes() -> None:
    """A slow link beside a detour over two fast ones; what is small takes the way with less latency."""
    devices = [Device(name) for name in "abcd"]
    links = [Link("b", "a", 1e9, 1e-6), Link("b", "c", 2e9, 2e-6), Link("c", "a", 1e6, 1e-6), Link("c", "d", 3e9, 0.0)]

    topology = Topology.routed(devices, links)

    assert Link("a", "c", 1e9, 3e-6) == topology.link("c", "a")
    assert Link("a", "d", 1e9, 3e-6) == topology.link("a", "d")
    assert Link("b", "d", 2e9, 2e-6) == topology.link("b", "d")
    assert Link("c", "d", 3e9, 0.0) == topology.link("c", "d")
    assert Link("a", "c", 1e6, 1e-6) == Topology.routed(devices, links, size=1).link("a", "c")


def test_links_without_a_limit_have_none_there_and_back() -> None:
    """Also beside one whose ways differ, whose two rates count as one for what goes both ways."""
    devices = [Device(name) for name in "abc"]
    topology = Topology.of(devices, [Link("a", "b", math.inf), Link("b", "c", 1e9), Link("c", "b", 3e9)])

    both = topology.there_and_back()

    assert both.link("a", "b").bandwidth == math.inf
    assert both.link("b", "c").bandwidth == pytest.approx(1.5e9)


def test_a_link_counts_both_ways_unless_another_leads_back() -> None:
    up, down = Link("a", "b", 1e9, 1e-6), Link("b", "a", 4e9, 2e-6)

    assert up == Topology([Device("a"), Device("b")], [up]).link("b", "a")
    both = Topology([Device("a"), Device("b")], [up, down])
    assert (up, down) == (both.link("a", "b"), both.link("b", "a"))
    assert (0.5, 0.125) == (round(both.seconds("a", "b", 5e8), 3), round(both.seconds("b", "a", 5e8), 3))


def test_rates_may_be_texts() -> None:
    device = Device("a", "40MiB", flops="40T", bandwidth="900GB/s")

    assert (40e12, 900e9) == (device.flops, device.bandwidth)
    assert Link("a", "b", 2.0**34) == Link("a", "b", "16GiB/s")
    with pytest.raises(InputError, match="'fast' is not a rate in bytes per second; write it like 16GiB/s"):
        Link("a", "b", "fast")


def test_times_and_rates_of_types_may_be_texts() -> None:
    device = Device("a", overhead="5us", flops_by_dtype={"bfloat16": "990T", torch.float16: 1})

    assert (5e-6, {"bfloat16": 990e12, "float16": 1}) == (device.overhead, device.flops_by_dtype)
    assert Link("a", "b", 12.5e9, 2e-6) == Link("a", "b", "100Gb/s", "2us")
    with pytest.raises(InputError, match="'soon' is not a time; write it like 5us"):
        Link("a", "b", latency="soon")


def test_a_link_to_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="There is no device 'nope'; there are a, b"):
        Topology([Device("a"), Device("b")]).link("a", "nope")


def test_routes_follow_links_the_way_they_lead() -> None:
    """From a to c the way over b is fast, back it is not: there the direct link is better."""
    links = [Link("a", "b", 8e9, 0.0), Link("b", "a", 1e6, 0.0), Link("b", "c", 8e9, 0.0), Link("a", "c", 1e9, 0.0)]

    topology = Topology.routed([Device(name) for name in "abc"], links)

    assert Link("a", "c", 8e9, 0.0) == topology.link("a", "c")
    assert Link("c", "a", 1e9, 0.0) == topology.link("c", "a")
    assert Link("b", "a", 1e9, 0.0) == topology.link("b", "a")  # by way of c
    assert topology.link("b", "c") is topology.link("c", "b")


def test_a_route_knows_its_way() -> None:
    line = [Link("a", "b", 1e9), Link("b", "c", 2e9), Link("c", "d", 3e9)]

    topology = Topology.routed([Device(name) for name in "abcd"], line)

    assert (("b", "c"), ("b",), ()) == tuple(topology.link("a", end).via for end in "dcb")
    assert Link("a", "c", 1e9, 1e-5) == topology.link("a", "c")  # the way does not make it another link


def test_routes_are_compared_for_a_size_as_people_write_it() -> None:
    """A little takes the quick way, much the wide one."""
    devices = [Device(name) for name in "abc"]
    links = [Link("a", "c", 1e6, 1e-6), Link("a", "b", 1e9, 1e-3), Link("b", "c", 1e9, 1e-3)]

    little, much = (Topology.routed(devices, links, size=size).link("a", "c") for size in ("10B", "1MiB"))

    assert (1e6, 1e9) == (little.bandwidth, much.bandwidth)
    for size in (-1e12, float("nan"), True):
        with pytest.raises(InputError, match=f"Routes are compared for a number of bytes from 0 on, not {size!r}"):
            Topology.routed(devices, links, size=size)


def test_devices_without_a_route_between_them_are_refused() -> None:
    devices = [Device(name) for name in "abcd"]

    with pytest.raises(InputError, match=re.escape("No route joins a and c; give a link that does.")):
        Topology.routed(devices, [Link("a", "b"), Link("c", "d")])
    with pytest.raises(InputError, match=re.escape("No route joins a and b; give a link that does.")):
        Topology.routed(devices, [])


@pytest.mark.parametrize("reserve", [-0.1, 1, 2, float("nan"), "a tenth"])
def test_a_share_that_makes_no_sense_is_refused(reserve: Any) -> None:
    sentence = f"detect leaves a share of the memory to others, from 0 to below 1, not {reserve!r}."
    with pytest.raises(InputError, match=re.escape(sentence)):
        detect(reserve=reserve)


def test_the_machine_has_at_least_its_cpu() -> None:
    found = detect()

    assert found[-1].torch_device == "cpu"
    assert found[-1].memory > 0


@pytest.mark.parametrize(
    ("properties", "bandwidth"),
    [
        (SimpleNamespace(memory_clock_rate=3_201_000, memory_bus_width=6144), 4.92e12),  # kHz and bits: an H200
        (SimpleNamespace(memory_clock_rate=0, memory_bus_width=5120), 3.3e12),
        (SimpleNamespace(), 3.3e12),
    ],
)
def test_a_gpu_tells_its_memory_and_how_fast_it_is(
    properties: Any, bandwidth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the hardware; what its driver does not tell is that of its generation."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100 * GiB, 141 * GiB))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)

    gpu, cpu = detect()

    assert ("cuda:0", 90 * GiB, "cpu") == (gpu.torch_device, gpu.available_mem_bytes, cpu.torch_device)
    assert pytest.approx(bandwidth, rel=1e-2) == gpu.bandwidth
    assert (60e12, 990e12) == (gpu.peak_flops("float32"), gpu.peak_flops("bfloat16"))


def test_fake_devices_may_be_unequal() -> None:
    assert [device.available_mem_bytes for device in fake_devices(2, memory=[1, 2])] == [1, 2]
    fast, slow = fake_devices(
        2,
        flops=["2T", 1e12],
        bandwidth=["900GB/s", 1e11],
        overhead=["1us", 1e-5],
        flops_by_dtype=[{"bfloat16": "4T"}, {}],
    )
    assert (fast.flops, fast.bandwidth, fast.overhead, fast.peak_flops("bfloat16")) == (2e12, 9e11, 1e-6, 4e12)
    assert (slow.flops, slow.bandwidth, slow.overhead, slow.peak_flops("bfloat16")) == (1e12, 1e11, 1e-5, 1e12)


def test_fake_devices_are_alike_unless_told() -> None:
    first, second = fake_devices(2, overhead=0.0, flops_by_dtype={"float16": 3e12})
    assert (first.overhead, second.overhead) == (0.0, 0.0)
    assert first.peak_flops("float16") == second.peak_flops("float16") == 3e12
    assert Device("device0", None, 0, is_fake=True) == fake_devices(1)[0]


def test_a_device_may_be_faster_in_one_type() -> None:
    device = parse_device("a=cpu,flops=1e9,flops.bfloat16=4e9")

    assert 4e9 == device.peak_flops("bfloat16")
    assert 1e9 == device.peak_flops("float32")


def test_routes_over_links_of_many_rates_do_not_grow_with_the_rates() -> None:
    """All pairs were joined anew for each rate: 48 devices with a link of its own rate each took 23 seconds."""
    draw = random.Random(0)
    devices = [Device(f"d{number}") for number in range(24)]
    links = [
        Link(first.name, second.name, draw.uniform(1e9, 1e11), draw.uniform(1e-6, 1e-4))
        for first, second in itertools.combinations(devices, 2)
    ]

    assert lines_run(lambda: Topology.routed(devices, links)) < 24 * 24 * 2_000
    routed = Topology.routed(devices, links)
    for link in links:
        assert routed.seconds(link.first, link.second, 2**20) <= link.seconds(2**20) * (1 + 1e-12)
