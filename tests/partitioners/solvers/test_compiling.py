"""What searches compile: kept on disk where that is possible, and made anew when one of its files has changed."""

from __future__ import annotations

import importlib.util
import itertools
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

from benchmarks.placement_workloads import DEVICES, WORKLOADS, mixed, translation
from fxpasses.errors import InputError
from fxpasses.partitioners import solve_placement, solvers
from fxpasses.partitioners.solvers import compiled_ahead
from fxpasses.partitioners.solvers.annealing import cooling
from fxpasses.partitioners.solvers.compiling import cached
from fxpasses.partitioners.solvers.contiguous.ideals import byte_runs, span_runs
from fxpasses.partitioners.solvers.contiguous.tables import table_runs
from fxpasses.partitioners.solvers.free import packing_steps
from fxpasses.partitioners.solvers.latency.trials import anneal


def doubled(number: int) -> int:
    return 2 * number


def module_of(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_are_compiled_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only installation without a home for caches compiles in each process."""
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])

    twice = cached()(lambda number: 2 * number)

    assert 8 == twice(4)


def test_other_sources_of_a_part_have_another_file_on_disk(tmp_path: Path) -> None:
    """Numba knows the file of the function only, so the others are in the name."""
    parts = [module_of(tmp_path / f"part{index}.py", f"X = {index // 2}\n") for index in range(3)]
    names = []
    for part in parts:
        doubled.__qualname__ = "doubled"
        names.append(cached(part)(doubled).__qualname__)

    assert names[0] == names[1] != names[2]
    assert 8 == cached(parts[0])(doubled)(4)


def test_annealings_of_latencies_are_compiled_once() -> None:
    """Numbers of steps come as whole ones and as others; each type would take half as long as the first again."""
    graph = translation(3, steps=4)
    for budget in (0.2, 1.0):
        solve_placement(mixed(graph, (1, 0.5, 0.5), objective="latency", contiguity="free", time_budget=budget))

    assert len(anneal.signatures) == 1  # type: ignore[attr-defined]  # of what is compiled


def test_searches_of_pipelines_are_compiled_once() -> None:
    """Costs come in rows and in columns, and what is known of some ideals only lies apart."""
    speeds, memory = DEVICES["8 different, tight"]
    for name, objective in itertools.product(("bert-24, layers", "resnet-50, layers"), ("throughput", "memory")):
        solve_placement(mixed(WORKLOADS[name](), speeds, memory=memory, objective=objective))

    for compiled in (byte_runs.needed, cooling.anneal, span_runs.charged, table_runs.extend):
        assert len(compiled.signatures) == 1  # type: ignore[attr-defined]  # of what is compiled


def test_packing_is_compiled_once() -> None:
    """For costs in rows and in columns, too."""
    speeds, memory = DEVICES["3 different, tight"]
    for name, objective in (("bert-3, operators", "throughput"), ("bert-24, layers, training", "devices")):
        given = {"memory": memory, "objective": objective, "contiguity": "free", "time_budget": 0.1}
        solve_placement(mixed(WORKLOADS[name](), speeds, **given))

    assert len(packing_steps.pack.signatures) == 1  # type: ignore[attr-defined]  # of what is compiled


def test_all_that_searches_compile_can_be_compiled_ahead() -> None:
    """What is compiled into others is compiled with them."""
    folders = [compile_half() for compile_half in compiled_ahead.HALVES.values()]

    assert all(Path(folder).is_dir() for folder in folders)
    modules = pkgutil.walk_packages(solvers.__path__, f"{solvers.__name__}.")
    found = [item for module in modules for item in vars(importlib.import_module(module.name)).values()]
    own = {item for item in found if isinstance(item, Dispatcher) and item.__module__.startswith(solvers.__name__)}
    called = [item for item in own if "forceinline" not in item.targetoptions]
    assert {"anneal", "charged", "extend", "fill", "forth", "pack", "put_first"} < {each.__name__ for each in called}
    assert [] == [f"{each.__module__}.{each.__name__}" for each in called if not each.signatures]


def test_what_can_be_kept_nowhere_is_not_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])

    with pytest.raises(InputError) as caught:
        compiled_ahead._refuse_nowhere(cached()(lambda number: 2 * number))

    assert (
        "What the searches compile can be kept nowhere: neither beside the sources of fxpasses nor in a folder of the "
        "user can be written; set NUMBA_CACHE_DIR to a folder, here and where models are placed."
    ) == str(caught.value)
