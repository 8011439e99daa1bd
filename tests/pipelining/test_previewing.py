"""Previews of schedules: seconds, waiting and memory of each rank, and which schedule to take."""

import copy
import json

import attrs
import pytest
import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_models import skips
from torch import nn

from fxpasses.devices import Device, Link
from fxpasses.errors import InputError, StageError
from fxpasses.pipelining import (
    SplitPoint,
    StageCost,
    measure_stage_costs,
    parameters_on_meta,
    pipeline,
    preview,
    recommend_schedule,
)
from fxpasses.pipelining.contents import stage_contents
from fxpasses.pipelining.previewing import COLUMNS
from fxpasses.pipelining.stage_costs import stage_figures
from fxpasses.units import MiB

EVEN = StageCost(1.0, 1.0, 1.0, parameters=100, gradients=80, kept=10, working=3, received=2, sent=2)


def even(count):
    """Equal stages, of which the first receives and the last sends nothing."""
    first = StageCost(1.0, 1.0, 1.0, parameters=100, gradients=80, kept=10, working=3, sent=2)
    last = StageCost(1.0, 1.0, 1.0, parameters=100, gradients=80, kept=10, working=3, received=2, output=4)
    return [first, *[EVEN] * (count - 2), last]


def test_seconds_and_waiting_are_those_of_the_papers():
    """GPipe waits (p - 1) / (m + p - 1) of the time; interleaving (p - 1) / (v m) of the work."""
    gpipe = preview(even(4), "gpipe", num_microbatches=8, links=())
    looped = preview([StageCost(0.5, 0.5, 0.5)] * 8, "interleaved", num_microbatches=8, ranks=4)

    assert 3 / 11 == pytest.approx(gpipe.bubble, rel=1e-3)  # links cost microseconds
    assert 3 / (2 * 8) == pytest.approx(looped.overhead, rel=1e-3)
    assert gpipe.imbalance == 1
    assert str(gpipe) == "ScheduleGPipe, 8 micro-batches: 33.0 s a step, 27% waiting, at most 455 B on a rank"


def test_a_rank_holds_its_parameters_and_what_is_under_way():
    """GPipe holds all micro-batches, 1F1B as many as stages follow; torch's buffers and outputs are counted."""
    gpipe, alternating = (preview(even(3), name, num_microbatches=5) for name in ("gpipe", "1f1b"))

    assert [5, 5, 5] == [rank.in_flight for rank in gpipe.ranks]
    assert [3, 2, 1] == [rank.in_flight for rank in alternating.ranks]
    static = 100 + 80 + 2 * 80
    exchanged = [5 * 2, 5 * 4, 5 * 2]
    assert [static + size + 5 * 10 + 3 for size in exchanged] == [rank.peak for rank in gpipe.ranks]
    first, second, last = alternating.ranks
    assert static + exchanged[0] + 3 * 10 + 3 == first.peak
    assert static + exchanged[1] + 2 * 10 + 3 == second.peak
    assert (
        static + exchanged[2] + 4 * 4 + 10 + 3 == last.peak
    )  # four outputs are collected, the fifth is in what is kept
    lean = preview(even(3), "1f1b", num_microbatches=5, optimizer="sgd", return_outputs=False)
    assert 100 + 80 + exchanged[2] + 10 + 3 == lean.ranks[2].peak


def test_a_backward_in_halves_holds_until_its_second_half():
    """What the forward kept is freed after the half for the weights; stage 0 does all its backward there."""
    found = preview(even(2), "zero-bubble", num_microbatches=4)
    seconds = {str(run.action): run.end - run.start for runs in found.simulation.runs for run in runs}

    assert (0.0, 2.0) == (seconds["0I1"], seconds["0W1"])
    assert (1.0, 1.0) == (seconds["1I1"], seconds["1W1"])
    assert all(rank.in_flight == 2 for rank in found.ranks)


def test_a_backward_in_halves_keeps_gradients_between_them():
    """Of what weights made, as many as wait for their second half; stage 0 has none, nor has a whole backward."""
    plain, waiting = even(2), [attrs.evolve(cost, between=1000) for cost in even(2)]
    before, after = (preview(costs, "zero-bubble", num_microbatches=4).ranks for costs in (plain, waiting))

    assert before[0].peak == after[0].peak
    assert 2 * 1000 == after[1].peak - before[1].peak
    assert preview(plain, num_microbatches=4).ranks[1].peak == preview(waiting, num_microbatches=4).ranks[1].peak


