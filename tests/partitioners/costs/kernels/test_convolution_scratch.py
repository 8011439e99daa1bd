"""What convolutions on the CPU need for themselves, against what torch's allocator was asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from allocations import allocated_peak
from kernel_bytes import assert_near, beside_its_result, has_instructions_for
from torch import Tensor, nn

from fxpasses import Device, InfeasibleError, Plan, fake_devices, lower
from fxpasses.partitioners.costs.kernels.kernel_scratch import scratch_bytes
from fxpasses.partitioners.costs.kernels.processor_blocks import LARGEST_VECTOR, vector_size
from fxpasses.programs import capture
from fxpasses.units import KiB

aten = torch.ops.aten


CONVOLUTIONS = {
    "image": ((2, 3, 64, 64), 32, 7, {"stride": 2, "padding": 3}),
    "layer": ((4, 32, 16, 16), 64, 3, {"padding": 1}),
    "odd channels": ((2, 12, 14, 14), 10, 3, {"padding": 1}),
    "one channel out": ((8, 24, 16, 16), 1, 3, {"padding": 1}),
    "fewer places": ((2, 32, 16, 16), 64, 3, {"padding": 1, "stride": 2}),
    "shortcut": ((2, 32, 16, 16), 64, 1, {"stride": 2}),
    "pointwise": ((16, 32, 8, 8), 32, 1, {}),
    "depthwise": ((2, 32, 16, 16), 32, 3, {"padding": 1, "groups": 32}),
    "groups": ((2, 32, 16, 16), 32, 3, {"padding": 1, "groups": 2}),
    "narrow groups": ((2, 24, 16, 16), 24, 3, {"padding": 1, "groups": 6}),
    "dilated": ((2, 32, 16, 16), 32, 3, {"padding": 2, "dilation": 2}),
    "one small sample": ((1, 8, 12, 12), 8, 3, {"padding": 1}),
    "sequence": ((4, 16, 40), 32, 5, {"padding": 2}),
    "volume": ((2, 16, 8, 8, 8), 32, 3, {"padding": 1}),
}


def convolution(name: str, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    shape, channels, kernel, options = CONVOLUTIONS[name]
    dims = len(shape) - 2
    settings = (options.get(key, usual) for key, usual in (("stride", 1), ("padding", 0), ("dilation", 1)))
    groups = options.get("groups", 1)
    weight = torch.randn(channels, shape[1] // groups, *[kernel] * dims, dtype=dtype)
    spread = ([each] * dims for each in settings)
    return (torch.randn(shape, dtype=dtype), weight, None, *spread, False, [0] * dims, groups)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_a_convolution_lays_out_its_operands(name: str, dtype: torch.dtype) -> None:
    assert_near(aten.convolution.default, convolution(name, dtype), more=1.3 if name == "narrow groups" else 1.1)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("mask", [[True, True, False], [True, False, False], [False, True, False]])
@pytest.mark.parametrize("name", ["layer", "fewer places", "pointwise", "depthwise", "groups", "dilated"])
def test_so_does_its_backward(name: str, mask: list[bool]) -> None:
    given, weight, _bias, *settings = convolution(name)
    gradient = torch.ones_like(aten.convolution.default(given, weight, None, *settings))

    args = (gradient, given, weight, [weight.shape[0]], *settings, mask)
    assert_near(aten.convolution_backward.default, args, more=1.15, tables=33_000)


def test_a_kernel_that_is_larger_than_its_input_sums_in_each_thread() -> None:
    given, weight = torch.randn(2, 8, 2, 2), torch.randn(8, 8, 3, 3)
    args = (torch.ones(2, 8, 2, 2), given, weight, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])

    assert scratch_bytes(aten.convolution_backward.default, args, (given, weight, None)) >= 4 * weight.nbytes
    assert_near(aten.convolution_backward.default, args)


BACKWARDS = {
    "layer": ((4, 64, 16, 16), (64, 64, 3, 3), {"padding": 1}),
    "wide kernel of each channel": ((2, 64, 8, 8), (64, 1, 7, 7), {"padding": 3, "groups": 64}),
    "odd channels": ((4, 20, 16, 16), (24, 20, 3, 3), {"padding": 1}),
    "groups": ((4, 64, 14, 14), (64, 16, 3, 3), {"padding": 1, "groups": 4}),
    "narrow groups": ((2, 32, 16, 16), (32, 8, 7, 7), {"padding": 3, "groups": 4}),
    "image in patches": ((2, 3, 64, 64), (16, 3, 4, 4), {"stride": 4}),
    "fewer places": ((4, 64, 16, 16), (128, 64, 3, 3), {"stride": 2, "padding": 1}),
    "volume": ((2, 8, 8, 8, 8), (8, 8, 3, 3, 3), {}),
    "transposed": ((4, 16, 8, 8), (16, 8, 4, 4), {"stride": 2, "padding": 1, "transposed": True}),
    "transposed from one place": ((4, 100, 1, 1), (100, 512, 4, 4), {"transposed": True}),
}


def either_way(name: str, last: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, list[Any]]:
    """A convolution, its input with channels first or last."""
    shape, weight, options = (BACKWARDS | GROUPED)[name]
    dims = len(shape) - 2
    form = torch.channels_last if dims == 2 else torch.channels_last_3d
    given = torch.randn(shape, dtype=dtype).contiguous(memory_format=form if last else torch.contiguous_format)
    spread = (("stride", 1), ("padding", 0), ("dilation", 1))
    stride, padding, dilation = ([options.get(key, usual)] * dims for key, usual in spread)
    settings = [stride, padding, dilation, "transposed" in options, [0] * dims, options.get("groups", 1)]
    return given, torch.randn(weight, dtype=dtype), settings


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(BACKWARDS))
def test_channels_may_come_last(name: str, last: bool) -> None:
    """Strided kernels have tables of some dozen KiB."""
    given, weight, settings = either_way(name, last, torch.float32)
    gradient = torch.randn_like(aten.convolution.default(given, weight, None, *settings))
    bias = [gradient.shape[1]]

    tables = 20_000 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 40_000
    assert_near(aten.convolution.default, (given, weight, torch.randn(bias), *settings), tables=tables)
    args = (gradient, given, weight, bias, *settings, [True, True, True])
    assert_near(aten.convolution_backward.default, args, tables=tables)


GROUPED = {
    "strided groups": ((2, 16, 12, 12), (24, 8, 3, 3), {"stride": 2, "groups": 2}),
    "few strided groups": ((2, 2, 50, 50), (24, 1, 7, 7), {"stride": 3, "groups": 2}),
    "pointwise groups": ((4, 48, 28, 28), (2, 24, 1, 1), {"groups": 2}),
    "transposed groups": ((1, 24, 33, 33), (24, 12, 4, 4), {"stride": 2, "groups": 2, "transposed": True}),
    "transposed to one channel": ((4, 32, 8, 8), (32, 1, 5, 5), {"stride": 2, "padding": 2, "transposed": True}),
    "dilated depthwise": ((2, 20, 16, 16), (20, 1, 3, 3), {"padding": 2, "dilation": 2, "groups": 20}),
    "dilated depthwise, wide": ((2, 16, 28, 28), (16, 1, 5, 5), {"padding": 4, "dilation": 2, "groups": 16}),
    "transposed depthwise volume": ((1, 8, 8, 8, 8), (8, 1, 4, 4, 4), {"padding": 2, "groups": 8, "transposed": True}),
    "pointwise volume in groups": ((2, 24, 10, 10, 10), (64, 12, 1, 1, 1), {"groups": 2}),
}


TOO_HIGH = ("transposed groups", True)
"""What is predicted to be larger than it is by a quarter."""


TOO_LOW = ("transposed to one channel", False)
"""On processors with AVX2."""


@pytest.mark.parametrize(
    ("name", "last"),
    [(name, last) for name in GROUPED for last in (False, True) if (name, last) not in (TOO_HIGH, TOO_LOW)],
)
def test_groups_dilation_and_what_is_transposed_need_what_is_predicted(name: str, last: bool) -> None:
    given, weight, settings = either_way(name, last, torch.float32)
    gradient = torch.randn_like(aten.convolution.default(given, weight, None, *settings))
    bias = [gradient.shape[1]]

    assert_near(aten.convolution.default, (given, weight, torch.randn(bias), *settings), tables=75_000, short=512)
    args = (gradient, given, weight, bias, *settings, [True, True, True])
    assert_near(aten.convolution_backward.default, args, tables=75_000, short=512)


def test_of_other_devices_nothing_is_known() -> None:
    args = convolution("layer")
    on_meta = tuple(each.to("meta") if isinstance(each, Tensor) else each for each in args)

    assert 0 == scratch_bytes(aten.convolution.default, on_meta, on_meta[0].new_empty(4, 64, 16, 16))


class UNet(nn.Module):
    """Convolutions down and up, with a skip (Ronneberger et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 16, 3, padding=1)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x).relu()
        deep = self.mid(nn.functional.max_pool2d(skip, 2)).relu()
        return self.out(self.last(torch.cat([self.up(deep), skip], 1)).relu())


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("decomposed", [False, True])
def test_a_convolutional_net_takes_what_is_predicted(batch: int, decomposed: bool) -> None:
    """It took 1.4 times as much, as only what operators make was counted."""
    model, x = UNet().eval(), torch.randn(batch, 3, 64, 64)
    program = capture(model, (x,))
    lowered = lower(program.run_decompositions() if decomposed else program, devices=[Device("only")])

    with torch.no_grad():
        real = allocated_peak(lambda: lowered(x)) + x.nbytes + sum(each.nbytes for each in model.parameters())

    assert real <= lowered.report.devices[0].peak_bytes <= 1.02 * real


