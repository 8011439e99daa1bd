"""A look at the direct operands of a candidate, which refuses most of them before the search is set up."""

from __future__ import annotations

from typing import Any

import attrs
from torch.fx import Node

from fxpasses.partitioners.matching.terms import Call, Pattern

__all__ = ["Probe", "probe_of"]

Keys = frozenset[tuple[str, Any]]


@attrs.frozen
class Probe:
    """What the operands of an anchor must call, by position; None where the pattern leaves that open.

    Args:
        operands: One entry for each positional argument.
        commutes: The first two may be swapped.
    """

    operands: tuple[Keys | None, ...]
    commutes: bool

    def may_match(self, node: Node) -> bool:
        """Whether the node could be the anchor; True also where its spelling does not tell."""
        args = node.args
        if node.kwargs or len(args) != len(self.operands):
            return True
        if self._fit(args):
            return True
        return self.commutes and len(args) > 1 and self._fit((args[1], args[0], *args[2:]))

    def _fit(self, args: tuple[Any, ...]) -> bool:
        for keys, arg in zip(self.operands, args, strict=True):
            if keys is not None and not (isinstance(arg, Node) and (arg.op, arg.target) in keys):
                return False
        return True


def probe_of(root: Pattern) -> Probe | None:
    """The probe of a pattern's anchor; None where there is nothing to look at."""
    if not isinstance(root, Call) or root.kwargs or root.open or root.is_variadic or root.name_contains:
        return None
    operands = tuple(_keys(term) for term in root.args)
    return Probe(operands, root.commutes) if any(operands) else None


def _keys(term: Any) -> Keys | None:
    is_plain = isinstance(term, Call) and len(term.keys) == len(term.targets) and term.op != "output"
    return term.keys if is_plain and not term.name_contains and not term.has_packets else None
