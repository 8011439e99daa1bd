"""Does a pass do the same twice? Once more on its own result, and in other processes with other hash seeds."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, cast

from torch.fx import GraphModule

from fxpasses.checks.sessions import PassCheck
from fxpasses.errors import PassError
from fxpasses.journal.comparing import clone_sharing_tensors, graph_text
from fxpasses.pass_base.naming import pass_name

__all__ = ["is_deterministic", "is_idempotent"]

logger = logging.getLogger(__name__)

HASH_SEEDS = (0, 1)


class _IsIdempotent(PassCheck):
    """See :data:`is_idempotent`."""

    pass_name = "is_idempotent"

    def __call__(self, pass_: Any, graph_module: GraphModule | None = None) -> Any:
        """Check one pass on one graph (the graph is left alone); without a graph, give the check of graphs."""
        if graph_module is None:
            return lambda module: self(pass_, module)
        once = clone_sharing_tensors(graph_module)
        first = _run_alone(pass_, once)
        self.after_pass(pass_, None, first)
        return None

    def after_pass(self, pass_: Any, before: Any, graph_module: GraphModule) -> None:
        """Run the pass once more on a copy of its result."""
        again = clone_sharing_tensors(graph_module)
        text = graph_text(again)
        after = graph_text(_run_alone(pass_, again))
        if after != text:
            line = next((f"{new!r}" for old, new in _lines(text, after) if old != new), "")
            raise PassError(
                f"pass '{pass_name(pass_)}' is not idempotent: a second run changes its own result, first at {line}; a "
                "pass that has nothing left to do must leave the graph alone",
                reason="not idempotent",
            )


is_idempotent = _IsIdempotent()
"""The check that a pass run twice changes nothing the second time.

In ``checks=[is_idempotent]`` it is asked of every pass; ``is_idempotent(pass_)`` checks graphs, and
``is_idempotent(pass_, graph_module)`` one graph.
"""


class _IsDeterministic(PassCheck):
    """See :data:`is_deterministic`."""

    pass_name = "is_deterministic"

    def __call__(self, pass_: Any, graph_module: GraphModule | None = None) -> Any:
        """Check one pass on one graph (the graph is left alone); without a graph, give the check of graphs."""
        if graph_module is None:
            return lambda module: self(pass_, module)
        self.after_pass(pass_, self.before_pass(pass_, graph_module), graph_module)
        return None

    def before_pass(self, pass_: Any, graph_module: GraphModule) -> bytes:
        """Pack the pass and the graph for other processes."""
        try:
            return pickle.dumps((pass_, _packed(graph_module)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise PassError(
                f"pass '{pass_name(pass_)}' and its graph cannot be sent to another process: {error}; define the pass "
                "at the top of a module",
                reason="not picklable",
            ) from error

    def after_pass(self, pass_: Any, before: bytes, graph_module: GraphModule) -> None:
        """Run it in processes with different hash seeds, and compare the texts of the results."""
        texts = _texts_from_processes(before)
        if len(set(texts)) > 1:
            line = next((pair for pair in _lines(texts[0], texts[1]) if pair[0] != pair[1]), ("", ""))
            raise PassError(
                f"pass '{pass_name(pass_)}' is not deterministic: with another PYTHONHASHSEED it gives {line[1]!r} "
                f"instead of {line[0]!r}; walk lists, not sets",
                reason="not deterministic",
            )


is_deterministic = _IsDeterministic()
"""The check that a pass gives the same graph in processes with other hash seeds; used like :data:`is_idempotent`.

Pass and graph are pickled, so the pass must be defined at the top of a module. Starting two interpreters takes seconds.
"""


def _run_alone(pass_: Any, module: GraphModule) -> GraphModule:
    from fxpasses.pass_base.applying import call_alone

    return call_alone(pass_, module).graph_module


def _lines(one: str, other: str) -> Iterator[tuple[str, str]]:
    left, right = one.splitlines(), other.splitlines()
    size = max(len(left), len(right))
    return zip(left + [""] * (size - len(left)), right + [""] * (size - len(right)), strict=True)


def _packed(module: GraphModule) -> tuple[bool, bytes]:
    """The module as bytes, with its fake values where torch can pickle them (the flag says so)."""
    cloned = clone_sharing_tensors(module)
    plain = GraphModule(cloned, cloned.graph)  # leaves hooks behind, which cannot be pickled
    plain.meta = {}
    try:
        from torch.fx._graph_pickler import GraphPickler, Options

        return True, GraphPickler.dumps(plain, Options(ops_filter=None))
    except Exception as error:  # torch's private pickler gives up in many ways; the plain one takes over
        logger.debug("no fake values for the other process: %s", error)
    plain._tracer_cls = None
    return False, pickle.dumps(plain)


def _unpacked(packed: tuple[bool, bytes]) -> GraphModule:
    with_values, data = packed
    if not with_values:
        plain: GraphModule = pickle.loads(data)
        return plain
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    module = cast("GraphModule", GraphPickler.loads(data, FakeTensorMode(shape_env=ShapeEnv())))
    module.recompile()
    return module


def _texts_from_processes(payload: bytes) -> list[str]:
    context = multiprocessing.get_context("spawn")
    running = []
    for seed in HASH_SEEDS:
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(payload, theirs), daemon=True)
        with _hash_seed(seed):
            process.start()
        theirs.close()
        running.append((process, mine))
    texts = []
    for process, pipe in running:
        try:
            found: tuple[bool, str] = pipe.recv()
        except EOFError:
            found = (False, "the process ended without a word")
        process.join()
        process.close()
        pipe.close()
        if not found[0]:
            raise PassError(f"the pass failed in another process: {found[1]}", reason=found[1])
        texts.append(found[1])
    return texts


@contextlib.contextmanager
def _hash_seed(seed: int) -> Iterator[None]:
    """Processes started inside hash strings with this seed."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before


def _child(payload: bytes, pipe: Connection) -> None:
    sys.setrecursionlimit(10_000)
    try:
        pass_, packed = pickle.loads(payload)
        pipe.send((True, graph_text(_run_alone(pass_, _unpacked(packed)))))
    except Exception as error:  # whatever happens in the child is told to the parent
        pipe.send((False, f"{type(error).__name__}: {error}"))
    finally:
        pipe.close()