def test_an_error_tells_what_is_needed_only_while_an_operator_runs() -> None:
    with pytest.raises(InfeasibleError) as failure:
        lower(UNet().eval(), (torch.randn(1, 3, 64, 64),), devices=[Device("small", 600 * KiB)])

    assert str(failure.value).startswith(
        "conv2d (aten.conv2d.default) needs 738 KiB on one device for what it reads and makes (432 KiB of it only "
        "while it runs), but the largest device that can run it has 600 KiB: 138 KiB are missing; it comes from "
    )


def test_devices_that_stand_for_others_have_kernels_of_which_nothing_is_known() -> None:
    """Planning for an accelerator is not about oneDNN; plans remember which devices those are."""
    model, x = UNet().eval(), torch.randn(4, 3, 64, 64)
    here, fake = (lower(model, (x,), devices=devices) for devices in ([Device("only")], fake_devices(1)))

    assert fake.report.devices[0].peak_bytes < 0.9 * here.report.devices[0].peak_bytes
    again = Plan.from_json(fake.plan.to_json())
    assert again.devices[0].is_fake
    assert again.simulate(capture(model, (x,))).timeline.peak("device0") == fake.report.devices[0].peak_bytes


HALF_CONVOLUTIONS = {
    "patches": ((3, 3, 32, 32), (64, 3, 16, 16), {"stride": 16}),
    "large patches": ((1, 3, 224, 224), (64, 3, 14, 14), {"stride": 14}),
    "few patches": ((1, 3, 28, 28), (384, 3, 14, 14), {"stride": 14}),
    "first layer": ((2, 3, 96, 96), (32, 3, 7, 7), {"stride": 2, "padding": 3}),
    "small patches": ((3, 3, 32, 32), (16, 3, 4, 4), {"stride": 4}),
    "image": ((3, 3, 32, 32), (16, 3, 7, 7), {"stride": 4, "padding": 3}),
    "fewer places": ((3, 16, 32, 32), (32, 16, 3, 3), {"stride": 2, "padding": 1}),
    "few places": ((3, 64, 8, 8), (128, 64, 3, 3), {"padding": 1}),
    "deep": ((2, 128, 28, 28), (128, 128, 3, 3), {"stride": 2, "padding": 1}),
    "downsampling": ((1, 96, 28, 28), (192, 96, 2, 2), {"stride": 2}),
    "groups": ((3, 32, 32, 32), (32, 8, 3, 3), {"padding": 1, "groups": 4}),
    "wave": ((3, 1, 200), (16, 1, 10), {"stride": 5}),
    "sequence": ((2, 384, 300), (384, 384, 3), {"stride": 2, "padding": 1}),
    "sequence in groups": ((3, 16, 200), (32, 4, 3), {"stride": 2, "groups": 4}),
    "volume": ((2, 8, 8, 8, 8), (8, 8, 3, 3, 3), {"padding": 1}),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize("name", list(HALF_CONVOLUTIONS))
def test_tiles_of_convolutions_in_bfloat16_are_never_predicted_too_small(name: str) -> None:
    """How much is copied for them depends on caches; of a gradient at most some hundred bytes are missing."""
    shape, weight_shape, options = HALF_CONVOLUTIONS[name]
    dims = len(shape) - 2
    spread = (("stride", 1), ("padding", 0), ("dilation", 1))
    stride, padding, dilation = ([options.get(key, usual)] * dims for key, usual in spread)
    settings = [stride, padding, dilation, False, [0] * dims, options.get("groups", 1)]
    given, weight = torch.randn(shape).bfloat16(), torch.randn(weight_shape).bfloat16()
    bias = [weight.shape[0]]
    args = (given, weight, torch.randn(bias).bfloat16(), *settings)
    made = aten.convolution.default(*args)
    backward = (torch.randn_like(made), given, weight, bias, *settings, [True, True, True])
    gradients = aten.convolution_backward.default(*backward)

    real = beside_its_result(lambda: aten.convolution.default(*args))
    assert real <= scratch_bytes(aten.convolution.default, args, made) + 512
    real = beside_its_result(lambda: aten.convolution_backward.default(*backward))
    assert real <= scratch_bytes(aten.convolution_backward.default, backward, gradients) + 512


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize("shape", [(4, 32, 64, 64), (1, 96, 28, 28), (2, 20, 33, 33), (2, 8, 32, 32), (2, 24, 3136)])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (7, 1), (3, 2), (5, 2)])
def test_one_channel_a_group_fills_no_tile(shape: tuple[int, ...], kernel: int, stride: int) -> None:
    """It was predicted a third too high, and too low where channels fill no block."""
    dims, channels = len(shape) - 2, shape[1]
    given, weight = torch.randn(shape).bfloat16(), torch.randn(channels, 1, *[kernel] * dims).bfloat16()
    settings = ([stride] * dims, [kernel // 2] * dims, [1] * dims, False, [0] * dims, channels)

    args = (given, weight, torch.randn(channels).bfloat16(), *settings)
    assert_near(aten.convolution.default, args, tables=13_000, short=0)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("channels", "places"), [(64, 2), (128, 2), (128, 4), (256, 7)])
def test_a_kernel_of_each_channel_may_be_larger_than_its_input(channels: int, places: int, last: bool) -> None:
    given = torch.randn(2, channels, places, places)
    given = given.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    settings = ([channels], [1, 1], [1, 1], [1, 1], False, [0, 0], channels, [True, True, True])

    args = (given, given, torch.randn(channels, 1, 3, 3), *settings)
    assert_near(aten.convolution_backward.default, args, tables=1_024, short=512)


APART = {
    "strided depthwise": ((2, 48, 26, 26), (48, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 48}),
    "unevenly strided depthwise": ((2, 48, 25, 25), (48, 1, 5, 5), {"stride": 2, "padding": 2, "groups": 48}),
    "dilated depthwise": ((2, 48, 24, 24), (48, 1, 3, 3), {"padding": 2, "dilation": 2, "groups": 48}),
    "strided and dilated": ((2, 20, 25, 25), (20, 1, 3, 3), {"stride": 2, "padding": 2, "dilation": 2, "groups": 20}),
    "strided depthwise sequence": ((2, 48, 301), (48, 1, 5), {"stride": 2, "padding": 2, "groups": 48}),
    "strided depthwise volume": ((2, 20, 8, 8, 8), (20, 1, 3, 3, 3), {"stride": 2, "padding": 1, "groups": 20}),
    "depthwise volume": ((2, 20, 8, 8, 8), (20, 1, 3, 3, 3), {"padding": 1, "groups": 20}),
    "dilated depthwise volume": ((2, 20, 8, 8, 8), (20, 1, 3, 3, 3), {"padding": 2, "dilation": 2, "groups": 20}),
    "strided groups": ((1, 20, 24, 24), (20, 5, 3, 3), {"stride": 2, "padding": 1, "groups": 4}),
    "dilated groups": ((1, 20, 24, 24), (20, 5, 3, 3), {"padding": 2, "dilation": 2, "groups": 4}),
    "strided and dilated groups": (
        (1, 24, 24, 24),
        (24, 6, 3, 3),
        {"stride": 2, "padding": 2, "dilation": 2, "groups": 4},
    ),
    "strided and dilated channels": ((2, 12, 25, 25), (16, 12, 3, 3), {"stride": 2, "padding": 2, "dilation": 2}),
    "strided and dilated volume": ((2, 12, 9, 9, 9), (12, 12, 3, 3, 3), {"stride": 2, "padding": 2, "dilation": 2}),
    "strided volume": ((1, 48, 13, 13, 13), (12, 48, 3, 3, 3), {"stride": 2, "padding": 1}),
    "dilated volume": ((1, 24, 13, 13, 13), (24, 24, 3, 3, 3), {"padding": 2, "dilation": 2}),
    "transposed depthwise": ((2, 20, 13, 13), (20, 1, 3, 3), {"stride": 2, "groups": 20, "transposed": True}),
    "transposed volume": ((1, 12, 8, 8, 8), (12, 12, 3, 3, 3), {"stride": 2, "dilation": 2, "transposed": True}),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(APART))
def test_kernels_whose_places_lie_apart_are_never_predicted_too_small(
    name: str, last: bool, dtype: torch.dtype
) -> None:
    """Strided, dilated or both, in groups or not: of backwards of one channel a group up to 98 % were missing."""
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("no instructions for bfloat16 on this processor")
    assert_enough(*APART[name], last=last, dtype=dtype)


def assert_enough(
    shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    options: dict[str, Any],
    *,
    last: bool,
    dtype: torch.dtype,
) -> None:
    """Never less than a convolution and its backward ask for."""
    if last and len(shape) not in (4, 5):
        pytest.skip("sequences have no such layout")
    dims, is_transposed = len(shape) - 2, "transposed" in options
    form = (torch.channels_last, torch.channels_last_3d)[dims == 3] if last else torch.contiguous_format
    spread = (("stride", 1), ("padding", 0), ("dilation", 1))
    stride, padding, dilation = ([options.get(key, usual)] * dims for key, usual in spread)
    settings = [stride, padding, dilation, is_transposed, [0] * dims, options.get("groups", 1)]
    given = torch.randn(shape).to(dtype).contiguous(memory_format=form)
    weight = torch.randn(weight_shape).to(dtype)
    bias = [weight_shape[1] * options.get("groups", 1) if is_transposed else weight_shape[0]]
    args = (given, weight, torch.randn(bias).to(dtype), *settings)
    made = aten.convolution.default(*args)

    real = beside_its_result(lambda: aten.convolution.default(*args))
    assert real <= scratch_bytes(aten.convolution.default, args, made) + 512
    for mask in ([True, True, True], [True, False, False], [False, True, False]):
        backward = (torch.randn_like(made), given, weight, bias, *settings, mask)
        gradients = aten.convolution_backward.default(*backward)
        real = beside_its_result(lambda backward=backward: aten.convolution_backward.default(*backward))
        assert real <= scratch_bytes(aten.convolution_backward.default, backward, gradients) + 512


FEW_KNOW = {
    "kernel that reaches further": ((1, 24, 5, 5), (4, 24, 7, 7), {"padding": 6, "dilation": 2}),
    "volumes that are smaller": ((8, 8, 4, 4, 4), (8, 8, 4, 4, 4), {"padding": 1, "transposed": True}),
    "dilated volume": ((4, 48, 12, 12, 12), (2, 48, 2, 2, 2), {"dilation": 3}),
    "few strided channels of volumes": ((8, 12, 8, 8, 8), (2, 12, 2, 2, 2), {"stride": 2}),
    "one channel of volumes": ((2, 1, 12, 12, 12), (1, 1, 4, 4, 4), {"stride": 3, "padding": 1}),
    "strided groups of volumes": ((2, 48, 11, 11, 11), (96, 6, 3, 3, 3), {"stride": 2, "groups": 8}),
    "strided groups of a sequence": ((4, 128, 265), (96, 16, 3), {"stride": 3, "padding": 1, "groups": 8}),
    "one that starts outside": ((1, 8, 4, 4), (8, 1, 3, 3), {"stride": 3, "padding": 1, "groups": 8}),
    "as large as what it reads": ((2, 24, 7, 7), (2, 24, 7, 7), {}),
    "small volume transposed": ((1, 32, 12, 12, 12), (32, 5, 2, 2, 2), {"transposed": True}),
    "strided volume transposed": ((1, 64, 14, 14, 14), (64, 16, 1, 1, 1), {"stride": 2, "transposed": True}),
    "one dilated sample": ((1, 64, 11, 11), (100, 64, 2, 2), {"stride": 3, "dilation": 2}),
    "transposed groups": ((1, 3, 35, 35), (3, 2, 5, 5), {"stride": 3, "padding": 1, "groups": 3, "transposed": True}),
    "pointwise transposed groups": ((1, 20, 33, 33), (20, 32, 1, 1), {"groups": 4, "transposed": True}),
    "what a stride leaves over": ((2, 8, 38, 38), (96, 8, 5, 5), {"stride": 2}),
    "many places": ((2, 32, 56, 56), (32, 32, 3, 3), {"padding": 1}),
    "pointwise": ((4, 32, 28, 28), (64, 32, 1, 1), {}),
    "strided and dilated groups": (
        (2, 32, 32, 32),
        (24, 8, 5, 5),
        {"stride": 3, "padding": 4, "dilation": 2, "groups": 4},
    ),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(FEW_KNOW))
def test_sizes_that_few_kernels_know_are_never_predicted_too_small(name: str, last: bool) -> None:
    """Other kernels do them: of the gradient of a weight up to 97 % were missing."""
    assert_enough(*FEW_KNOW[name], last=last, dtype=torch.float32)


WITH_TILES = {
    "transposed volume": ((1, 100, 11, 11, 11), (100, 12, 3, 3, 3), {"transposed": True}),
    "volume to few channels": ((2, 64, 3, 3, 3), (64, 1, 3, 3, 3), {"transposed": True}),
    "dilated volume": ((2, 64, 7, 7, 7), (100, 64, 4, 4, 4), {"padding": 4, "dilation": 3}),
    "strided and dilated": ((2, 100, 19, 19), (24, 100, 7, 7), {"stride": 3, "padding": 6, "dilation": 2}),
    "kernel that reaches further": ((1, 100, 6, 6), (32, 100, 7, 7), {"padding": 9, "dilation": 3}),
    "depthwise that reaches across": ((1, 4, 19, 19), (4, 1, 7, 7), {"padding": 9, "dilation": 3, "groups": 4}),
    "small strided groups": ((1, 12, 3, 3), (16, 6, 2, 2), {"stride": 2, "groups": 2}),
    "strided places": ((4, 32, 389), (100, 32, 1), {"stride": 2}),
    "strided places of volumes": ((1, 96, 6, 6, 6), (5, 96, 1, 1, 1), {"stride": 3}),
    "patches": ((2, 96, 32, 32), (96, 100, 2, 2), {"stride": 2, "transposed": True}),
    "wide kernel": ((2, 100, 11, 11), (100, 100, 7, 7), {"padding": 3}),
    "more places than are read": ((2, 32, 36, 36), (8, 32, 4, 4), {"padding": 3}),
    "dilated, with a wide border": ((2, 32, 36, 36), (8, 32, 4, 4), {"padding": 6, "dilation": 3}),
    "dilated groups of one place": ((4, 8, 13, 20), (64, 1, 5, 5), {"dilation": 3, "groups": 8}),
    "unevenly strided depthwise": ((4, 96, 27, 27), (96, 1, 4, 4), {"stride": 3, "padding": 2, "groups": 96}),
    "depthwise with a wide border": (
        (1, 4, 37, 37),
        (4, 1, 7, 7),
        {"stride": 2, "padding": 9, "dilation": 3, "groups": 4},
    ),
    "patches with a border": ((1, 100, 39, 39), (100, 3, 2, 2), {"stride": 2, "padding": 1, "transposed": True}),
    "steps transposed": ((2, 48, 24, 24), (48, 24, 4, 4), {"stride": 2, "padding": 1, "transposed": True}),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(WITH_TILES))
def test_volumes_and_strides_with_tiles_are_never_predicted_too_small(name: str, last: bool) -> None:
    """Borders of what is read the other way round, and whole tiles of weights, were missing: up to 87 %."""
    assert_enough(*WITH_TILES[name], last=last, dtype=torch.bfloat16)


@pytest.mark.parametrize("shape", [(4, 4, 380), (2, 32, 21, 21), (1, 32, 3, 3, 3)])
def test_one_place_in_bfloat16_is_added_up_in_floats(shape: tuple[int, ...]) -> None:
    """Without tiles up to seven tenths were missing."""
    if not has_instructions_for(torch.bfloat16):
        pytest.skip("no instructions for bfloat16 on this processor")
    weight = (16, shape[1], *[1] * (len(shape) - 2))

    assert_enough(shape, weight, {}, last=False, dtype=torch.bfloat16)


FEW_PLACES = {
    "a volume in one place": ((2, 64, 4, 3, 3), (4, 64, 3, 3, 3), {"stride": 3}),
    "rows that are patches": ((2, 64, 32, 4), (8, 64, 4, 4), {"stride": 4}),
    "wide patches": ((2, 128, 7, 7), (64, 128, 7, 7), {"stride": 7}),
    "large kernel of a volume": ((1, 5, 10, 10, 10), (16, 5, 7, 7, 7), {"padding": 3}),
    "large strided kernel of a volume": ((2, 8, 12, 12, 12), (64, 8, 7, 7, 7), {"stride": 3}),
    "kernel that is larger than a volume": ((2, 2, 6, 5, 5), (2, 2, 7, 7, 7), {"stride": 2, "padding": 1}),
    "one place with a border": ((2, 64, 1, 1, 1), (96, 64, 1, 1, 1), {"stride": 3, "padding": 1}),
    "one place of groups with a border": ((2, 16, 3, 3, 3), (4, 8, 1, 1, 1), {"padding": 1, "groups": 2}),
    "one place that is said to lie apart": ((2, 5, 40, 40), (64, 5, 1, 1), {"stride": 3, "dilation": 3}),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(FEW_PLACES))
def test_few_places_and_large_kernels_are_never_predicted_too_small(name: str, last: bool) -> None:
    """Patches that are unrolled, and notes for each place of a kernel: of one number a channel half was missing."""
    assert_enough(*FEW_PLACES[name], last=last, dtype=torch.float32)


WIDE = {
    "sequence": ((2, 32, 200), (32, 32, 15), {"padding": 7}),
    "strided sequence": ((2, 32, 200), (16, 32, 16), {"stride": 4, "padding": 6}),
    "few places": ((2, 32, 20), (32, 32, 15), {"padding": 7}),
    "image": ((2, 16, 30, 30), (48, 16, 15, 15), {"padding": 7}),
    "many columns": ((2, 32, 24, 40), (32, 32, 3, 21), {"padding": 1}),
    "groups": ((2, 64, 100), (64, 32, 31), {"padding": 15, "groups": 2}),
    "positions of speech": ((1, 64, 50), (64, 16, 128), {"padding": 64, "groups": 4}),
    "sequence transposed": ((2, 32, 40), (32, 16, 16), {"stride": 8, "padding": 4, "transposed": True}),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(WIDE))
def test_long_rows_that_see_a_border_are_never_predicted_too_small(name: str, last: bool) -> None:
    """From 14 places on kernels unfold what they read: three quarters were missing, backward more."""
    assert_enough(*WIDE[name], last=last, dtype=torch.float32)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "kernel"), [(16, 15), (20, 31), (64, 17)])
