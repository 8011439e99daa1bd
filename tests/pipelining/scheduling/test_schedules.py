"""Orders of actions are those that torch's runtime runs; simulated, they have the bubbles that the papers give."""

import itertools

import pytest
import torch
import torch.distributed.pipelining as torch_pipelining
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as torchs

from fxpasses.errors import StageError
from fxpasses.pipelining.scheduling.actions import Action, Kind, check_orders, needs_of
from fxpasses.pipelining.scheduling.schedules import SCHEDULES, find_schedule
from fxpasses.pipelining.scheduling.simulating import simulate

NUMBERS = [(p, v, m) for p in (1, 2, 3, 4) for v in (1, 2, 3) for m in (1, 2, 3, 4, 6, 7, 8, 12)]
LEGAL = [(schedule, p, v, m) for schedule in SCHEDULES for p, v, m in NUMBERS if not schedule.refusal(p, p * v, m)]
TIMES = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.BACKWARD_INPUT: 1, Kind.BACKWARD_WEIGHT: 1}


class Recorder:
    """A stage that computes nothing and sends nothing, and notes what torch's runtime asks of it."""

    def __init__(self, rank, ranks, index, count, log):
        self.group_rank, self.group_size, self.stage_index, self.num_stages = rank, ranks, index, count
        self.is_first, self.is_last, self.submod, self.log = index == 0, index == count - 1, torch.nn.Identity(), log

    def forward_one_chunk(self, microbatch, *_, **__):
        self.log.append(Action(self.stage_index, Kind.FORWARD, microbatch))

    def backward_one_chunk(self, microbatch, *_, full_backward=True, **__):
        kind = Kind.BACKWARD if full_backward else Kind.BACKWARD_INPUT
        self.log.append(Action(self.stage_index, kind, microbatch))

    def backward_weight_one_chunk(self, microbatch, **_):
        self.log.append(Action(self.stage_index, Kind.BACKWARD_WEIGHT, microbatch))

    def __getattr__(self, name):
        return lambda *_, **__: []


def run_by_torch(schedule, ranks, per_rank, microbatches, rank):
    """The actions that torch's own loop runs on one rank."""
    count, log = ranks * per_rank, []
    stages = [Recorder(rank, ranks, index, count, log) for index in schedule.stages_of(rank, ranks, count)]
    kind = getattr(torch_pipelining, schedule.torch_name)
    runner = kind(stages[0] if issubclass(kind, torchs.PipelineScheduleSingle) else stages, microbatches)
    runner._initialize_pp_stages = lambda *_, **__: (True, True)
    runner._validate_adjacent_stage_communication = lambda: None
    runner._step_microbatches()
    return log


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_orders_are_those_that_torch_s_runtime_runs(schedule):
    """Every rank of up to four, with up to three stages each, does what torch's own loop does, in that order."""
    cases = [case[1:] for case in LEGAL if case[0] is schedule]

    assert cases
    for p, v, m in cases:
        orders = schedule.orders(p, p * v, m)
        assert [run_by_torch(schedule, p, v, m, rank) for rank in range(p)] == orders, (p, v, m)


def test_every_schedule_of_torch_is_known():
    """What torch exports as a schedule has a preview, under the name that torch's own look-up takes."""
    exported = {name for name in torchs.__all__ if name.startswith("Schedule")}

    assert exported == {schedule.torch_name for schedule in SCHEDULES}
    for schedule in SCHEDULES:
        assert schedule.torch_name == torchs.get_schedule_class(schedule.name).__name__


def test_orders_agree_with_torch_s_own_table():
    """Where torch writes down the order of an interleaved schedule, it is the same with the gaps left out."""
    stages = [Recorder(0, 2, index, 4, []) for index in (0, 2)]
    written = torch_pipelining.ScheduleInterleaved1F1B(stages, 4).pipeline_order

    ours = find_schedule("interleaved").orders(2, 4, 4)
    assert [[str(action) for action in written[rank] if action] for rank in (0, 1)] == [
        [str(action) for action in order] for order in ours
    ]


def simulated(name, p, v, m, times=TIMES, transfer=0.0):
    orders = find_schedule(name).orders(p, p * v, m)
    return simulate(orders, p * v, lambda action: times[action.kind] / v, lambda *_: transfer)


def bubble(simulation):
    ranks = len(simulation.runs)
    return 1 - sum(map(simulation.busy, range(ranks))) / ranks / simulation.seconds


