"""Who uses what while matches are being replaced, and one substitution for each user at the end.

Giving a node another input costs time in proportion to all of its inputs, so a node that takes the results of n matches
(an output, a ``cat``) would cost n times n. What stands for a result is therefore noted, and each user is rewritten
once. Until then questions about users and inputs are asked here, and what is gone stays in the graph while somebody
still holds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
from torch.fx import Node, map_arg

__all__ = ["Uses"]


@attrs.define(eq=False)
class Uses:
    """What stands for replaced nodes, and who is still to be given it.

    Args:
        now: What stands for a replaced node, which may have been replaced itself since.
    """

    now: dict[Node, Any] = attrs.field(factory=dict)
    _waiting: dict[Node, None] = attrs.field(init=False, factory=dict)  # users that still hold a replaced node
    _coming: dict[Node, dict[Node, None]] = attrs.field(init=False, factory=dict)  # by node: users that will hold it
    _leaving: dict[Node, None] = attrs.field(init=False, factory=dict)  # erased as soon as nobody holds them

    def current(self, value: Any) -> Any:
        """What stands for a node now; everything else is itself."""
        while isinstance(value, Node) and value in self.now:
            value = self.now[value]
        return value

    def users(self, node: Node) -> list[Node]:
        """The users that a node has as soon as all is settled."""
        own = () if node in self.now else node.users
        found = dict.fromkeys((*own, *self._coming.get(node, ())))
        return [user for user in found if user not in self._leaving and not user._erased]

    def inputs(self, node: Node) -> list[Node]:
        """The inputs that a node has as soon as all is settled."""
        held = map(self.current, node.all_input_nodes)
        return [each for each in dict.fromkeys(held) if isinstance(each, Node)]

    def replace(self, old: Node, value: Any) -> list[Node]:
        """Note that ``value``, a node or a literal, stands for ``old``; give the users that this concerns."""
        users = self.users(old)
        self.now[old] = value
        self._coming.pop(old, None)
        self._waiting.update(dict.fromkeys(users))
        if isinstance(value, Node):
            self._coming.setdefault(value, {}).update(dict.fromkeys(users))
        return users

    def erase(self, node: Node) -> None:
        """Erase a node without users, now or as soon as nobody holds it any more."""
        if node.users:
            self._leaving[node] = None
        else:
            node.graph.erase_node(node)

    def settle(self) -> None:
        """Give every user what stands for its inputs now, and erase what is left over."""
        self.settle_at(list(self._waiting))
        for node in sorted((node for node in self._leaving if not node._erased), reverse=True):
            node.graph.erase_node(node)
        self._leaving.clear()
        self._coming.clear()

    def settle_at(self, users: Iterable[Node]) -> None:
        """Give these nodes what stands for their inputs now; those that wait for nothing are as they should be."""
        for user in users:
            if user in self._waiting:
                del self._waiting[user]
                if user not in self._leaving and not user._erased:
                    self._substitute(user)

    def _substitute(self, user: Node) -> None:
        old = [each for each in user.all_input_nodes if each in self.now]
        new = [self.current(each) for each in old]
        if len(old) == 1 and isinstance(new[0], Node):
            user.replace_input_with(old[0], new[0])
            return
        hooks = getattr(user.graph.owning_module, "_replace_hooks", ())  # torch's observers of transformations
        for hook in hooks:
            for before, after in zip(old, new, strict=True):
                if isinstance(after, Node):
                    hook(old=before, new=after.name, user=user)
        user.args = map_arg(user.args, self.current)
        user.kwargs = map_arg(user.kwargs, self.current)