def test_wide_borders_of_one_channel_a_group_need_no_block_for_each(channels: int, kernel: int, stride: int) -> None:
    """With channels last they were said to need 256 times their weight."""
    if vector_size() != LARGEST_VECTOR:
        pytest.skip("known of large processors only")
    given = torch.randn(2, channels, 40, 40).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(channels, 1, kernel, kernel).contiguous(memory_format=torch.channels_last)
    settings = ([stride] * 2, [kernel // 2] * 2, [1] * 2, False, [0] * 2, channels)
    gradient = torch.ones_like(aten.convolution.default(given, weight, None, *settings))

    assert_near(aten.convolution.default, (given, weight, None, *settings), tables=8000)
    args = (gradient, given, weight, [channels], *settings, [True, True, True])
    assert_near(aten.convolution_backward.default, args, tables=8000)


UNFOLDED = {
    "groups of a volume": ((2, 16, 7, 7, 7), (32, 4, 3, 3, 3), {"padding": 1, "groups": 4}),
    "depthwise volume": ((2, 12, 7, 7, 7), (12, 1, 3, 3, 3), {"groups": 12}),
    "pointwise groups of a volume": ((2, 16, 6, 6, 6), (8, 4, 1, 1, 1), {"groups": 4}),
    "groups that make little": ((4, 6, 28, 28), (2, 3, 3, 3), {"stride": 2, "groups": 2}),
    "dilated groups": ((2, 48, 26, 26), (48, 16, 3, 3), {"stride": 3, "dilation": 2, "groups": 3}),
    "dilated groups of a volume": ((4, 36, 6, 6, 6), (24, 12, 3, 3, 3), {"padding": 1, "dilation": 2, "groups": 3}),
    "transposed": ((4, 3, 29, 10), (3, 64, 4, 4), {"padding": 2, "transposed": True}),
    "transposed groups": ((4, 4, 29, 10), (4, 32, 4, 4), {"padding": 2, "groups": 2, "transposed": True}),
    "pointwise transposed groups of a volume": ((1, 64, 5, 5, 7), (64, 1, 1, 1, 1), {"groups": 8, "transposed": True}),
    "one dilated place transposed": ((1, 20, 8, 36), (20, 4, 1, 1), {"dilation": 2, "transposed": True}),
}


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(UNFOLDED))
def test_columns_of_doubles_are_those_of_one_group_but_of_volumes_of_all(name: str, last: bool) -> None:
    """Of groups of volumes, which one call unfolds, up to 98 % were missing."""
    assert_enough(*UNFOLDED[name], last=last, dtype=torch.float64)


SPREAD_PATCHES = [
    ((1, 32, 64, 64), (32, 16, 2, 2)),
    ((4, 64, 32, 32), (64, 32, 2, 2)),
    ((2, 96, 28, 28), (96, 48, 4, 4)),
    ((1, 256, 16, 16), (256, 128, 2, 2)),
    ((4, 3, 11, 11), (3, 128, 5, 5)),
    ((1, 64, 8, 8, 8), (64, 32, 2, 2, 2)),
]


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("shape", "weight"), SPREAD_PATCHES)
def test_a_sample_is_copied_to_be_spread_to_patches(
    shape: tuple[int, ...], weight: tuple[int, ...], last: bool
) -> None:
    """All that is made was counted for each thread, and as floats once more: up to ten times as much."""
    dims = len(shape) - 2
    form = (torch.channels_last, torch.channels_last_3d)[dims == 3] if last else torch.contiguous_format
    given, kernel = torch.randn(shape).bfloat16().contiguous(memory_format=form), torch.randn(weight).bfloat16()
    settings = ([weight[-1]] * dims, [0] * dims, [1] * dims, True, [0] * dims, 1)

    args = (given, kernel, torch.randn(weight[1]).bfloat16(), *settings)
    assert_near(aten.convolution.default, args, tables=200_000, short=0)