def in_flight(runs):
    """Most micro-batches of which the backward is still to come."""
    steps = [(action.kind is Kind.FORWARD) - action.kind.frees for action in (run.action for run in runs)]
    return max(itertools.accumulate(steps))


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 8), (3, 5), (4, 4), (4, 16), (8, 8)])
def test_gpipe_and_1f1b_wait_a_share_of_p_minus_1(p, m):
    """With equal stages both wait ``(p - 1) / (m + p - 1)`` of the time; 1F1B holds at most ``p - rank`` of them."""
    gpipe, alternating = (simulated(name, p, 1, m) for name in ("gpipe", "1f1b"))

    assert (p - 1) / (m + p - 1) == pytest.approx(bubble(gpipe))
    assert (p - 1) / (m + p - 1) == pytest.approx(bubble(alternating))
    assert [m] * p == [in_flight(runs) for runs in gpipe.runs]
    assert [p - rank for rank in range(p)] == [in_flight(runs) for runs in alternating.runs]


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 12), (3, 4, 9)])
def test_interleaving_divides_the_waiting_by_the_stages_a_rank(p, v, m):
    """Interleaved 1F1B waits ``(p - 1) / (v m)`` of the time that it works (Megatron-LM, section 2.2)."""
    share = bubble(simulated("interleaved", p, v, m))

    assert (p - 1) / (v * m) == pytest.approx(share / (1 - share))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 16)])
def test_zero_bubble_waits_a_third_of_1f1b(p, m):
    """With equal thirds ZB-H1 waits ``(p - 1) (F + I - W)``, 1F1B ``(p - 1) (F + I + W)`` (Qi et al., table 2)."""
    zero_bubble = simulated("zero-bubble", p, 1, m)

    assert 3 * m + (p - 1) == pytest.approx(zero_bubble.seconds)
    assert 3 * m + 3 * (p - 1) == pytest.approx(simulated("1f1b", p, 1, m).seconds)
    assert all(in_flight(runs) <= p for runs in zero_bubble.runs)


def test_zb_v_and_dual_pipe_v_wait_only_until_the_first_micro_batch_arrives():
    """With equal thirds and enough micro-batches, a V leaves each rank waiting only at its beginning or end."""
    for name in ("zbv", "dualpipev"):
        found = simulated(name, 4, 2, 16)
        assert 3 * 16 + 3 * 0.5 == pytest.approx(found.seconds), name


def test_transfers_take_turns_on_a_direction_of_a_link():
    """Two things from one rank to the same other one never travel at once, and each waits for its turn."""
    found = simulated("gpipe", 2, 1, 3, times=dict.fromkeys(TIMES, 1), transfer=5.0)

    there = [(move.start, move.end) for move in found.moves if move.source == 0]
    assert [(1.0, 6.0), (6.0, 11.0), (11.0, 16.0)] == there
    assert [6.0, 11.0, 16.0, 17.0, 18.0, 19.0] == [run.start for run in found.runs[1]]


@st.composite
def timed_cases(draw):
    schedule, p, v, m = draw(st.sampled_from(LEGAL))
    seconds = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0]), min_size=8, max_size=8))
    return schedule, p, v, m, seconds, draw(st.sampled_from([0.0, 0.1, 4.0]))


@given(timed_cases())
@settings(max_examples=examples(60), deadline=None)
def test_any_costs_give_a_legal_simulation(case):
    """Each action once, after all it needs, none beside another on its rank, as early as it can."""
    schedule, p, v, m, seconds, transfer = case
    orders = schedule.orders(p, p * v, m)
    check_orders(orders, p * v, m)
    found = simulate(orders, p * v, lambda a: seconds[(a.stage * 3 + len(a.kind.name)) % 8], lambda *_: transfer)

    ended = {run.action: (run.rank, run.end) for runs in found.runs for run in runs}
    arrived = {(move.action, move.target): move.end for move in found.moves}
    assert orders == [[run.action for run in runs] for runs in found.runs]
    for runs in found.runs:
        for before, run in itertools.pairwise([None, *runs]):
            ready = [0.0 if before is None else before.end]
            for group in needs_of(run.action, p * v):
                needed = next(action for action in group if action in ended)
                rank, end = ended[needed]
                ready.append(end if rank == run.rank else arrived[needed, run.rank])
            assert max(ready) == run.start
    for link in {(move.source, move.target) for move in found.moves}:
        ways = [move for move in found.moves if (move.source, move.target) == link]
        assert all(first.end <= second.start for first, second in itertools.pairwise(ways))


