"""One run of a pipeline: passes in order, the truth about each, checks, records, and the way back when one fails.

The graph is compared with the last snapshot after each pass, which costs about a hundredth of generating its code;
code is generated once, at the end, for the graphs that changed. Two snapshots are kept whatever the number of passes:
that of the input and the latest. Neither holds a copy of a tensor.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import attrs
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.checks.linting import lint_graphs
from fxpasses.checks.sessions import CheckSession, check_error, run_checks
from fxpasses.errors import CheckError, FxPassesError, GraphError, PassError
from fxpasses.instruments.events import PassEvent, Told, ambient_instruments, collecting
from fxpasses.instruments.records import CheckOutcome, Edits, PassRecord, RunReport, count_nodes, count_ops
from fxpasses.journal import Changes, Snapshot
from fxpasses.outlining.body_constants import hand_in_constants
from fxpasses.outlining.owning import own_bodies
from fxpasses.pass_base import PassResult, naming
from fxpasses.pass_base.applying import (
    Outcome,
    apply_pass,
    as_pass_error,
    cause_of,
    graphs_in,
    has_targets,
    is_modified,
    reaches_nested,
    result_of,
    sync_program,
    unpack,
)
from fxpasses.pass_base.recompiling import RecompileQueue, deferred_recompile
from fxpasses.pass_manager.groups import PassGroup, Skip, Stage
from fxpasses.pass_manager.property_plan import Established, plan_properties

__all__ = ["Run", "run_pipeline"]

logger = logging.getLogger(__name__)


@attrs.define
class Policy:
    """How the manager whose passes are running wants them run."""

    manager: Any
    session: CheckSession
    check_each: bool
    suppress: bool
    skip_failed: bool
    strict: bool


@attrs.define
class _Saved:
    """A point to come back to."""

    module: GraphModule
    program: ExportedProgram | None
    snapshot: Snapshot


def run_pipeline(group: PassGroup, subject: Any) -> PassResult:
    """Run a group on a GraphModule, an ExportedProgram or a result; what calling a group does.

    Raises:
        PassError, CheckError, PipelineError: Something failed; the subject is as it was.
    """
    module, program = unpack(subject)
    return Run(group, module, program).execute()


class Run:
    """The state of one run."""

    def __init__(self, root: PassGroup, module: GraphModule, program: ExportedProgram | None) -> None:
        self.root = root
        self.module = module
        self.program = program
        self.instruments = (*getattr(root, "instruments", ()), *ambient_instruments())
        self.records: list[PassRecord] = []
        self.warnings: list[str] = []
        self.settled = True
        self.number = 0
        self.previous: list[str] = []
        self.producers: dict[str, str] = {}
        self.established = Established()
        self.queue = RecompileQueue()
        self.strict_lint = True
        self.policy: Policy
        self.snapshot: Snapshot
        self.graphs: list[GraphModule]
        self.counts: tuple[int, dict[str, int]]

    # --- the whole ---------------------------------------------------------------------------------------------------

    def execute(self) -> PassResult:
        """Run everything; on any failure put the input back and raise."""
        started = time.perf_counter()
        plan = plan_properties(self.root)
        own_bodies(self.module)
        origin = Snapshot.take(self.program if self.program is not None else self.module)
        given = self.module
        self.snapshot = origin
        try:
            with deferred_recompile() as self.queue:
                self._look_around()
                self.established = plan.establish(self.module)
                self.policy = self._policy_of(self.root)
                self._tell("start", self.module)
                self._run_group(self.root, ())
                self._remember_properties()
                self._compile()
            modified = is_modified(origin, given, self.module)
        except BaseException:
            origin.restore()
            raise
        finally:
            report = RunReport(
                records=tuple(self.records),
                warnings=tuple(self.warnings),
                seconds=time.perf_counter() - started,
                settled=self.settled,
                properties=tuple(self.established.names()),
            )
            self._tell("finish", report)
        return result_of(self.module, modified, self.program, report)

    def _compile(self) -> None:
        try:
            self.queue.release()
        except Exception as error:  # generating code runs whatever is in the graph
            raise PassError(f"no code can be generated for the graph after {self.previous}: {error}") from error

    def _remember_properties(self) -> None:
        """Note on the module what holds, for a later pipeline that needs it."""
        before = self.module.meta.get("fxpasses.properties", ())
        names = self.established.names_after(before)
        if names:
            self.module.meta["fxpasses.properties"] = names
        elif before:
            del self.module.meta["fxpasses.properties"]

    def _look_around(self) -> None:
        """Note which graphs there are now, and hold back their compilation."""
        self.graphs = graphs_in(self.module)
        for module in self.graphs:
            self.queue.hold(module)
        self.counts = count_nodes(self.graphs), count_ops(self.graphs)

    # --- groups ------------------------------------------------------------------------------------------------------

    def _policy_of(self, group: Any) -> Policy:
        """The policy of a manager, or that of a group which is run by itself."""
        return Policy(
            manager=group,
            session=CheckSession.begin(getattr(group, "checks", ()), self.module, self.program),
            check_each=getattr(group, "run_checks_after_each_pass", False),
            suppress=getattr(group, "suppress_check_failures", False),
            skip_failed=getattr(group, "on_failure", "rollback") == "skip",
            strict=getattr(group, "strict", False),
        )

    @contextlib.contextmanager
    def _under(self, group: PassGroup) -> Iterator[None]:
        """A manager inside a manager brings its own policy; other groups take the one they are in."""
        outer = self.policy
        if group is not self.root and hasattr(group, "on_failure"):
            self.policy = self._policy_of(group)
        try:
            yield
        finally:
            self.policy = outer

    def _run_group(self, group: PassGroup, position: tuple[int, ...]) -> None:
        with self._under(group):
            begin = getattr(group, "begin_run", None)
            if begin is not None:
                begin(self)
            self._repeat(group, position)
            self._check_end(group)

    def _repeat(self, group: PassGroup, position: tuple[int, ...]) -> None:
        for step in range(group.steps):
            if group is self.root:
                self.previous.clear()
            at_start = _Saved(self.module, self.program, self.snapshot)
            for index, pass_ in enumerate(list(group.passes)):
                self._run_element(pass_, (*position, index), step)
            if at_start.snapshot is self.snapshot or not is_modified(at_start.snapshot, at_start.module, self.module):
                return
        if group.steps > 1:
            self.settled = False
            changing = [record.name for record in self.records[-len(group.passes) :] if record.modified]
            self._warn(
                f"{naming.pass_name(group)} did not settle in {group.steps} steps; in the last one, "
                f"{', '.join(dict.fromkeys(changing)) or 'some pass'} still changed the graph"
            )

    def _run_element(self, pass_: Any, position: tuple[int, ...], step: int) -> None:
        if isinstance(pass_, Skip):
            self._note_skipped(pass_.skipped, position, step, "by request")
        elif isinstance(pass_, PassGroup) and not _calls_itself(pass_):
            self._run_inner_group(pass_, position, step)
        else:
            self._run_pass(pass_, position, step)

    def _run_inner_group(self, group: PassGroup, position: tuple[int, ...], step: int) -> None:
        if not group.applies(self.module):
            self._note_skipped(group, position, step, "its condition is false")
            return
        event = self._event(group, position, step, number=None)
        transaction = self._save() if self.policy.skip_failed and hasattr(group, "on_failure") else None
        self._tell("before", event)
        try:
            self._run_group(group, position)
        except FxPassesError as error:
            event.error = error
            self._tell("failed", event)
            if transaction is None:
                raise
            self._go_back(transaction)
            self._note_failed(group, position, step, error)
            return
        event.graph_module, event.program = self.module, self.program
        self._tell("after", event)

    # --- one pass ----------------------------------------------------------------------------------------------------

    def _run_pass(self, pass_: Any, position: tuple[int, ...], step: int) -> None:
        name = naming.pass_name(pass_)
        if not has_targets(pass_, self.graphs if reaches_nested(pass_) else self.graphs[:1]):
            self._note_skipped(pass_, position, step, "none of its target ops is there")
            return
        event = self._event(pass_, position, step, number=self.number)
        if not all(ask(event) for one in self.instruments if (ask := getattr(one, "should_run", None)) is not None):
            self._note_skipped(pass_, position, step, "an instrument said no")
            return
        saved = self._save() if self.policy.skip_failed else None
        self._tell("before", event)
        self.number += 1
        try:
            record = self._attempt(pass_, position, step)
        except Exception as error:  # a pass may raise anything; all of it is reported as one error of ours
            reported = self._reported(error, pass_, position)
            event.error = reported
            self._tell("failed", event)
            if saved is None:
                if reported is error:
                    raise
                raise reported from cause_of(error)
            self._go_back(saved)
            self._note_failed(pass_, position, step, reported)
            return
        self.previous.append(name)
        self.records.append(record)
        event.graph_module, event.program, event.record = self.module, self.program, record
        self._tell("after", event)

    def _attempt(self, pass_: Any, position: tuple[int, ...], step: int) -> PassRecord:
        """Run the pass, find out what it did, check the result."""
        self.established.demand(pass_, self.module)
        nodes_before, ops_before = self.counts
        remembered = self.policy.session.before_pass(pass_, self.module)
        started = time.perf_counter()
        with collecting() as told:
            outcome = apply_pass(pass_, self.module, self.program, queue=self.queue)
        seconds = time.perf_counter() - started
        edits, warnings = self._adopt(pass_, outcome)
        self.established.update(pass_, self.module)
        checks, check_warnings = self._check_after(pass_, position, remembered, modified=edits is not None)
        return PassRecord(
            name=naming.pass_name(pass_),
            options=naming.options_of(pass_),
            position=position,
            step=step,
            seconds=seconds,
            nodes_before=nodes_before,
            nodes_after=self.counts[0],
            ops_before=ops_before,
            ops_after=self.counts[1],
            modified=edits is not None,
            claimed=outcome.claimed,
            checks=tuple(checks),
            warnings=(*warnings, *check_warnings),
            edits=edits or Edits(),
            **_told(told),
        )

    def _adopt(self, pass_: Any, outcome: Outcome) -> tuple[Edits | None, list[str]]:
        """Take the result over as the state of the run; give the edits (None if there were none) and warnings."""
        in_place = outcome.graph_module is self.module and outcome.program in (None, self.program)
        if not is_modified(self.snapshot, self.module, outcome.graph_module):
            if not in_place:
                self._switch(outcome)
            return None, []
        before, old = self.snapshot, self.module
        hand_in_constants(outcome.graph_module)
        self._switch(outcome)
        if in_place:
            changes = before.changes(self.snapshot)
            edits, changed_graphs = Edits.of(changes), _changed_graphs(self.module, changes)
            touched = [*changes.added, *changes.altered]
        else:
            edits, touched = Edits.between(old, self.module)
            changed_graphs = self.graphs
        for module in changed_graphs:
            self.queue.mark(module)
        self.producers.update(dict.fromkeys(touched, naming.pass_name(pass_)))
        return edits, self._warnings_about(pass_, outcome, edits)

    def _warnings_about(self, pass_: Any, outcome: Outcome, edits: Edits) -> list[str]:
        """What is not as the pass says, or cannot be taken back."""
        name = naming.pass_name(pass_)
        warnings = []
        if outcome.claimed is False:
            said = f"says it did not change the graph, but it did: {edits}"
            if self.policy.strict:
                raise PassError(f"pass '{name}' {said}; return modified=True", reason=said)
            warnings.append(f"pass '{name}' {said}")
        if edits.written_in_place:
            listed = ", ".join(edits.written_in_place[:5])
            warnings.append(f"pass '{name}' wrote into tensors, which cannot be taken back: {listed}")
        for warning in warnings:
            logger.warning("%s", warning)
        return warnings

    def _switch(self, outcome: Outcome) -> None:
        """Make the result the state of the run."""
        self.module = outcome.graph_module
        if outcome.program is not None:
            self.program = outcome.program
        if self.program is not None:
            self.program = sync_program(self.program, self.module)
        own_bodies(self.module)
        self._look_around()
        self.snapshot = Snapshot.take(self.program if self.program is not None else self.module)

    # --- checks ------------------------------------------------------------------------------------------------------

    def _check_after(
        self, pass_: Any, position: tuple[int, ...], remembered: list[Any], *, modified: bool
    ) -> tuple[list[CheckOutcome], list[str]]:
        policy = self.policy
        outcomes, failures = policy.session.after_pass(pass_, remembered, self.module)
        if modified or policy.check_each:
            self._collect_lint(outcomes, failures, strict=policy.check_each and self.strict_lint)
        more: tuple[list[CheckOutcome], list[tuple[str, Exception]]] = ([], [])
        if policy.check_each:
            more = self._run_checks(policy)
        elif modified and policy.session.each_change:
            more = run_checks(policy.session.each_change, self.module, self.program)
        outcomes += more[0]
        failures += more[1]
        return outcomes, self._settle_failures(failures, f"after pass '{naming.pass_name(pass_)}'", pass_, position)

    def _collect_lint(
        self, outcomes: list[CheckOutcome], failures: list[tuple[str, Exception]], *, strict: bool
    ) -> None:
        try:
            lint_graphs(self.graphs, root=self.module, strict=strict)
        except GraphError as error:
            failures.append(("lint", error))
            outcomes.append(CheckOutcome("lint", str(error)))
        else:
            outcomes.append(CheckOutcome("lint"))

    def _run_checks(self, policy: Policy) -> tuple[list[CheckOutcome], list[tuple[str, Exception]]]:
        outcomes, failures = policy.session.run(self.module, self.program)
        own = getattr(policy.manager, "run_added_checks", None)
        if own is not None:
            more = own(self.module, self.program)
            outcomes += more[0]
            failures += more[1]
        return outcomes, failures

    def _settle_failures(
        self, failures: list[tuple[str, Exception]], where: str, pass_: Any = None, position: tuple[int, ...] = ()
    ) -> list[str]:
        """Raise what failed, all together; or turn it into warnings if the manager asks for that."""
        if not failures:
            return []
        failures = [(name, self._with_producer(cause)) for name, cause in failures]
        if self.policy.suppress:
            warnings = [f"check '{name}' failed {where}: {cause}" for name, cause in failures]
            for warning in warnings:
                logger.warning("%s", warning)
            return warnings
        label = f" (position {'.'.join(map(str, position))})" if position else ""
        raise check_error(
            failures,
            where=f"{where}{label}" + (f" after the following passes: {self.previous}" if pass_ is not None else ""),
            pass_name=None if pass_ is None else naming.pass_name(pass_),
            index=position[0] if position else None,
        )

    def _with_producer(self, cause: Exception) -> Exception:
        """Add to an error about a node which pass made that node."""
        node = getattr(cause, "node", None)
        producer = self.producers.get(getattr(node, "name", ""))
        if producer is not None and isinstance(cause, FxPassesError) and "altered by pass" not in cause.message:
            cause.message = f"{cause.message} (node {node.name!r} was made or altered by pass '{producer}')"  # type: ignore[union-attr]
        return cause

    def _check_end(self, group: PassGroup) -> None:
        """What must hold when a stage or a manager ends."""
        if isinstance(group, Stage):
            _, failures = group.check_legality(self.module, self.program)
            self.warnings += self._settle_failures(failures, f"at the end of stage '{group.name}'")
        elif not self.policy.check_each and (group is self.root or hasattr(group, "on_failure")):
            _, failures = self._run_checks(self.policy)
            self.warnings += self._settle_failures(failures, f"at the end of {naming.pass_name(group)}")

    def check_input(self, manager: Any) -> None:
        """Run the added checks once on the input, as upstream does; a single failure comes out as what it is."""
        _, failures = manager.run_added_checks(self.module, self.program)
        if not failures:
            return
        if len(failures) == 1 and not self.policy.suppress:
            error = check_error(failures, where="on the input, before the first pass")
            raise error if isinstance(error, type(failures[0][1])) else failures[0][1]
        self.warnings += self._settle_failures(failures, "on the input, before the first pass")

    def lint_input(self) -> None:
        """Refuse an input that is broken; one that is merely unusual is linted less strictly from then on."""
        try:
            lint_graphs(self.graphs, root=self.module)
        except GraphError as unusual:
            try:
                lint_graphs(self.graphs, root=self.module, strict=False)
            except GraphError as error:
                self.warnings += self._settle_failures([("lint", error)], "on the input, before the first pass")
            self.strict_lint = False
            self._warn(f"the input is unusual, so it is linted less strictly: {unusual}")

    # --- failures ----------------------------------------------------------------------------------------------------

    def _reported(self, error: Exception, pass_: Any, position: tuple[int, ...]) -> FxPassesError:
        if isinstance(error, CheckError):
            return error
        return as_pass_error(
            error,
            pass_,
            index=position[0],
            position=".".join(map(str, position)),
            previous=self.previous,
        )

    def _save(self) -> _Saved:
        self.snapshot = self.snapshot.renewed()
        return _Saved(self.module, self.program, self.snapshot)

    def _go_back(self, saved: _Saved) -> None:
        saved.snapshot.restore()
        self.module, self.program, self.snapshot = saved.module, saved.program, saved.snapshot
        self.queue.mark_all()
        self._look_around()

    def _note_failed(self, pass_: Any, position: tuple[int, ...], step: int, error: Exception) -> None:
        reason = getattr(error, "reason", None) or str(error)
        place = ".".join(map(str, position))
        warning = f"pass '{naming.pass_name(pass_)}' (position {place}) failed and was skipped: {reason}"
        logger.warning("%s", warning)
        self.established.failed(pass_)
        self._note_skipped(pass_, position, step, f"failed: {reason}", warning)

    def _note_skipped(self, pass_: Any, position: tuple[int, ...], step: int, why: str, *warnings: str) -> None:
        nodes, ops = self.counts
        self.records.append(
            PassRecord(
                name=naming.pass_name(pass_),
                options={} if isinstance(pass_, PassGroup) else naming.options_of(pass_),
                position=position,
                step=step,
                nodes_before=nodes,
                nodes_after=nodes,
                ops_before=ops,
                ops_after=ops,
                skipped=why,
                warnings=warnings,
            )
        )
        self.warnings += warnings

    # --- telling -----------------------------------------------------------------------------------------------------

    def _warn(self, warning: str) -> None:
        logger.warning("%s", warning)
        self.warnings.append(warning)

    def _event(self, pass_: Any, position: tuple[int, ...], step: int, number: int | None) -> PassEvent:
        return PassEvent(naming.pass_name(pass_), pass_, position, step, number, self.module, self.program)

    def _tell(self, what: str, about: Any) -> None:
        for instrument in self.instruments:
            if (hook := getattr(instrument, what, None)) is not None:
                hook(about)


def _calls_itself(group: PassGroup) -> bool:
    """Whether a user's subclass runs in its own way."""
    return not type(group).__call__.__module__.startswith("fxpasses.")


def _changed_graphs(root: GraphModule, changes: Changes) -> list[GraphModule]:
    """The graph modules in which something changed; nodes of nested graphs are named ``path/name``."""
    labels = [*changes.added, *changes.removed, *changes.altered, *changes.moved]
    paths = {label.rpartition("/")[0] for label in labels}
    owners = {attribute.rpartition(".")[0] for attribute in changes.attributes}
    return [
        module
        for path, module in root.named_modules()
        if isinstance(module, GraphModule) and (path in paths or path in owners)
    ]


def _told(told: Told) -> dict[str, Any]:
    return {"remarks": tuple(told.remarks), "statistics": told.statistics}