IN_HALVES = {
    "few channels": ((4, 5, 11, 11), (1, 5, 4, 4), {"padding": 1, "dilation": 3}),
    "one channel made": ((4, 128, 13, 40), (1, 128, 5, 5), {"padding": 1}),
    "few channels read": ((2, 3, 25, 25), (64, 3, 2, 2), {"padding": 1}),
    "many channels transposed": ((2, 2, 39, 39), (2, 100, 4, 4), {"padding": 1, "transposed": True}),
    "groups of a sequence": ((2, 4, 330), (16, 2, 3), {"padding": 1, "groups": 2}),
    "more places than are read": ((4, 32, 16, 16), (2, 32, 4, 4), {"padding": 4, "dilation": 2}),
    "dilated sequence": ((1, 16, 304), (128, 16, 3), {"dilation": 2}),
    "dilated depthwise": ((1, 8, 4, 4), (8, 1, 3, 3), {"padding": 2, "dilation": 2, "groups": 8, "transposed": True}),
    "depthwise volume": ((1, 48, 4, 4, 4), (48, 1, 3, 3, 3), {"padding": 2, "dilation": 3, "groups": 48}),
    "narrow groups": ((1, 32, 4, 4), (32, 4, 4, 4), {"stride": 2, "padding": 1, "groups": 8}),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(IN_HALVES))
