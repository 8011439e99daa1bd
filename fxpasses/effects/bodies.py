"""What a call does that carries code of its own: a called module, or a higher-order operator with graphs as operands.

Graphs are looked into: what a body does to its placeholders is what the call does to the operands that stand for them.
Modules of ``torch.nn`` are known by class. All else is opaque.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import attrs
import torch
from torch import nn
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from fxpasses.effects.calls import CallEffects, RegionKind, Registry, Rule, flat_nodes, opaque
from fxpasses.effects.purity import rule_for_target

__all__ = ["BodySummary", "higher_order_effects", "module_effects"]

T = TypeVar("T")


@attrs.frozen(slots=True)
class BodySummary:
    """What running a graph does, told in its placeholders (by index) and the real tensors it holds.

    ``parameters`` are the names of the placeholders; ``outputs`` has, for each value of the output (flattened), the
    placeholders whose memory it may share; ``output_state`` the tensors of the graph whose memory it may share.
    """

    parameters: tuple[str, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    outputs: tuple[tuple[int, ...], ...]
    is_tuple: bool
    state_reads: tuple[torch.Tensor, ...] = ()
    state_writes: tuple[torch.Tensor, ...] = ()
    output_state: tuple[tuple[torch.Tensor, ...], ...] = ()
    random: bool = False
    world: bool = False
    reason: str = ""


Summarize = Callable[[GraphModule], BodySummary]


def _flat(value: Any) -> Iterator[Any]:
    """The leaves of an argument, constants too, so that they can be paired with placeholders."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _flat(item)
    else:
        yield value


def _picked(operands: Sequence[Any], indices: Iterable[int]) -> Iterator[Node]:
    for index in indices:
        yield from flat_nodes(operands[index])


def _through_body(summary: BodySummary, operands: Sequence[Any], *, fresh: bool = False) -> CallEffects:
    """The effects of a call that runs a body once on ``operands``; as if on all of them if they do not pair up."""
    if len(operands) != len(summary.parameters):
        everything = tuple(range(len(operands)))
        outputs = tuple(everything if output else () for output in summary.outputs)
        writes = everything if summary.writes else ()
        summary = attrs.evolve(summary, reads=everything, writes=writes, outputs=outputs)
    aliases = tuple(tuple(dict.fromkeys(_picked(operands, output))) for output in summary.outputs)
    return CallEffects(
        reads=tuple(dict.fromkeys(_picked(operands, summary.reads))),
        writes=tuple(dict.fromkeys(_picked(operands, summary.writes))),
        returns=len(aliases),
        aliases=() if fresh else aliases,
        state_reads=summary.state_reads,
        state_writes=summary.state_writes,
        state_aliases=() if fresh else summary.output_state,
        random=summary.random,
        world=summary.world,
        reason=summary.reason,
    )


def _both(first: CallEffects, second: CallEffects) -> CallEffects:
    """The effects of a call that may do either or both."""
    size = max(first.returns, second.returns)
    aliases = _rows(first.aliases, second.aliases, size)
    state = _rows(first.state_aliases, second.state_aliases, size)
    if first.returns != second.returns:
        size, aliases, state = 1, [_flattened(aliases)], [_flattened(state)]
    return CallEffects(
        reads=_joined(first.reads or (), second.reads or ()),
        writes=_joined(first.writes, second.writes),
        returns=size,
        aliases=tuple(aliases),
        state_reads=first.state_reads + second.state_reads,
        state_writes=first.state_writes + second.state_writes,
        state_aliases=tuple(state),
        random=first.random or second.random,
        world=first.world or second.world,
        reason=first.reason or second.reason,
    )


def _rows(first: Sequence[tuple[T, ...]], second: Sequence[tuple[T, ...]], size: int) -> list[tuple[T, ...]]:
    """For each return, what either call says about it."""
    return [_flattened([*first[slot : slot + 1], *second[slot : slot + 1]]) for slot in range(size)]


