"""What kernels on the CPU need for themselves, against what torch's allocator was asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from allocations import allocated_peak
from kernel_bytes import assert_near, beside_its_result, has_instructions_for
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fxpasses.partitioners.costs.kernels.kernel_scratch import scratch_bytes
from fxpasses.partitioners.costs.kernels.processor_blocks import has_tiles
from fxpasses.partitioners.tensor_sizes import tensors_in

aten = torch.ops.aten


PRODUCTS = {
    "rows": (torch.randn(64, 64), torch.randn(64, 256)),
    "deep": (torch.randn(64, 256), torch.randn(64, 256).t()),
    "odd": (torch.randn(7, 33), torch.randn(65, 33).t()),
    "large": (torch.randn(512, 512), torch.randn(512, 512)),
    "strided": (torch.randn(64, 128)[:, ::2], torch.randn(128, 64)[::2]),
    "turned": (torch.randn(64, 256).t(), torch.randn(64, 128)),
    "one row": (torch.randn(1, 64), torch.randn(64, 64)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", list(PRODUCTS))
def test_products_lay_out_blocks_and_what_is_not_dense(name: str, dtype: torch.dtype) -> None:
    if dtype is not torch.float32 and not has_instructions_for(dtype):
        pytest.skip(f"no instructions for {dtype} on this processor")
    args = [torch.empty_strided(each.shape, each.stride(), dtype=dtype).copy_(each) for each in PRODUCTS[name]]

    assert_near(aten.mm.default, args, tables=9_000)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "by rows": lambda matrix: matrix,
    "by columns": lambda matrix: matrix.mT.contiguous().mT,
    "strided": lambda matrix: matrix.repeat_interleave(2, -1)[..., ::2],
    "slice": lambda matrix: matrix.repeat(*[1] * (matrix.dim() - 1), 2)[..., : matrix.shape[-1]],
    "a view of one": lambda matrix: matrix[0].mT.contiguous().mT[None],
}


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("right", list(LAYOUTS))
@pytest.mark.parametrize("left", list(LAYOUTS))
def test_a_product_of_one_matrix_in_a_batch_is_never_predicted_too_small(
    left: str, right: str, dtype: torch.dtype
) -> None:
    """OneDNN copies a batch of one whose stride is not that of several; a quarter was missing."""
    for rows, depth, columns in ((256, 128, 200), (32, 1000, 32), (100, 64, 1)):
        args = [LAYOUTS[left](torch.randn(1, rows, depth)), LAYOUTS[right](torch.randn(1, depth, columns))]
        args = [torch.empty_strided(each.shape, each.stride(), dtype=dtype).copy_(each) for each in args]

        real = beside_its_result(lambda args=args: torch.bmm(*args))
        assert real <= scratch_bytes(aten.bmm.default, args, torch.bmm(*args))


GROUPED: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "rows": lambda: (torch.randn(256, 64), torch.randn(4, 64, 128)),
    "rows, by columns": lambda: (torch.randn(256, 64), torch.randn(4, 128, 64).mT),
    "columns": lambda: (torch.randn(4, 64, 128), torch.randn(128, 256)),
    "sums": lambda: (torch.randn(256, 64).T, torch.randn(256, 128)),
    "alike": lambda: (torch.randn(4, 64, 128), torch.randn(4, 128, 64)),
}


ENDS = [[64, 128, 192, 256], [0, 0, 256, 256], [8, 16, 24, 256], [0, 0, 0, 255]]


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("name", list(GROUPED))
def test_products_of_groups_need_what_the_largest_can_need(name: str) -> None:
    """Experts: which rows belong to which is in the data, so the worst counts."""
    left, right = (each.bfloat16() for each in GROUPED[name]())

    groups = [torch.tensor(ends, dtype=torch.int32) for ends in ENDS]  # made here, as their bytes are no scratch

    def product(offsets: Tensor) -> Tensor:
        return torch._grouped_mm(left, right, offs=None if name == "alike" else offsets)

    worst = max(beside_its_result(lambda: product(each)) for each in groups)  # noqa: B023 - it is called at once

    told = scratch_bytes(aten._grouped_mm.default, (left, right, groups[0]), product(groups[0]))
    assert worst <= told <= 1.5 * worst + 2**12


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", list(LAYOUTS)[:-1])
@pytest.mark.parametrize(("rows", "depth"), [(256, 128), (64, 4096), (1000, 700), (1, 5000), (64, 64)])
def test_a_product_with_a_vector_is_laid_out_like_one_of_matrices(
    rows: int, depth: int, layout: str, dtype: torch.dtype
) -> None:
    """Nothing was counted: of a dot product of a quarter million numbers on tiles 32 MiB."""
    matrix, vector = LAYOUTS[layout](torch.randn(rows, depth).to(dtype)), torch.randn(depth).to(dtype)
    strided = vector.repeat_interleave(2)[::2]

    for func, args in ((aten.mv.default, (matrix, vector)), (aten.mv.default, (matrix, strided))):
        real = beside_its_result(lambda func=func, args=args: func(*args))
        assert real <= scratch_bytes(func, args, func(*args))
    long = matrix.flatten()
    assert beside_its_result(lambda: torch.dot(long, long)) <= scratch_bytes(aten.dot.default, (long, long), long[0])


CONJUGATED: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "left": lambda left, right: (left.conj(), right),
    "right": lambda left, right: (left, right.conj()),
    "left, by columns": lambda left, right: (left.mT.contiguous().mH, right),
    "both, by columns": lambda left, right: (left.mT.contiguous().mH, right.mT.contiguous().mH),
}


@pytest.mark.parametrize("name", list(CONJUGATED))
def test_several_matrices_are_conjugated_in_copies_of_all(name: str) -> None:
    left, right = CONJUGATED[name](torch.randn(4, 50, 40).cfloat(), torch.randn(4, 40, 60).cfloat())

    assert_near(aten.bmm.default, (left, right), tables=0)
    assert_near(aten.mm.default, (left[0], right[0]), tables=0)
    assert_near(aten.mv.default, (left[0], right[0, :, 0]), tables=0)


def positive(*shape: int) -> Tensor:
    matrix = torch.randn(*shape)
    return matrix @ matrix.mT + torch.eye(shape[-1])


KERNELS = {
    "logsumexp": (aten.logsumexp.default, lambda: (torch.randn(64, 256), [1])),
    "median": (aten.median.dim, lambda: (torch.randn(64, 256), 0)),
    "kthvalue": (aten.kthvalue.default, lambda: (torch.randn(64, 256), 3, 0)),
    "sort": (aten.sort.default, lambda: (torch.randn(64, 256), 0)),
    "softmax of columns": (aten._softmax.default, lambda: (torch.randn(64, 256).t(), -1, False)),
    "unfold": (aten.im2col.default, lambda: (torch.randn(2, 8, 20, 20), [3, 3], [1, 1], [0, 0], [1, 1])),
    "inverse": (aten.linalg_inv_ex.default, lambda: (positive(64, 64),)),
    "inverses": (aten.linalg_inv_ex.default, lambda: (positive(4, 64, 64),)),
    "symmetric": (aten._linalg_eigh.default, lambda: (positive(64, 64),)),
    "singular": (aten._linalg_svd.default, lambda: (torch.randn(200, 100),)),
    "orthogonal": (aten.linalg_qr.default, lambda: (torch.randn(200, 200),)),
    "distances": (aten._cdist_forward.default, lambda: (torch.randn(100, 8), torch.randn(120, 8), 2.0, None)),
    "few distances": (aten._cdist_forward.default, lambda: (torch.randn(20, 8), torch.randn(15, 8), 2.0, None)),
    "resized": (aten.upsample_bilinear2d.vec, lambda: (torch.randn(2, 8, 16, 16), [32, 32], False, None)),
    "length": (aten.abs.default, lambda: (torch.randn(64, 64, dtype=torch.cfloat),)),
    "a number": (aten.mul.Tensor, lambda: (torch.randn(8), 2.0)),
    "mean": (aten.mean.dim, lambda: (torch.randn(64, 256), [1])),
    "factors": (aten.linalg_lu.default, lambda: (torch.randn(64, 80),)),
    "factors of some": (aten.linalg_lu.default, lambda: (torch.randn(5, 60, 20),)),
    "not positive": (aten.linalg_ldl_factor_ex.default, lambda: (positive(64, 64),)),
    "eigenvalues": (aten._linalg_eigvals.default, lambda: (torch.randn(100, 100),)),
    "eigenvalues of some": (aten._linalg_eigvals.default, lambda: (torch.randn(3, 40, 40, dtype=torch.float64),)),
    "complex": (aten._linalg_eigh.default, lambda: (positive(64, 64).cfloat(),)),
    "values by columns": (aten._linalg_svd.default, lambda: (torch.randn(64, 80).mT, False, False)),
    "values of doubles": (aten._linalg_eigh.default, lambda: (positive(200, 200).double(), "L", False)),
    "reflections": (aten.geqrf.default, lambda: (torch.randn(2, 200, 160),)),
    "product of reflections": (aten.linalg_householder_product.default, lambda: torch.geqrf(torch.randn(200, 160))),
    "applied reflections": (aten.ormqr.default, lambda: (*torch.geqrf(torch.randn(200, 160)), torch.randn(200, 90))),
    "complex, orthogonal": (aten.linalg_qr.default, lambda: (torch.randn(1, 200, 100, dtype=torch.cfloat), "complete")),
    "only the triangle": (aten.linalg_qr.default, lambda: (torch.randn(2, 300, 100), "r")),
    "complex, eigenvectors": (aten.linalg_eig.default, lambda: (torch.randn(4, 100, 100, dtype=torch.cfloat),)),
    "one column": (aten._linalg_solve_ex.default, lambda: (positive(4, 64, 64), torch.randn(4, 64))),
    "unpacked": (aten.lu_unpack.default, lambda: torch.linalg.lu_factor(torch.randn(4, 64, 64))),
    "exponential of one": (aten.linalg_matrix_exp.default, lambda: (torch.randn(1, 64, 64),)),
    "added products": (
        aten.addbmm.default,
        lambda: (torch.randn(64, 48), torch.randn(8, 64, 64)[:, :, ::2], torch.randn(8, 32, 48)),
    ),
}


@pytest.mark.parametrize("name", list(KERNELS))
def test_a_kernel_copies_what_it_works_on(name: str) -> None:
    func, make = KERNELS[name]

    assert_near(func, make(), tables=0)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_an_operator_on_lists_makes_its_number_a_tensor_for_each(name: str) -> None:
    """Those whose kernels take numbers do not."""
    tensors = [torch.randn(8), torch.randn(3)]

    for overload, number in (("Scalar", 2.0), ("ScalarList", [2.0, 3.0])):
        made, written = (getattr(getattr(aten, f"_foreach_{name}{end}"), overload) for end in ("", "_"))
        assert scratch_bytes(made, (tensors, number), tensors) == 8 + 4
        assert_near(made, (tensors, number), tables=0)
        assert beside_its_result(lambda call=written, by=number: call(tensors, by)) == 8 + 4
        assert scratch_bytes(written, (tensors, number), None) == 8 + 4
    assert_near(aten._foreach_clamp_min.Scalar, (tensors, 0.5), tables=0)


@pytest.mark.parametrize("of", ["each", "all"])
@pytest.mark.parametrize("layout", ["by rows", "by columns", "strided"])
def test_a_triangle_is_copied_where_it_is_not_dense(layout: str, of: str) -> None:
    triangle = (torch.eye(64) + torch.randn(2, 64, 64).triu(1))[slice(None) if of == "each" else 0]
    if layout != "by rows":
        triangle = (
            triangle.mT.contiguous().mT if layout == "by columns" else triangle.repeat_interleave(2, -1)[..., ::2]
        )

    def solved(triangle: Tensor, right: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(triangle, right, upper=True)

    right = torch.randn(2, 64, 64)
    real = beside_its_result(lambda: solved(triangle, right))
    assert real == scratch_bytes(aten.linalg_solve_triangular.default, (triangle, right), solved(triangle, right))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("is_dense", [True, False])
@pytest.mark.parametrize(("inverse", "counts"), [(False, False), (True, False), (False, True), (True, True)])
def test_what_is_unique_is_found_by_sorting(inverse: bool, counts: bool, is_dense: bool, dtype: torch.dtype) -> None:
    x = torch.randint(0, 250, (60, 40)).to(dtype)
    x = x if is_dense else x.repeat_interleave(2, -1)[..., ::2]

    assert_near(aten._unique2.default, (x, True, inverse, counts))
    assert_near(aten.unique_dim.default, (x, 0, True, inverse, counts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize(("count", "many"), [(5000, 500), (1000, 20_000), (1000, 5), (1, 400)])
def test_what_is_among_many_is_found_by_sorting(count: int, many: int, dtype: torch.dtype) -> None:
    given, known = torch.randperm(count).to(dtype), torch.randperm(many).to(dtype)

    assert_near(aten.isin.Tensor_Tensor, (given, known), more=1.15)
    if count == 1:
        assert_near(aten.isin.Scalar_Tensor, (3, known), more=1.15)


@pytest.mark.parametrize("layout", ["dense", "by columns", "repeated"])
def test_a_mask_is_made_numbers_to_pick_by(layout: str) -> None:
    x = torch.randn(60, 40)
    mask = {"dense": x > 0, "by columns": (x.mT.contiguous() > 0).mT, "repeated": (x[0] > 0).expand(60, 40)}[layout]

    assert_near(aten.index.Tensor, (x, [mask]))
    assert_near(aten.index.Tensor, (x, [None, mask[0]]))
    assert_near(aten.masked_select.default, (x, mask))


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bins", [10, 1000])
def test_each_thread_counts_what_falls_into_bins(bins: int, dtype: torch.dtype) -> None:
    assert_near(aten.histc.default, (torch.randn(2000, dtype=dtype), bins, -1, 1), tables=0)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(20, 50), (200, 200), (800, 800), (1, 700)])
def test_attention_has_a_block_for_each_thread(queries: int, keys: int, dtype: torch.dtype) -> None:
    """The layout of each block is exact."""
    query, key = torch.randn(2, 4, queries, 32, dtype=dtype), torch.randn(2, 4, keys, 32, dtype=dtype)
    func = aten._scaled_dot_product_flash_attention_for_cpu.default

    result = func(query, key, key)

    assert beside_its_result(lambda: func(query, key, key)) == scratch_bytes(func, (query, key, key), result)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steps", [1, 6, 21])
@pytest.mark.parametrize("batch", [1, 5, 16])
@pytest.mark.parametrize(
    ("width", "hidden"), [(8, 100), (32, 16), (64, 64), (33, 256), (300, 64), (256, 256), (10, 33)]
)
def test_an_lstm_lays_out_its_weights_and_keeps_all_states(
    width: int, hidden: int, batch: int, steps: int, dtype: torch.dtype
) -> None:
    """It was 0.4 % too low with narrow inputs, up to a third too high, and in half precision up to twice too high.

    Without AVX512 a fifth was missing for one sample.
    """
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no LSTM in this type on this processor")
    given, states = torch.randn(steps, batch, width, dtype=dtype), torch.zeros(2, batch, hidden, dtype=dtype)
    weights = [torch.randn(4 * hidden, *more, dtype=dtype) for more in ((width,), (hidden,), (), ())]
    settings = (False, [], 2, hidden, 1, True, False, False, False)
    args = (given, *weights, *states, *settings)

    with torch.no_grad():
        assert_near(aten.mkldnn_rnn_layer.default, args, more=2.0 if has_tiles(dtype) else 1.02, short=0)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("steps", "batch", "width", "hidden"),
    [(20, 4, 32, 64), (50, 4, 256, 256), (60, 2, 28, 28), (5, 16, 128, 64), (20, 1, 64, 64)],
)
def test_the_backward_of_an_lstm_lays_out_its_weights(
    steps: int, batch: int, width: int, hidden: int, dtype: torch.dtype
) -> None:
    layer = nn.LSTM(width, hidden, dtype=dtype)
    given = torch.randn(steps, batch, width, dtype=dtype, requires_grad=True)
    func = aten.mkldnn_rnn_layer_backward.default
    seen: list[tuple[Any, ...]] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if function is func:
                seen.append((args, result))
            return result

    with Seen():
        layer(given)[0].sum().backward()
    if not seen:
        pytest.skip("this build of torch computes an LSTM without oneDNN")
    args, result = seen[0]

    made = sum(tensor.nbytes for tensor in tensors_in(result))
    real = allocated_peak(lambda: func(*args)) - made
    assert real <= scratch_bytes(func, args, result) <= (2 if has_tiles(dtype) else 1.1) * real + 26_000


x, half, whole = torch.randn(64, 64), torch.randn(64, 64).bfloat16(), torch.randint(1, 9, (64, 64))


MIXED = {
    "a value and a mask": (aten.mul.Tensor, (x, x > 0)),
    "two floats": (aten.add.Tensor, (half, x)),
    "numbers become floats": (aten.div.Tensor, (whole, whole)),
    "a root of numbers": (aten.sqrt.default, (whole,)),
    "a comparison": (aten.eq.Tensor, (x, whole)),
    "a row": (aten.add.Tensor, (x, whole[0])),
    "what decides": (aten.where.self, (x > 0, x, x)),
    "what decides, and two floats": (aten.where.self, (x > 0, x, half)),
    "a mask": (aten.masked_fill.Scalar, (x, x > 0, 0.0)),
    "one type": (aten.add.Tensor, (x, x)),
    "one after the other": (aten.cat.default, ([half, x, half],)),
    "one on the other": (aten.stack.default, ([x, half],)),
    "products so far": (aten.cumprod.default, (whole.int(), 0)),
    "how many": (aten.sum.default, (x > 0,)),
    "a mean in half": (aten.mean.dim, (half, [1])),
    "whether any": (aten.any.dim, (whole, 1)),
}


@pytest.mark.parametrize("name", list(MIXED))
def test_operands_are_converted_to_the_type_that_is_computed_in(name: str) -> None:
    assert_near(*MIXED[name])


LAID_OUT = {
    "softmax": (aten._softmax.default, (torch.randn(48, 80).t(), -1, False)),
    "layer norm": (aten.native_layer_norm.default, (torch.randn(48, 40).t(), [48], None, None, 1e-5)),
    "pooling": (aten.avg_pool2d.default, (torch.randn(1, 2, 40, 40).transpose(2, 3), [2, 2])),
    "dense": (aten._softmax.default, (x, -1, False)),
}


@pytest.mark.parametrize("name", list(LAID_OUT))
def test_what_is_not_dense_is_copied(name: str) -> None:
    """Transposing takes a block of 14,400 bytes more, which is not counted."""
    func, args = LAID_OUT[name]
    with torch.no_grad():
        result = func(*args)
    predicted, real = scratch_bytes(func, args, result), beside_its_result(lambda: func(*args))

    assert predicted <= real <= predicted + 14_400
    assert (predicted > 0) != args[0].is_contiguous()


def test_of_other_devices_nothing_is_known() -> None:
    assert 0 == scratch_bytes(aten.mul.Tensor, (x.to("meta"), whole.to("meta")), x.to("meta"))


LINEAR_LAYERS = [(12, 64, 64), (48, 64, 64), (256, 512, 512), (1, 640, 1000), (128, 768, 768), (1024, 768, 3072)]


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("rows", "width", "made"), LINEAR_LAYERS)
def test_a_linear_layer_in_bfloat16_is_never_predicted_too_small(rows: int, width: int, made: int) -> None:
    given, weight = torch.randn(rows, width).bfloat16(), torch.randn(made, width).bfloat16().t()
    result = aten.mm.default(given, weight)

    real = beside_its_result(lambda: aten.mm.default(given, weight))

    assert real <= scratch_bytes(aten.mm.default, (given, weight), result) + 512


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize("layout", ["by rows", "strided", "slice"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(32, 500, 128), (64, 1000, 200), (64, 300, 1100), (256, 2100, 256), (500, 2100, 256)]
)
def test_many_products_that_fill_no_whole_tiles_are_padded(rows: int, depth: int, columns: int, layout: str) -> None:
    """A seventh was missing: rows that are padded, and sums of all columns."""
    left, right = LAYOUTS[layout](torch.randn(rows, depth).bfloat16()), torch.randn(depth, columns).bfloat16()
    for first, second in ((left, right), (left, right.repeat(1, 2)[:, :columns]), (left[None], right[None])):
        func = aten.bmm.default if first.dim() > left.dim() else aten.mm.default

        real = beside_its_result(lambda func=func, first=first, second=second: func(first, second))
        assert real <= scratch_bytes(func, (first, second), func(first, second)) + 512


@pytest.mark.usefixtures("_threads")
@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="no tiles on this processor")
@pytest.mark.parametrize(("rows", "depth", "columns"), [(200, 2, 128), (100, 2, 65), (300, 64, 200)])
def test_threads_share_rows_of_products_with_tiles(rows: int, depth: int, columns: int) -> None:
    """A quarter was missing where two products are added up for each number, and there are more rows than columns."""
    left, right = torch.randn(1, rows, depth).bfloat16(), torch.randn(1, depth, columns).bfloat16()
    for func, args in ((aten.bmm.default, (left, right)), (aten.mm.default, (left[0], right[0]))):
        real = beside_its_result(lambda func=func, args=args: func(*args))
        assert real <= scratch_bytes(func, args, func(*args)) + 512


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("queries", "keys", "width"), [(191, 191, 16), (200, 600, 33), (767, 513, 65), (65, 65, 64)])
def test_attention_lays_out_keys_and_values(
    queries: int, keys: int, width: int, dtype: torch.dtype, causal: bool
) -> None:
    """Odd sizes are padded; it is exact."""
    query, key = torch.randn(2, 4, queries, width).to(dtype), torch.randn(2, 4, keys, width).to(dtype)
    func = aten._scaled_dot_product_flash_attention_for_cpu.default
    args = (query, key, key, 0.0, causal)

    result = func(*args)

    assert beside_its_result(lambda: func(*args)) == scratch_bytes(func, args, result)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 32, 8, 8), (3, 16, 31, 33), (4, 16, 32, 32), (2, 16, 45, 45), (2, 16, 46, 46)])
def test_groups_are_normalized_with_sums_of_each_channel_of_each_sample(
    shape: tuple[int, int, int, int], dtype: torch.dtype, form: torch.memory_format, threads: int
) -> None:
    """With channels last, threads share large samples: up to two thirds of these sums were missing."""
    given, weights = torch.randn(shape).to(dtype).to(memory_format=form), torch.ones(shape[1], dtype=dtype)
    numbers = (shape[0], shape[1], shape[2] * shape[3], 4)
    forward, backward = aten.native_group_norm.default, aten.native_group_norm_backward.default
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = forward(given, weights, weights, *numbers, 1e-5)
        args = (torch.randn_like(given), given, made[1], made[2], weights, *numbers, [True, True, True])
        for function, own in ((forward, (given, weights, weights, *numbers, 1e-5)), (backward, args)):
            result = function(*own)
            real = allocated_peak(functools.partial(function, *own)) - sum(each.nbytes for each in result)
            assert scratch_bytes(function, own, result) == real
    finally:
        torch.set_num_threads(before)