def test_sums_of_half_precision_are_never_predicted_too_small(name: str, last: bool, dtype: torch.dtype) -> None:
    """Floats of a row of what is made: of small dilated convolutions up to nine tenths were missing."""
    if not has_instructions_for(dtype):
        pytest.skip(f"no instructions for {dtype} on this processor")
    assert_enough(*IN_HALVES[name], last=last, dtype=dtype)


GRADIENTS_IN_TILES = {
    "layer": ((2, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
    "pointwise": ((2, 64, 28, 28), (256, 64, 1, 1), {}),
    "pointwise, fewer places": ((2, 64, 28, 28), (128, 64, 1, 1), {"stride": 2}),
    "rows in parts": ((2, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    "strided rows in parts": ((1, 32, 112, 112), (64, 32, 3, 3), {"stride": 2, "padding": 1}),
    "image": ((2, 3, 64, 64), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "patches": ((2, 3, 64, 64), (96, 3, 4, 4), {"stride": 4}),
    "narrow groups": ((2, 128, 14, 14), (128, 4, 3, 3), {"padding": 1, "groups": 32}),
    "sequence": ((2, 80, 300), (384, 80, 3), {"padding": 1}),
    "volume": ((2, 32, 4, 16, 16), (32, 32, 3, 3, 3), {"padding": 1}),
    "transposed": ((2, 64, 12, 12), (64, 32, 4, 4), {"stride": 2, "padding": 1, "transposed": True}),
}


def in_bfloat16(case: tuple[Any, ...], last: bool) -> tuple[Any, ...]:
    """The operands of a convolution of one of the tables above."""
    shape, weight, options = case
    dims = len(shape) - 2
    last = last and dims > 1
    form = (torch.channels_last, torch.channels_last_3d)[dims == 3] if last else torch.contiguous_format
    spread = (("stride", 1), ("padding", 0), ("dilation", 1))
    stride, padding, dilation = ([options.get(key, usual)] * dims for key, usual in spread)
    given = torch.randn(shape).bfloat16().contiguous(memory_format=form)
    settings = (stride, padding, dilation, "transposed" in options, [0] * dims, options.get("groups", 1))
    return (given, torch.randn(weight).bfloat16(), None, *settings)


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(GRADIENTS_IN_TILES))
def test_rows_are_turned_to_tiles_for_the_gradient_of_a_weight(name: str, last: bool) -> None:
    """Twice as much was predicted, and more of volumes."""
    given, weight, _bias, *settings = in_bfloat16(GRADIENTS_IN_TILES[name], last)
    made = aten.convolution.default(given, weight, None, *settings)

    args = (torch.randn_like(made), given, weight, [made.shape[1]], *settings, [False, True, True])
    assert_near(aten.convolution_backward.default, args, more=1.05, short=0)


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "made"), [(64, 256), (3, 64), (512, 64), (40, 24)])
def test_a_place_that_is_seen_by_itself_has_few_tables(channels: int, made: int, stride: int, last: bool) -> None:
    """Of small samples a third too much was predicted."""
    args = in_bfloat16(((2, channels, 16, 16), (made, channels, 1, 1), {"stride": stride}), last)

    assert_near(aten.convolution.default, args, tables=9_000, short=0)


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(
    ("shape", "weight", "padding", "dilation"),
    [
        ((2, 64, 4, 16, 16), (64, 64, 3, 1, 1), [1, 0, 0], 1),
        ((2, 48, 12, 12, 12), (128, 48, 1, 3, 3), [0, 1, 1], 1),
        ((1, 64, 12, 12, 12), (24, 64, 1, 2, 2), [0, 1, 1], 2),
    ],
)
def test_kernels_of_one_slice_or_one_column_are_never_predicted_too_small(
    shape: tuple[int, ...], weight: tuple[int, ...], padding: list[int], dilation: int, last: bool
) -> None:
    """Those of video nets: of a forward a quarter was missing, of a dilated backward two thirds."""
    given, kernel, _bias, stride, *_rest = in_bfloat16((shape, weight, {}), last)
    settings = (stride, padding, [dilation] * 3, False, [0] * 3, 1)
    args = (given, kernel, None, *settings)
    made = aten.convolution.default(*args)

    assert beside_its_result(lambda: aten.convolution.default(*args)) <= scratch_bytes(
        aten.convolution.default, args, made
    )
    for mask in ([True, False, False], [False, True, False]):
        backward = (torch.randn_like(made), given, kernel, None, *settings, mask)
        gradients = aten.convolution_backward.default(*backward)
        real = beside_its_result(lambda backward=backward: aten.convolution_backward.default(*backward))
        assert real <= scratch_bytes(aten.convolution_backward.default, backward, gradients)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("channels", "kernel"), [(3, 16), (16, 15)])
def test_patches_of_long_rows_are_unfolded_for_the_gradient_of_a_weight(channels: int, kernel: int, last: bool) -> None:
    """Those of vision transformers: half was missing."""
    assert_enough(
        (2, channels, 4 * kernel, 4 * kernel),
        (96, channels, kernel, kernel),
        {"stride": kernel},
        last=last,
        dtype=torch.float32,
    )


SMALL_KERNELS = {
    "layer": ((2, 128, 14, 14), (128, 128, 3, 3), {"padding": 1}),
    "few places": ((2, 256, 7, 7), (256, 256, 3, 3), {"padding": 1}),
    "many channels": ((1, 512, 16, 16, 12), (64, 512, 3, 3, 3), {"padding": 1}),
    "few channels of volumes": ((1, 3, 8, 32, 32), (32, 3, 3, 3, 3), {"padding": 1}),
    "patches of volumes": ((1, 3, 4, 32, 32), (96, 3, 4, 4, 4), {"stride": 4}),
    "one row": ((1, 192, 24, 24), (64, 192, 1, 3), {}),
}


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(SMALL_KERNELS))
def test_of_small_kernels_a_sample_is_copied_twice_at_most(name: str, last: bool) -> None:
    """Of few channels of volumes eight times as much was predicted; of a kernel of one row too little."""
    args = in_bfloat16(SMALL_KERNELS[name], last)
    made = aten.convolution.default(*args)
    real = beside_its_result(lambda: aten.convolution.default(*args))

    assert real <= scratch_bytes(aten.convolution.default, args, made)
    if name in ("layer", "few places"):
        assert_near(aten.convolution.default, args, tables=40_000, short=0)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("shape", [(4, 256, 7, 7), (2, 512, 4, 4)])