def _flattened(rows: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    return tuple({id(item): item for row in rows for item in row}.values())


def _joined(first: Iterable[Node], second: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(dict.fromkeys((*first, *second)))


# --------------------------------------------------------------------------------------------------------------------
# Higher-order operators
# --------------------------------------------------------------------------------------------------------------------

# Operators without effects of their own, whatever they wrap.
_FUNCTIONAL = frozenset(
    {"auto_functionalized", "triton_kernel_wrapper_functional", "inline_asm_elementwise", "out_dtype"}
)
# Their results are stacked, so they are fresh.
_STACKING = frozenset({"map_impl", "map", "scan", "associative_scan", "while_loop_stack_output"})


def _body_of(value: Any) -> GraphModule | None:
    """The graph that an operand names, if it names one."""
    if not (isinstance(value, Node) and value.op == "get_attr"):
        return value if isinstance(value, GraphModule) else None
    found: Any = value.graph.owning_module
    for part in str(value.target).split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, GraphModule) else None


def _associative_operands(node: Node) -> list[Any]:
    elements = list(_flat(node.args[1]))
    return [*elements, *elements, *_flat(node.args[2:])]


def _scan_operands(node: Node) -> list[Any]:
    return list(_flat(node.args[1:4]))


def higher_order_effects(node: Node, summarize: Summarize, registry: Registry) -> CallEffects:
    """What a call of a higher-order operator does.

    Args:
        node: A ``call_function`` whose target is a ``HigherOrderOperator``.
        summarize: Gives the summary of a body.
        registry: What users said about operators.
    """
    name = node.target.name() if hasattr(node.target, "name") else str(node.target)
    if name.startswith(("auto_functionalized", *_FUNCTIONAL)):
        return CallEffects(returns=_result_count(node))
    if name == "with_effects":
        return _with_effects(node, registry)
    if name in ("print", "call_torchbind"):
        return attrs.evolve(opaque(node, f"{name} acts on the world"), writes=())
    if name == "triton_kernel_wrapper_mutation":
        written = tuple(flat_nodes(node.kwargs.get("kwargs")))
        return CallEffects(writes=written, returns=0, reason="a Triton kernel writes its operands")
    bodies = [body for value in _flat([node.args, node.kwargs]) if (body := _body_of(value)) is not None]
    if not bodies:
        return opaque(node, f"higher-order operator {name} is not known")
    operands = _operands(name, node)
    answers = [_through_body(summarize(body), operands, fresh=name in _STACKING) for body in bodies]
    answer = functools.reduce(_both, answers)
    if name == "while_loop":
        answer = _looped(answers[-1], answer, operands)
    random = answer.random or "rng_state" in name
    reads = tuple(flat_nodes([node.args, node.kwargs]))
    return attrs.evolve(answer, reads=reads, random=random, reason=_why(name, answer, random))


def _looped(body: CallEffects, answer: CallEffects, operands: Sequence[Any]) -> CallEffects:
    """A loop that runs zero times gives back what it was given; one whose body aliases may give back anything."""
    every = tuple(flat_nodes(list(operands)))
    rows = (every if any(body.aliases) else tuple(flat_nodes(operands[slot])) for slot in range(body.returns))
    return attrs.evolve(answer, returns=body.returns, aliases=tuple(rows))


def _why(name: str, answer: CallEffects, random: bool) -> str:
    if answer.is_pure and not random:
        return ""
    return f"the body of {name} is not pure: {answer.reason}" if answer.reason else f"{name} is not pure"


def _operands(name: str, node: Node) -> list[Any]:
    """The operands that a body's placeholders stand for, in order."""
    if name == "associative_scan":
        return _associative_operands(node)
    if name == "scan":
        return _scan_operands(node)
    values = list(_flat([node.args, node.kwargs]))
    last = max((index for index, value in enumerate(values) if _body_of(value) is not None), default=-1)
    found = values[last + 1 :]
    return found[1:] if name == "invoke_subgraph" else found


def _result_count(node: Node) -> int:
    """How many values the users of a tuple-valued call pick out of it."""
    value = node.meta.get("val")
    return len(value) if isinstance(value, (tuple, list)) and value else 1


def _with_effects(node: Node, registry: Registry) -> CallEffects:
    """An operator that is ordered by a token: the token comes out first, then what the operator returns."""
    inner = node.args[1] if len(node.args) > 1 else None
    rule = registry.rule_for(inner) or (
        rule_for_target("call_function", inner) if isinstance(inner, OpOverload) else None
    )
    reads = tuple(node.all_input_nodes)
    reason = f"{inner} is ordered by an effect token"
    random = rule is None
    return CallEffects(
        reads=reads,
        returns=_result_count(node),
        random=random,
        world=True,
        region=RegionKind.EFFECT_TOKEN,
        reason=reason,
    )


# --------------------------------------------------------------------------------------------------------------------
# Called modules
# --------------------------------------------------------------------------------------------------------------------

_DROPOUT_MODULES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_STATISTICS_MODULES = (nn.modules.batchnorm._NormBase,)
_ALIASING_MODULES = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Sequential, nn.ModuleList)
_RANDOM_POOLS = (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def module_effects(node: Node, module: nn.Module | None, summarize: Summarize, registry: Registry) -> CallEffects:
    """What a ``call_module`` does.

    Args:
        node: The call.
        module: What it calls; None if there is no such module.
        summarize: Gives the summary of a graph.
        registry: What users said about module classes.
    """
    if module is None:
        return opaque(node, f"there is no module {node.target!r}")
    if (rule := registry.rule_for(type(module))) is not None:
        return _with_state(rule, node, module)
    if isinstance(module, GraphModule) and not _has_hooks(module):
        return _called_graph(node, module, summarize(module))
    if type(module).__name__ == "GuardsFn":
        return CallEffects(returns=0, world=True, reason=f"module {node.target!r} checks the inputs")
    parts = list(module.modules())
    if strange := next((part for part in parts if not _is_known(part)), None):
        kind = type(strange).__name__
        return opaque(node, f"module {node.target!r} holds {kind}, which is opaque", state=_state(module))
    return _library_module(node, module, parts)


def _bound(parameters: Sequence[str], node: Node) -> list[Any]:
    """The operands of a call in the order of the placeholders; structures are taken apart, as pytree code does."""
    operands = list(_flat(list(node.args)))
    rest = parameters[len(operands) :]
    if node.kwargs and set(node.kwargs) <= set(rest):
        return [*operands, *(node.kwargs.get(name) for name in rest)]
    return [*operands, *_flat(dict(node.kwargs))]


def _called_graph(node: Node, module: GraphModule, summary: BodySummary) -> CallEffects:
    answer = _through_body(summary, _bound(summary.parameters, node))
    if module._forward_pre_hooks:  # the input checks of torch.export; all others make a module opaque
        answer = attrs.evolve(answer, world=True, reason=answer.reason or "checks its inputs")
    return answer if answer.is_pure else attrs.evolve(answer, reason=f"module {node.target!r}: {answer.reason}")


def _with_state(rule: Rule, node: Node, module: nn.Module) -> CallEffects:
    answer = rule(node)
    return attrs.evolve(answer, state_reads=answer.state_reads + tuple(_state(module)))


def _has_hooks(module: nn.Module) -> bool:
    """Whether a call runs code that is not in the class; the input checks of ``torch.export`` do not count."""
    hooks = [hook for name in _HOOKS for hook in (getattr(module, name, None) or {}).values()]
    return "forward" in vars(module) or any(not _is_input_check(hook) for hook in hooks)


def _is_input_check(hook: object) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(("torch.export.", "torch._export."))


def _is_known(module: nn.Module) -> bool:
    """Modules of ``torch.nn`` themselves; subclasses, hooks and a ``forward`` put on the object may do anything."""
    return type(module).__module__.startswith("torch.nn.modules.") and not _has_hooks(module)


def _state(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _library_module(node: Node, module: nn.Module, parts: Sequence[nn.Module]) -> CallEffects:
    """A module of ``torch.nn``, by its class and switches."""
    statistics = tuple(tensor for part in parts if _updates_statistics(part) for tensor in part.buffers(recurse=False))
    embeddings = (part for part in parts if isinstance(part, (nn.Embedding, nn.EmbeddingBag)))
    renormed = tuple(part.weight for part in embeddings if part.max_norm is not None)
    random = any(_draws(part) for part in parts)
    world = any(isinstance(part, nn.SyncBatchNorm) and part.training for part in parts)
    inplace = any(getattr(part, "inplace", False) for part in parts)
    operands = tuple(node.all_input_nodes)
    returns_input = inplace or len(parts) > 1 or isinstance(module, (*_ALIASING_MODULES, *_DROPOUT_MODULES))
    writes = operands[:1] if inplace else ()
    facts = [
        "updates its running statistics" * bool(statistics),
        "renormalises its weight" * bool(renormed),
        "draws random numbers" * random,
        "talks to other processes" * world,
        "works in place" * inplace,
    ]
    reason = " and ".join(fact for fact in facts if fact)
    return CallEffects(
        writes=writes,
        aliases=(operands,) if returns_input else (),
        state_reads=tuple(_state(module)),
        state_writes=statistics + renormed,
        random=random,
        world=world,
        reason=f"module {node.target!r} {reason}" if reason else "",
    )


def _updates_statistics(module: nn.Module) -> bool:
    return isinstance(module, _STATISTICS_MODULES) and module.training and bool(module.track_running_stats)


def _draws(module: nn.Module) -> bool:
    if isinstance(module, _RANDOM_POOLS):
        return module._random_samples is None
    if not module.training:
        return False
    if isinstance(module, _DROPOUT_MODULES):
        return module.p > 0
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        return module.dropout > 0
    return isinstance(module, nn.RReLU)