def test_the_gradients_between_two_halves_are_of_what_weights_make():
    """Two linear layers and a norm; a ReLU has no weights, and a weight that is used twice no halves."""
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    (figures,) = stage_figures(pipeline(model, (torch.randn(3, 4),)))
    twice = nn.Linear(4, 4)
    (whole,) = stage_figures(pipeline(nn.Sequential(twice, twice), (torch.randn(3, 4),)))

    assert (3 * 8 + 3 * 8 + 3 * 2) * 4 == figures.bytes_only.between
    assert 0 == whole.bytes_only.between


@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved", "loopedbfs", "zero-bubble"]),
    st.lists(st.tuples(*[st.floats(0.0, 2.0)] * 3, *[st.integers(0, 50)] * 6), min_size=2, max_size=4),
    st.integers(4, 6),
)
@settings(max_examples=examples(40), deadline=None)
def test_any_stages_add_up(name, rows, count):
    """Busy seconds are the stages' own; the peak lies between the least and the most that can be under way."""
    stages = [StageCost(*row) for row in rows]
    if name in ("interleaved", "zero-bubble") and count % max(1, count // len(stages)):
        count = 2 * len(stages)
    found = preview(stages, name, num_microbatches=count)

    for rank, cost in zip(found.ranks, stages, strict=True):
        assert count * cost.seconds == pytest.approx(rank.busy)
        always = cost.parameters + 3 * cost.gradients + count * (cost.received + cost.sent)
        assert always + cost.kept + cost.working <= rank.peak
        assert rank.peak <= always + count * max(cost.kept, cost.output) + cost.working
        curve = found.timeline().memory[rank.track]
        assert rank.peak == max(size for _, size in curve)
    assert found.seconds >= max(rank.busy for rank in found.ranks)
    assert -1e-9 <= found.bubble <= 1


def test_a_pipe_is_previewed_on_devices_and_links():
    """The quicker device waits longer, a slow link delays all, and a budget says what is missing."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    pipe = pipeline(model, (torch.randn(8, 64),), split_spec={"2": SplitPoint.BEGINNING})
    slow = Device("slow", 64 * 1024, flops=1e9)
    fast = Device("fast", flops=1e11)
    near, far = (
        preview(pipe, "gpipe", num_microbatches=4, devices=(slow, fast), links=[Link("slow", "fast", rate)])
        for rate in (1e9, 1e6)
    )

    assert near.ranks[0].idle < near.ranks[1].idle
    assert far.seconds - near.seconds > 2 * 8 * 64 * 4 / 1e6  # there and back of one micro-batch at least
    parameters = 2 * (64 * 64 + 64) * 4
    assert [parameters, parameters] == [rank.parameters for rank in near.ranks]
    held = parameters * 4 + 4 * 8 * 64 * 4 + near.ranks[0].activations - near.ranks[0].exchanged
    assert held == near.ranks[0].peak
    assert near.missing == held - 64 * 1024 == near.ranks[0].missing
    assert near.ranks[1].missing == 0


def test_what_the_backward_keeps_is_what_autograd_saves():
    """Of two linear layers with a ReLU between: the ReLU's result, and the stage's own."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    pipe = pipeline(model, (torch.randn(3, 4),))
    (figures,) = stage_figures(pipe)

    assert 3 * 8 * 4 + 3 * 2 * 4 == figures.bytes_only.kept
    assert 3 * 2 * 4 == figures.bytes_only.output
    assert (4 * 8 + 8 + 8 * 2 + 2) * 4 == figures.bytes_only.parameters == figures.bytes_only.gradients


def test_measured_stages_have_the_clock_s_seconds():
    """Forward and backward are timed apart; parameters and their gradients stay as they are."""
    model, args, kwargs = skips()
    pipe = pipeline(model, args, kwargs, {"third": SplitPoint.BEGINNING})
    ticks = iter(range(10_000))
    costs = measure_stage_costs(pipe, args, kwargs, rounds=1, clock=lambda: float(next(ticks)))

    assert [(1.0, 0.5, 0.5)] * 2 == [(cost.forward, cost.backward_inputs, cost.backward_weights) for cost in costs]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert costs[0].sent == costs[1].received > 0


def test_measuring_leaves_everything_as_it_was():
    """Batch statistics, an input that the model writes to, random numbers."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

        def forward(self, x, seen):
            seen.add_(1)
            return self.last(nn.functional.dropout(self.norm(self.first(x)))) + seen

    model, x, seen = Counting().train(), torch.randn(5, 4), torch.zeros(4)
    pipe = pipeline(model, (x, seen), None, {"last": SplitPoint.BEGINNING})
    state, drawn = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    measure_stage_costs(pipe, (x, seen))

    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    assert torch.equal(torch.zeros(4), seen)
    assert torch.equal(drawn, torch.get_rng_state())


def test_what_cannot_be_measured_is_refused():
    """Parameters without values, and no round at all."""
    cut = {"1": SplitPoint.BEGINNING}
    pipe = pipeline(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), (torch.ones(1, 4),), None, cut)
    with pytest.raises(InputError, match=r"^`rounds` is how often each stage is timed, a whole number from 1 on, n"):
        measure_stage_costs(pipe, (torch.ones(1, 4),), rounds=0)
    with parameters_on_meta():
        empty = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    pipe = pipeline(empty, (torch.ones(1, 4),), None, cut)
    with pytest.raises(StageError, match=r"^stage 0 has no values for '0\.weight', '0\.bias', which are on meta; call"):
        measure_stage_costs(pipe, (torch.ones(1, 4),))


def test_table_trace_picture_and_json_tell_the_same(tmp_path):
    """A row a rank, a span an action, and transfers on tracks of their own."""
    found = preview(even(2), "1f1b", num_microbatches=2, memory="1KiB")
    found.save(tmp_path / "a.svg")
    found.save(tmp_path / "a.json")

    assert len(COLUMNS) == len(found.table()[0])
    assert ("0", "0", "6.00 s", "33%", "2", "100 B", "80 B", "160 B", "27 B", "367 B of 1.00 KiB") == found.table()[0]
    spans = [event["name"] for event in found.chrome_trace()["traceEvents"] if event["ph"] == "X"]
    assert ["0F0", "0F1", "0B0", "0B1", "1F0", "1B0", "1F1", "1B1", "0F0", "0F1", "1B0", "1B1"] == spans
    assert json.loads((tmp_path / "a.json").read_text()) == found.chrome_trace()
    assert (tmp_path / "a.svg").read_text() == found.svg()
    assert "Schedule1F1B, 2 micro-batches" in found.svg()
    assert "0F0 0F1 0B0 0B1" == found.to_json()["ranks"][0]["actions"]
    with pytest.raises(InputError, match="cannot be written"):
        found.save(tmp_path / "nowhere" / "a.svg")


def test_numbers_that_make_no_sense_are_refused():
    """Ranks beside devices, a number below 0, no stages; what torch would refuse comes with the reason."""
    for call, text in (
        (lambda: preview(even(2), num_microbatches=2, ranks=2, devices=[Device("a")]), "there are 2 ranks, but 1 devi"),
        (lambda: preview([], num_microbatches=2), "at least one stage"),
        (
            lambda: preview(even(4), num_microbatches=2),
            "Schedule1F1B cannot run this: it needs at least 4 micro-batches",
        ),
        (lambda: recommend_schedule([], num_microbatches=2), "it got none"),
    ):
        with pytest.raises(StageError) as error:
            call()
        assert text in str(error.value)
    for option, text in (
        ({"backward": -1}, "`backward` is how many forwards a backward takes, a number from 0 on, not -1."),
        ({"backward": "2"}, "`backward` is how many forwards a backward takes, a number from 0 on, not '2'."),
        ({"optimizer": "adagrad"}, "There is no optimizer 'adagrad'; there are adam, momentum, sgd, or give the bytes"),
        ({"optimizer": -1.0}, "`optimizer` is the bytes of state for each byte of gradients, a number from 0 on, not "),
        ({"memory": 1.5}, "A device's memory is a number of bytes, not 1.5"),
    ):
        with pytest.raises(InputError) as refused:
            preview(even(2), num_microbatches=2, **option)
        assert str(refused.value).startswith(text)
    with pytest.raises(InputError, match="A stage's kept is a number from 0 on, not -1"):
        StageCost(1.0, 1.0, 1.0, kept=-1)


def test_the_quickest_that_fits_is_recommended():
    """Without limits a zero-bubble schedule; with less memory than it needs 1F1B, and the bytes that others lack."""
    free = recommend_schedule(even(4), num_microbatches=8)
    tight = recommend_schedule(even(4), num_microbatches=8, memory=free.best.preview.peak - 1)

    assert free.best.schedule.name == "interleavedzerobubble"
    assert free.best.reason == "the quickest that fits: 27.0 s a step, 11% waiting, 415 B at most"
    assert tight.best.schedule.name == "1f1b"
    reasons = {candidate.schedule.name: candidate.reason for candidate in tight.candidates}
    assert reasons["gpipe"] == "does not fit: rank 1 needs 455 B, 41 B more than it has"
    assert reasons["zbvzerobubble"] == (
        "torch's runtime refuses it: it runs 2 a rank, and 4 stages on 4 ranks are 1 a rank"
    )
    legal = [candidate.is_legal for candidate in tight.candidates]
    assert sorted(legal, reverse=True) == legal
    for found in (free, tight):
        times = [round(candidate.preview.seconds, 2) for candidate in found.candidates if candidate.fits]
        assert times == sorted(times)
        assert len(found.table()) == len(found.to_json()) == len(str(found).splitlines()) == 7


def test_several_cuts_are_compared():
    """A schedule that takes two stages a rank is tried on the cut with twice the stages."""
    halves = [StageCost(0.5, 0.5, 0.5) for _ in range(8)]
    found = recommend_schedule([even(4), halves], num_microbatches=8)

    assert all(candidate.is_legal for candidate in found.candidates)
    stages = {candidate.schedule.name: candidate.num_stages for candidate in found.candidates}
    assert stages["zbvzerobubble"] == stages["interleaved1f1b"] == 8
    assert stages["gpipe"] == 4


def test_nothing_fits():
    """The one that lacks least stands first, and there is no best."""
    found = recommend_schedule(even(2), num_microbatches=4, memory=1)

    assert found.best is None
    missing = [candidate.preview.missing for candidate in found.candidates if candidate.is_legal]
    assert missing == sorted(missing)
    assert missing[0] > 0


def test_contents_of_stages_are_few_names():
    """Modules that lie in one stage, parts of those that a cut goes through, and how many operators are besides."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.start = nn.Linear(4, 4)
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4))

        def forward(self, x):
            x = self.start(x) + 1
            for layer in self.layers:
                x = layer(x)
            return x

    spec = {"layers.2.1": SplitPoint.BEGINNING}
    first, second = stage_contents(pipeline(Net(), (torch.randn(2, 4),), split_spec=spec))

    assert str(first) == "start, layers.0 to 1, part of layers.2, 1 operator besides"
    assert str(second) == "part of layers.2, layers.3"
    assert (7, 3) == (first.operators, second.operators)


def test_memory_takes_units():
    """``memory="1MiB"`` is the budget of every rank without one of its own."""
    found = preview(even(2), num_microbatches=2, memory="1MiB")

    assert [MiB, MiB] == [rank.device.available_mem_bytes for rank in found.ranks]


def test_a_model_without_memory_and_one_of_any_batch_are_previewed():
    """On ``meta``, or captured with a dynamic batch, the bytes are those of the model itself at the example's sizes."""

    def make():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    with parameters_on_meta():
        empty = make()
    x, cut = torch.randn(3, 4), {"2": SplitPoint.BEGINNING}
    plain, on_meta, dynamic = (
        preview(pipeline(model, (x,), split_spec=cut, **options), num_microbatches=2)
        for model, options in ((make(), {}), (empty, {}), (make(), {"dynamic_shapes": "batch"}))
    )

    assert plain.costs == on_meta.costs == dynamic.costs
    assert [0, 3 * 8 * 4] == [cost.received for cost in plain.costs]