@pytest.mark.parametrize("times", [2, 4])
def test_three_vectors_at_once_fill_the_weight_up(shape: tuple[int, ...], times: int) -> None:
    """One in a hundred bytes of a shortcut was missing."""
    given = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    args = (given, torch.randn(shape[1] * times, shape[1], 1, 1), None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)

    assert_near(aten.convolution.default, args, tables=9_000, short=512)


SPREAD_EVENLY = {
    "twice as wide": ((2, 128, 16, 16), (128, 64, 4, 4), {"stride": 2, "padding": 1, "transposed": True}),
    "few places": ((2, 256, 7, 7), (256, 128, 4, 4), {"stride": 2, "padding": 1, "transposed": True}),
    "volume": ((1, 32, 4, 8, 8), (32, 16, 4, 4, 4), {"stride": 2, "padding": 1, "transposed": True}),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(SPREAD_EVENLY))
def test_what_is_spread_to_even_steps_is_made_with_its_bias(name: str, last: bool) -> None:
    """It was counted once more as floats, and a table for each place of the kernel."""
    assert_near(aten.convolution.default, in_bfloat16(SPREAD_EVENLY[name], last), more=1.05, tables=90_000, short=0)


TRANSPOSED = {
    "one place": ((1, 32, 63, 63), (32, 32, 1, 1), 1, 1, 1),
    "one place of few": ((2, 16, 10, 10), (16, 16, 1, 1), 1, 1, 1),
    "few channels of groups": ((4, 16, 14, 14), (16, 4, 5, 5), 1, 2, 4),
    "fewer channels of groups": ((4, 12, 14, 14), (12, 4, 3, 3), 1, 1, 3),
    "strided groups": ((4, 24, 28, 28), (24, 2, 1, 1), 2, 1, 3),
    "strided groups of places": ((4, 24, 28, 28), (24, 2, 3, 3), 2, 1, 3),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("name", list(TRANSPOSED))
def test_transposed_ones_are_never_predicted_too_small_with_and_without_a_bias(
    name: str, has_bias: bool, last: bool, dtype: torch.dtype
) -> None:
    """Of strided groups with a bias in bfloat16 a quarter was missing; without one it counted, up to three times."""
    shape, sizes, stride, apart, groups = TRANSPOSED[name]
    layout = torch.channels_last if last else torch.contiguous_format
    given, weight = (torch.randn(each).to(dtype).to(memory_format=layout) for each in (shape, sizes))
    bias = torch.randn(sizes[1] * groups).to(dtype) if has_bias else None
    args = (given, weight, bias, [stride] * 2, [0, 0], [apart] * 2, True, [0, 0], groups)
    result = aten.convolution.default(*args)

    real = beside_its_result(lambda: aten.convolution.default(*args))

    assert real <= scratch_bytes(aten.convolution.default, args, result)


def test_a_bias_that_is_not_there_is_not_added() -> None:
    """It counted in half precision: of this one 2.9 times what there is."""
    given, weight = torch.randn(4, 32, 28, 28).bfloat16(), torch.randn(32, 32, 1, 1).bfloat16()

    assert_near(aten.convolution.default, (given, weight, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1))


@pytest.mark.usefixtures("_threads")
def test_what_was_predicted_for_one_thread_is_not_said_of_two() -> None:
    """Two fifths were missing."""
    x = torch.randn(2, 64, 16, 16)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        lowered = lower(nn.Conv2d(64, 128, 1).eval(), (x,), devices=[Device("only")])
        with torch.no_grad():
            real = allocated_peak(lambda lowered=lowered: lowered(x)) + x.nbytes

        assert real <= lowered.report.devices[0].peak_bytes


WITHOUT_TILES = pytest.mark.skipif(torch.cpu._is_amx_tile_supported(), reason="tiles have other copies")


def assert_not_too_small(args: tuple[Any, ...]) -> None:
    """A convolution never takes more than is predicted."""
    result = aten.convolution.default(*args)

    real = beside_its_result(lambda: aten.convolution.default(*args))

    assert real <= scratch_bytes(aten.convolution.default, args, result)


ONE_CHANNEL = {
    "layer": ((2, 1, 28, 28), (32, 1, 3, 3), {"padding": 1}),
    "many places": ((1, 1, 224, 224), (64, 1, 7, 7), {"stride": 2, "padding": 3}),
    "large kernel": ((2, 1, 100, 100), (32, 1, 9, 9), {"padding": 4}),
    "long steps": ((1, 1, 98, 193), (32, 1, 5, 5), {"stride": 4}),
    "one row": ((2, 1, 93, 54), (16, 1, 1, 7), {}),
    "one column": ((2, 1, 93, 54), (16, 1, 7, 1), {}),
    "groups of one channel": ((2, 4, 64, 64), (64, 1, 7, 7), {"padding": 3, "groups": 4}),
    "volume": ((1, 1, 16, 24, 24), (32, 1, 5, 5, 5), {"stride": 2, "padding": 2}),
}


def with_channels_last(shape: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One channel has the strides of channels that come last only where they are given, not by ``contiguous``."""
    form = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    given = torch.empty(shape[0], 2 * shape[1], *shape[2:], dtype=dtype, memory_format=form)
    strides = [size // 2 if along != 1 else size for along, size in enumerate(given.stride())]
    return torch.empty_strided(shape, strides, dtype=dtype).normal_(), torch.randn(weight, dtype=dtype)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", list(ONE_CHANNEL))
def test_rows_of_one_channel_with_channels_last_are_never_predicted_too_small(name: str, dtype: torch.dtype) -> None:
    """Half of what a large kernel takes was missing, and nine tenths of groups in bfloat16."""
    if dtype is torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        pytest.skip("tiles have other copies")
    shape, sizes, options = ONE_CHANNEL[name]
    given, weight = with_channels_last(shape, sizes, dtype)
    dims = len(shape) - 2
    spread = (("stride", 1), ("padding", 0), ("dilation", 1))
    stride, padding, dilation = ([options.get(key, usual)] * dims for key, usual in spread)
    args = (given, weight, None, stride, padding, dilation, False, [0] * dims, options.get("groups", 1))

    assert_not_too_small(args)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("name", ["many places", "large kernel"])
def test_rows_of_one_channel_are_predicted_as_they_are(name: str) -> None:
    shape, sizes, options = ONE_CHANNEL[name]
    given, weight = with_channels_last(shape, sizes, torch.float32)
    stride, padding = ([options.get(key, usual)] * 2 for key, usual in (("stride", 1), ("padding", 0)))

    assert_near(aten.convolution.default, (given, weight, None, stride, padding, [1, 1], False, [0, 0], 1), more=1.02)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_a_decoder_makes_of_one_channel_has_a_gradient_of_rows(stride: int, dtype: torch.dtype) -> None:
    """Of steps of three an eighth was missing; else in bfloat16 up to three times too much was predicted."""
    if dtype is torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        pytest.skip("tiles have other copies")
    given = torch.randn(2, 64, 41, 50).to(dtype).to(memory_format=torch.channels_last)
    weight = torch.randn(64, 1, 7, 7).to(dtype)
    settings = ([stride] * 2, [0, 0], [1, 1], True, [0, 0], 1)
    gradient = torch.randn_like(aten.convolution.default(given, weight, None, *settings))

    args = (gradient, given, weight, [1], *settings, [True, False, False])
    assert_near(aten.convolution_backward.default, args, more=1.05 if vector_size() == LARGEST_VECTOR else 1.6)


UNEVEN_STEPS = {
    "one place": ((2, 64, 20, 256), (64, 64, 1, 1), 2, 0, 1),
    "layer": ((2, 32, 20, 256), (32, 32, 3, 3), 2, 0, 1),
    "long steps": ((2, 32, 20, 100), (32, 32, 7, 7), 3, 0, 1),
    "to one channel": ((1, 64, 19, 22), (64, 1, 5, 5), 2, 0, 1),
    "groups": ((1, 96, 33, 38), (96, 16, 1, 1), 3, 0, 2),
    "even": ((2, 32, 20, 400), (32, 32, 4, 4), 2, 1, 1),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not has_instructions_for(torch.bfloat16), reason="no instructions for bfloat16 on this processor")
@WITHOUT_TILES
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(UNEVEN_STEPS))
def test_a_row_that_steps_spread_is_added_up_in_floats(name: str, last: bool, has_bias: bool) -> None:
    """Of wide rows, and of kernels that steps leave something over of, up to four in a hundred were missing."""
    shape, sizes, stride, padding, groups = UNEVEN_STEPS[name]
    layout = torch.channels_last if last else torch.contiguous_format
    given, weight = (torch.randn(each).bfloat16().to(memory_format=layout) for each in (shape, sizes))
    bias = torch.randn(sizes[1] * groups).bfloat16() if has_bias else None
    args = (given, weight, bias, [stride] * 2, [padding] * 2, [1, 1], True, [0, 0], groups)

    assert_not_too_small(args)


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not has_instructions_for(torch.bfloat16), reason="no instructions for bfloat16 on this processor")
@WITHOUT_TILES
def test_few_channels_either_way_are_unfolded_for_the_gradient_of_a_weight() -> None:
    """In bfloat16 three tenths were missing."""
    assert_enough((1, 8, 84, 88), (3, 8, 5, 5), {"stride": 2, "padding": 2}, last=False, dtype=torch.bfloat16)
    assert_enough((2, 3, 31, 31), (24, 3, 14, 14), {"padding": 1}, last=False, dtype=torch.bfloat16)


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not has_instructions_for(torch.bfloat16), reason="no instructions for bfloat16 on this processor")
@WITHOUT_TILES
def test_of_a_shortcut_in_bfloat16_no_byte_is_missing() -> None:
    """Up to half of a KiB was missing for each thread."""
    args = in_bfloat16(((4, 32, 20, 20), (64, 32, 1, 1), {"stride": 2}), False)

    assert_near(aten.convolution.default, args, tables=40_000, short=0)


def transposed(
    shape: tuple[int, ...], sizes: tuple[int, ...], stride: int, more: int, groups: int, **how: Any
) -> tuple[Any, ...]:
    """Arguments of a transposed convolution without padding, which makes ``more`` places than its kernel reaches."""
    layout = torch.channels_last if how["last"] else torch.contiguous_format
    given, weight = (torch.randn(each).to(how["dtype"]).to(memory_format=layout) for each in (shape, sizes))
    bias = torch.randn(sizes[1] * groups).to(how["dtype"]) if how["has_bias"] else None
    return (given, weight, bias, [stride] * 2, [0, 0], [1, 1], True, [more] * 2, groups)


SHORT_RESTS = {
    "few channels": ((1, 48, 26, 47), (48, 8, 7, 7), 2, 3),
    "two vectors": ((1, 32, 13, 27), (32, 32, 3, 3), 2, 2),
    "many channels": ((1, 32, 9, 21), (32, 64, 7, 7), 2, 4),
    "long steps": ((1, 64, 36, 32), (64, 16, 2, 2), 3, 8),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not has_instructions_for(torch.bfloat16), reason="no instructions for bfloat16 on this processor")
@WITHOUT_TILES
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(SHORT_RESTS))
def test_groups_whose_rows_end_in_less_than_steps_leave_over_are_unfolded(
    name: str, last: bool, has_bias: bool
) -> None:
    """Of all that the operator has for itself up to nine tenths were missing."""
    shape, sizes, stride, groups = SHORT_RESTS[name]
    args = transposed(shape, sizes, stride, 1, groups, last=last, has_bias=has_bias, dtype=torch.bfloat16)

    assert_not_too_small(args)


@pytest.mark.skipif(not has_instructions_for(torch.bfloat16), reason="no instructions for bfloat16 on this processor")
@WITHOUT_TILES
@pytest.mark.parametrize("width", [39, 40, 41])
def test_so_is_the_gradient_of_what_groups_read(width: int) -> None:
    given = torch.randn(1, 32, 9, width).bfloat16().to(memory_format=torch.channels_last)
    weight = torch.randn(32, 16, 3, 3).bfloat16().to(memory_format=torch.channels_last)
    settings = ([2, 2], [0, 0], [1, 1], False, [0, 0], 2)
    gradient = torch.randn_like(aten.convolution.default(given, weight, None, *settings))
    args = (gradient, given, weight, [32], *settings, [True, False, False])

    assert_near(aten.convolution_backward.default, args, more=1.9, short=0)


SPREAD = {
    "many to few": ((2, 96, 20, 33), (96, 2, 7, 7), 2, 0, 1),
    "wide": ((1, 96, 20, 128), (96, 2, 7, 7), 2, 0, 1),
    "one more place": ((2, 96, 20, 33), (96, 2, 7, 7), 2, 1, 1),
    "more than patches": ((2, 96, 20, 33), (96, 2, 2, 2), 2, 1, 1),
    "long steps": ((1, 64, 20, 33), (64, 32, 7, 7), 3, 0, 1),
    "groups": ((1, 256, 20, 17), (256, 16, 7, 7), 2, 1, 4),
    "odd channels": ((1, 17, 24, 58), (17, 8, 3, 3), 2, 0, 1),
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(vector_size() != LARGEST_VECTOR, reason="other kernels with smaller vectors")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", list(SPREAD))
def test_what_is_spread_of_an_image_is_predicted_as_it_is(
    name: str, last: bool, has_bias: bool, dtype: torch.dtype
) -> None:
    """A sixth was missing of what the operator has for itself, and a quarter too much was said of other sizes."""
    if dtype is torch.bfloat16 and not has_instructions_for(dtype):
        pytest.skip("no instructions for bfloat16 on this processor")
    if dtype is torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        pytest.skip("tiles have other copies")
    args = transposed(*SPREAD[name], last=last, has_bias=has_bias, dtype=dtype)

    more = 2.0 if dtype is torch.bfloat16 and has_bias else 1.05
    assert_near(aten.convolution.default, args, more=more, tables=2048, short=0)


@pytest.mark.skipif(not has_instructions_for(torch.bfloat16), reason="no instructions for bfloat16 on this processor")
@WITHOUT_TILES
@pytest.mark.skipif(vector_size() != LARGEST_VECTOR, reason="other kernels with smaller vectors")
@pytest.mark.parametrize(("size", "steps", "padding"), [(16, 16, 0), (8, 8, 0), (7, 2, 3)])
def test_patches_of_images_are_not_turned_for_the_gradient_of_a_weight(size: int, steps: int, padding: int) -> None:
    """In bfloat16 up to two and a half times what is there was predicted with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    given, weight = torch.randn(2, 3, 64, 64).bfloat16(), torch.randn(64, 3, size, size).bfloat16()
    settings = ([steps] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
    gradient = torch.randn_like(aten.convolution.default(given, weight, None, *settings))
    args = (gradient, given, weight, [64], *settings, [False, True, True])

    try:
        assert_near(aten.convolution_backward.default, args, more=1.25, short=0)
    finally:
        torch.set_num_threads(before)
