"""How many operations factorizations of matrices and Fourier transforms count."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

from fxpasses.partitioners.costs.node_costs import measure_node
from fxpasses.passes import MeasureCosts

N = 24
SQUARE = torch.eye(N)
BATCH = torch.eye(N).repeat(5, 1, 1)
PIVOTS = torch.arange(1, N + 1, dtype=torch.int32)
SIGNAL = torch.randn(3, 64)
ROWS = torch.ones(40, N), torch.ones(50, N)
PAIRS = torch.ones(40, 50)
TALL = torch.ones(60, 20)
FRAMES = torch.ones(3, 33, 40, dtype=torch.complex64)


def flops_of(function: Any, *args: Any) -> int:
    class Call(nn.Module):
        def forward(self, *given: Any) -> Any:
            return function(*given)

    program = torch.export.export(Call(), args)
    return max(measure_node(node).flops for node in program.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize(
    ("flops", "function", "args"),
    [
        (N**3 // 3, torch.linalg.cholesky, (SQUARE,)),
        (2 * N**3, torch.linalg.inv, (SQUARE,)),
        (5 * 2 * N**3, torch.linalg.inv, (BATCH,)),
        (2 * N**3 // 3 + 2 * N * N * 4, torch.linalg.solve, (SQUARE, torch.ones(N, 4))),
        (N * N * 4, lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), (SQUARE, torch.ones(N, 4))),
        (2 * N * N * 4, torch.cholesky_solve, (torch.ones(N, 4), SQUARE)),
        (2 * N * N * 4, lambda a, b: torch.linalg.lu_solve(a, PIVOTS, b), (SQUARE, torch.ones(N, 4))),
        (2 * N**3 // 3, torch.linalg.det, (SQUARE,)),
        (9 * N**3, torch.linalg.eigh, (SQUARE,)),
        (22 * N**3, torch.linalg.svd, (SQUARE,)),
        (4 * N * N * (60 - N // 3), torch.linalg.qr, (torch.ones(60, N),)),
        (4 * N * N * (60 - N // 3), torch.linalg.qr, (torch.ones(N, 60),)),
    ],
    ids=[
        "cholesky",
        "inverse",
        "batch",
        "solve",
        "triangular",
        "cholesky-solve",
        "lu-solve",
        "det",
        "eigh",
        "svd",
        "qr-tall",
        "qr-wide",
    ],
)
def test_a_factorization_counts_the_cube_of_its_size(flops: int, function: Any, args: tuple[Any, ...]) -> None:
    """One operation per element, as of an addition, let a device with a slow CPU look fast."""
    assert flops == flops_of(function, *args)


@pytest.mark.parametrize(
    ("flops", "function", "signal"),
    [
        (5 * 192 * 6, torch.fft.fft, SIGNAL.to(torch.complex64)),
        (5 * 192 * 6 // 2, torch.fft.rfft, SIGNAL),
        (5 * 192 * 6 // 2, lambda x: torch.fft.irfft(x, 64), torch.fft.rfft(SIGNAL)),
        (5 * 192 * 6 // 2, lambda x: torch.fft.rfft(x, None, 0), SIGNAL.t().contiguous()),
        (int(5 * 192 * math.log2(192) / 2), torch.fft.rfft2, SIGNAL),
        (5 * 768 * 8 // 2, lambda x: torch.fft.rfft(x, 256), SIGNAL),
        (5 * 48 * 4 // 2, lambda x: torch.fft.rfft(x, 16), SIGNAL),
        (5 * 48 * 4, lambda x: torch.fft.fft(x, 16), SIGNAL.to(torch.complex64)),
        (5 * 48 * 4 // 2, lambda x: torch.fft.rfft(x, 16), torch.ones(3, 9)),
        (5 * 48 * 4 // 2, lambda x: torch.fft.rfft(x, 16), torch.ones(3, 17)),
        (int(5 * 3 * 1 * 1 / 2), lambda x: torch.fft.rfft(x, 1), SIGNAL),
        (int(5 * 48 * math.log2(48) / 2), lambda x: torch.fft.rfft2(x, (-1, 16)), SIGNAL),
        (5 * 192 * 6 // 2, lambda x: torch.ops.aten._fft_r2c(x, [-1], 0, False), SIGNAL),
    ],
    ids=[
        "complex",
        "real",
        "inverse",
        "dimension",
        "two-dimensions",
        "padded",
        "cropped",
        "cropped-complex",
        "padded-to-a-half-as-long",
        "cropped-by-one",
        "cropped-to-one",
        "cropped-plane",
        "two-sided",
    ],
)
def test_a_fourier_transform_counts_five_n_log_n(flops: int, function: Any, signal: torch.Tensor) -> None:
    """Cooley and Tukey's count, half of it where one side is real; decomposed alike."""
    assert flops == flops_of(function, signal)