def test_orders_that_cannot_work_are_refused():
    """Missing, doubled, too early, or on two ranks; and ranks that wait for each other for ever."""
    f, b = (lambda stage, at, kind=kind: Action(stage, kind, at) for kind in (Kind.FORWARD, Kind.BACKWARD))
    for orders, text in (
        (
            [[f(0, 0)]],
            "stage 0 has to run micro-batch 0 once forward and once backward, whole or as inputs and weights",
        ),
        ([[f(0, 0), f(0, 0), b(0, 0)]], "rank 0 runs 0F0 twice"),
        ([[b(0, 0), f(0, 0)]], "rank 0 runs 0B0 before 0F0"),
        ([[f(0, 0)], [b(0, 0)]], "stage 0 runs on rank 0 and on rank 1"),
        ([[f(0, 0), b(0, 0), f(0, 1), b(0, 1)]], "the orders go beyond 1 stages or 1 micro-batches"),
    ):
        with pytest.raises(StageError) as error:
            check_orders(orders, 1, 1)
        assert text in str(error.value)

    crossed = [[f(0, 0), f(0, 1), b(0, 1), b(0, 0)], [f(1, 0), b(1, 0), f(1, 1), b(1, 1)]]
    stuck = [[f(0, 0), b(0, 0), f(0, 1), b(0, 1)], [f(1, 1), b(1, 1), f(1, 0), b(1, 0)]]
    check_orders(stuck, 2, 2)
    assert simulate(crossed, 2, lambda _: 1, lambda *_: 0).seconds == 7
    with pytest.raises(StageError) as error:
        simulate(stuck, 2, lambda _: 1, lambda *_: 0)
    assert str(error.value) == (
        "the ranks wait for each other for ever: rank 0 with 0B0 for 1B0; rank 1 with 1F1 for 0F1"
    )


def test_names_and_numbers_that_make_no_sense():
    """An unknown name comes with the nearest ones; numbers that torch would refuse come with the reason."""
    with pytest.raises(StageError) as error:
        find_schedule("1f2b")
    assert str(error.value) == (
        "there is no schedule '1f2b'; the nearest are 1f1b; there are gpipe, 1f1b, interleaved1f1b, loopedbfs, "
        "interleavedzerobubble, zbvzerobubble, dualpipev"
    )
    for name, numbers, reason in (
        ("gpipe", (4, 2, 4), "2 stages leave 2 of 4 ranks without one"),
        ("interleaved", (2, 3, 4), "3 stages are no multiple of 2 ranks"),
        ("1f1b", (2, 4, 4), "it runs 1 a rank, and 4 stages on 2 ranks are 2 a rank"),
        ("1f1b", (4, 4, 3), "it needs at least 4 micro-batches, as many as stages, not 3"),
        ("interleaved", (4, 8, 9), "9 micro-batches are no multiple of the 2 rounds that 4 ranks make"),
    ):
        schedule = find_schedule(name)
        with pytest.raises(StageError) as error:
            schedule.orders(*numbers)
        assert str(error.value) == f"{schedule.torch_name} cannot run this: {reason}"
    for numbers, what in (((0, 1, 1), "ranks"), ((1, 1, True), "micro-batches"), ((1, 2.0, 1), "stages")):
        with pytest.raises(StageError, match=f"the number of {what} is a whole number from 1 on"):
            find_schedule("gpipe").orders(*numbers)


def test_what_is_refused_here_is_refused_by_torch():
    """The numbers that have a reason against them are those that torch's own constructor or runtime does not take."""
    for schedule in SCHEDULES:
        for p, v, m in NUMBERS:
            refused = schedule.refusal(p, p * v, m) is not None
            if v > 1 and issubclass(getattr(torchs, schedule.torch_name), torchs.PipelineScheduleSingle):
                assert refused  # torch takes one stage, so that there is nothing to ask
                continue
            try:
                run_by_torch(schedule, p, v, m, 0)
            except (ValueError, AssertionError):
                assert refused, (schedule.name, p, v, m)
            else:
                assert not refused, (schedule.name, p, v, m)


def test_a_rank_without_a_stage_is_told_what_to_do():
    """Three processes for two stages: the third hears why it has nothing to do."""
    with pytest.raises(StageError) as error:
        find_schedule("1f1b").stages_of(2, 3, 2)
    assert str(error.value) == (
        "rank 2 has no stage: there are 2 stages for 3 ranks; start 2 processes, or cut the model into 3 stages"
    )
    with pytest.raises(StageError, match="there is no rank 3; the ranks are 0 to 2"):
        find_schedule("1f1b").stages_of(3, 3, 3)
    assert [0, 5] == find_schedule("zbv").stages_of(0, 3, 6)
    assert [0, 3] == find_schedule("interleaved").stages_of(0, 3, 6)
