"""Stages of a model without memory: captured on meta, each filled on its own rank."""

import gc
import re

import pytest
import torch
from pipeline_models import IDS, SIZES
from torch import nn

from fxpasses import StageError
from fxpasses.pipelining import SplitPoint, parameters_on_meta, pipeline

BEGINNING = SplitPoint.BEGINNING


def llama(**options):
    import transformers

    config = transformers.LlamaConfig(**{**SIZES, "num_hidden_layers": 2, **options})
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def real():
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    return llama(tie_word_embeddings=True)


def empty_llama():
    with parameters_on_meta():
        return llama(tie_word_embeddings=True)


def resident(modules):
    """Bytes of the tensors that are not on meta, each storage once."""
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    real = [tensor.untyped_storage() for tensor in tensors if tensor.device.type != "meta"]
    return sum({storage._cdata: storage.nbytes() for storage in real}.values())


def test_a_rank_holds_no_more_than_its_stage(real):
    """Bytes of parameters on a rank that fills one stage: that stage's, and the small tables of the model."""
    model = empty_llama()
    tables = resident([model])
    pipe = pipeline(model, (IDS,), None, {"model.layers.1": BEGINNING})

    assert tables == resident([model, pipe])
    assert tables < 100
    for index in range(2):
        empty = empty_llama()
        pipe = pipeline(empty, (IDS,), None, {"model.layers.1": BEGINNING})
        stage = pipe.materialize(index, "cpu", real.state_dict())
        own = sum(value.numel() * 4 for value in stage.parameters())
        gc.collect()

        assert own + tables == resident([pipe, empty])
        assert not any(value.device.type == "meta" for value in stage.parameters())


def test_filled_stages_compute_what_the_model_computes(real):
    """From a full checkpoint; tied weights stay one tensor in one process; the empty model stays empty."""
    model = empty_llama()
    before = {name: id(value) for name, value in model.named_parameters()}
    pipe = pipeline(model, (IDS,), None, {"model.layers.1": BEGINNING})
    stages = [pipe.materialize(index, "cpu", real.state_dict()) for index in range(2)]

    assert torch.equal(real(IDS).logits, pipe(IDS).logits)
    assert stages[0].get_parameter("lm_head.weight") is stages[1].get_parameter("lm_head.weight")
    assert before == {name: id(value) for name, value in model.named_parameters()}
    assert all(value.device.type == "meta" for value in model.parameters())


def test_ties_are_known_when_one_stage_has_values(real):
    """Complaint 25: a rank fills its own stage, and still knows which parameters others hold, too."""
    pipe = pipeline(empty_llama(), (IDS,), None, {"model.layers.1": BEGINNING})
    before = pipe.replicated_params
    pipe.materialize(0, "cpu", real.state_dict())

    assert [{"submod_pp_0": "lm_head.weight", "submod_pp_1": "lm_head.weight"}] == before == pipe.replicated_params


def test_a_function_may_fill_or_give_values(real):
    """For random initialisation, or a checkpoint that is read piece by piece; each tensor is asked for once."""
    asked = []
    state = real.state_dict()

    def load(name, empty):
        asked.append(name)
        if name.endswith("norm.weight"):
            return state[name]
        empty.copy_(state[name])
        return None

    pipe = pipeline(empty_llama(), (IDS,), None, {"model.layers.1": BEGINNING})
    for index in range(2):
        pipe.materialize(index, "cpu", load)

    assert torch.equal(real(IDS).logits, pipe(IDS).logits)
    assert len(asked) == len(set(asked)) == len(dict(real.named_parameters()))


def test_a_model_wholly_on_meta_needs_its_tables(real):
    """Rotary frequencies are in no checkpoint: an error says so, and a value may be given."""
    with torch.device("meta"):
        model = llama(tie_word_embeddings=True)
    pipe = pipeline(model, (IDS,), None, {"model.layers.1": BEGINNING})
    message = (
        "stage 0 has no value for 'model.rotary_emb.inv_freq'; no checkpoint has 'model.rotary_emb.inv_freq' (not "
        "persistent): build the model under parameters_on_meta(), which computes buffers, or give the value in state"
    )
    with pytest.raises(StageError, match=f"^{re.escape(message)}$"):
        pipe.materialize(0, "cpu", real.state_dict())

    assert all(value.device.type == "meta" for value in pipe.parameters())
    state = {**real.state_dict(), "model.rotary_emb.inv_freq": real.model.rotary_emb.inv_freq}
    for index in range(2):
        pipe.materialize(index, "cpu", state)
    assert torch.equal(real(IDS).logits, pipe(IDS).logits)


def chain():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def empty_pipe():
    with parameters_on_meta():
        model = chain()
    return pipeline(model, (torch.ones(2, 4),), None, {"1": BEGINNING})


BAD = {
    "missing": (
        lambda: empty_pipe().materialize(1, "cpu", {"1.weight": torch.ones(4, 4)}),
        "stage 1 has no value for '1.bias'",
    ),
    "nothing": (lambda: empty_pipe().materialize(0), "stage 0 has no value for '0.weight', '0.bias'"),
    "shape": (
        lambda: empty_pipe().materialize(0, "cpu", {"0.weight": torch.ones(4), "0.bias": torch.ones(4)}),
        "the value for '0.weight' has the shape (4,), but the model has (4, 4); load a checkpoint of this model",
    ),
    "index": (lambda: empty_pipe().materialize(2), "there is no stage 2; the stages are 0 to 1"),
    "running": (
        lambda: empty_pipe().build_stage(1, "cpu"),
        "stage 1 has no values for '1.weight', '1.bias', which are on meta; call pipe.materialize(1, device, state) "
        "first",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_missing_is_named(name):
    """And nothing is replaced."""
    call, message = BAD[name]
    with pytest.raises(StageError, match=f"^{re.escape(message)}$"):
        call()


def test_a_value_keeps_the_type_of_the_model():
    """A checkpoint in another precision is converted; what is real already is moved."""
    pipe = empty_pipe()
    stage = pipe.materialize(0, "cpu", {key: value.double() for key, value in chain().state_dict().items()})
    again = pipe.materialize(0, "cpu", None)

    assert {torch.float32} == {value.dtype for value in stage.parameters()}
    assert again is stage


def test_parameters_on_meta_leaves_the_rest_as_it_is():
    """Buffers are computed, tied parameters stay tied, and outside of it nothing changes."""
    with parameters_on_meta():
        model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8))
        model[1].weight = model[0].weight

    assert {"meta"} == {value.device.type for value in model.parameters()}
    assert model[1].weight is model[0].weight
    assert torch.equal(torch.ones(8), model[2].running_var)
    assert "cpu" == nn.Linear(2, 2).weight.device.type