@pytest.mark.parametrize(
    ("flops", "function", "args"),
    [
        (22 * N**3, lambda x: torch.linalg.matrix_norm(x, 2), (SQUARE,)),
        (22 * N**3, torch.linalg.cond, (SQUARE,)),
        (22 * N**3, torch.linalg.matrix_rank, (SQUARE,)),
        (2 * N**3 // 3 + 2 * N * N, torch.linalg.tensorsolve, (SQUARE.reshape(4, 6, N), torch.ones(4, 6))),
    ],
    ids=["norm", "condition", "rank", "solve"],
)
def test_what_is_made_of_factorizations_counts_as_these(flops: int, function: Any, args: tuple[Any, ...]) -> None:
    """torch.export keeps it as one operator; decomposed, it counted a thousand times as much."""
    assert flops == flops_of(function, *args)


@pytest.mark.parametrize(
    ("flops", "function", "args"),
    [
        (2 * 40 * 50 * N, torch.ops.aten._euclidean_dist, ROWS),
        (2 * 40 * 50 * N, lambda *given: torch.ops.aten._cdist_backward(PAIRS, *given, 1.0, PAIRS), ROWS),
        (2 * (40 * 39 // 2) * N, nn.functional.pdist, (ROWS[0],)),
        (2 * 780 * N, lambda x: torch.ops.aten._pdist_backward(torch.ones(780), x, 2.0, torch.ones(780)), (ROWS[0],)),
        (4 * 60 * 20 * 20 - 2 * 80 * 400 + 4 * 8000 // 3, torch.linalg.householder_product, (TALL, torch.ones(20))),
        (2 * 4 * 20 * (120 - 20), torch.ormqr, (TALL, torch.ones(20), torch.ones(60, 4))),
        (N**3 // 3, lambda x: torch.linalg.ldl_factor(x).LD, (SQUARE,)),
        (int(2.5 * 3 * 40 * 64 * 6), lambda x: torch.istft(x, 64, window=torch.ones(64)), (FRAMES,)),
    ],
    ids=["distances", "distances-back", "pairs", "pairs-back", "reflections", "reflected", "ldl", "frames"],
)
def test_what_looks_at_each_pair_or_frame_counts_more_than_its_elements(
    flops: int, function: Any, args: tuple[Any, ...]
) -> None:
    assert flops == flops_of(function, *args)


def test_products_of_rows_count_as_those_of_vectors() -> None:
    assert 2 * 40 * 50 == flops_of(torch.linalg.vecdot, torch.ones(40, 50), torch.ones(40, 50))


def test_products_of_complex_numbers_count_four_of_real_ones() -> None:
    """(a + ib)(c + id) is four multiplications, and as many additions with that of the sum."""
    matrix = torch.ones(4, 4, dtype=torch.complex64)

    assert 4 * (2 * 4 * 4 * 4) == flops_of(torch.matmul, matrix, matrix)


def test_a_function_of_a_traced_graph_counts_as_its_operator() -> None:
    """A graph that was written by hand calls ``torch.linalg.inv`` itself."""
    graph = Graph()
    graph.output(graph.call_function(torch.linalg.inv, (graph.placeholder("x"),)))
    module = GraphModule(nn.Module(), graph)
    MeasureCosts(example_inputs=(SQUARE,))(module)

    assert 2 * N**3 == max(measure_node(node).flops for node in module.graph.nodes)
