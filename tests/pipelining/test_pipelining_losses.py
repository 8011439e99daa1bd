"""A model and its loss in one module; which output is the loss; forward and backward stage by stage."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn import functional

from fxpasses import StageError
from fxpasses.pipelining import LossWrapper, Pipe, SplitPoint, TrivialLossWrapper, pipe_split, pipeline

BEGINNING = SplitPoint.BEGINNING
X, WANTED = torch.arange(8.0).reshape(2, 4), torch.ones(2, 4)


def chain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


class Weighted(LossWrapper):
    """The loss is one of several outputs."""

    def forward(self, x, wanted):
        output = self.module(x)
        return {"loss": self.loss_fn(output, wanted), "output": output, "parts": (output.sum(), output.mean())}


def test_a_trivial_wrapper_says_that_its_output_is_the_loss():
    """``loss_spec`` is True, and the pipe's output is the model's loss."""
    model = TrivialLossWrapper(chain(), nn.MSELoss())
    pipe = pipeline(model, (X, WANTED), None, {"module.2": BEGINNING})

    assert pipe.has_loss_and_backward
    assert pipe.info().has_loss_and_backward
    assert pipe.loss_spec is True
    assert torch.equal(functional.mse_loss(model.module(X), WANTED), pipe(X, WANTED))
    assert torch.equal(model(X, WANTED), pipe.loss_fn(pipe(X, WANTED)))


def test_forward_and_backward_give_the_model_s_gradients():
    """Each stage has its own backward, which gets the gradients that the next one gave."""
    model = Weighted(chain(), nn.MSELoss())
    twin = copy.deepcopy(model)
    twin(X, WANTED)["loss"].backward()
    pipe = pipeline(model, (X, WANTED), None, {"module.1": BEGINNING, "module.2": BEGINNING})
    output = pipe.forward_and_backward(X, WANTED)

    assert {"loss": True, "output": False, "parts": False} == pipe.loss_spec
    assert torch.equal(twin(X, WANTED)["output"], output["output"])
    for want, have in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(want.grad, have.grad)


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        return y, [y.square().mean(), y.sum()]


@pytest.mark.parametrize(
    ("spec", "leaf"), [((False, (True, False)), 1), ([False, [False, True]], 2), ((None, (None, True)), 2)]
)
def test_a_spec_names_the_loss_among_several_outputs(spec, leaf):
    """Tuples and lists, in the structure of the output."""
    model = Several()
    pipe = pipeline(model, (X,), output_loss_value_spec=spec)
    output = model(X)

    assert spec == pipe.loss_spec
    assert torch.equal([output[0], *output[1]][leaf], pipe.loss_fn(pipe(X), target=None))


def test_an_output_called_loss_is_the_loss():
    """As models of transformers give one when they get labels."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=16, use_cache=False
    )
    model = transformers.LlamaForCausalLM(config).train()
    ids = torch.arange(8).reshape(2, 4)
    pipe = pipeline(model, (), {"input_ids": ids, "labels": ids}, {"model.layers.1": BEGINNING})
    twin = copy.deepcopy(model)
    twin(input_ids=ids, labels=ids).loss.backward()
    output = pipe.forward_and_backward(input_ids=ids, labels=ids)

    assert {"loss": True, "logits": False} == {name: pipe.loss_spec[name] for name in ("loss", "logits")}
    assert torch.equal(twin(input_ids=ids, labels=ids).loss, output.loss)
    for want, have in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(want.grad, have.grad)


def test_a_wrapper_needs_a_forward():
    """The abstract one says what to write."""
    with pytest.raises(NotImplementedError, match=r"^LossWrapper has no forward of its own; write one that calls self"):
        LossWrapper(chain(), nn.MSELoss())(X)


def test_from_tracing_takes_what_torch_s_does():
    """Positional: model, example inputs, example keywords, policy; and our keywords."""

    class Marked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, scale=1.0):
            y = self.first(x)
            pipe_split()
            return self.second(y) * scale

    model = Marked()
    pipe = Pipe.from_tracing(model, (X,), {"scale": torch.tensor(2.0)}, output_loss_value_spec=True)
    marked = Pipe.from_tracing(model, (X,), None, lambda graph_module: graph_module)

    assert (2, 2) == (pipe.num_stages, marked.num_stages)
    assert pipe.loss_spec is True
    assert torch.equal(model(X, torch.tensor(2.0)), pipe(X, scale=torch.tensor(2.0)))


BAD = {
    "none": (
        lambda: pipeline(chain(), (X,)).loss_fn(X),
        "no output of the model is its loss; wrap the model in a LossWrapper, or name the output with "
        "output_loss_value_spec",
    ),
    "two": (
        lambda: pipeline(Several(), (X,), output_loss_value_spec=(False, (True, True))),
        "output_loss_value_spec must say True once, but says so 2 times: (False, (True, True))",
    ),
    "never": (
        lambda: pipeline(Several(), (X,), output_loss_value_spec=(False, False)),
        "output_loss_value_spec must say True once, but says so 0 times: (False, False)",
    ),
    "length": (
        lambda: pipeline(Several(), (X,), output_loss_value_spec=(False, (True,))),
        "output_loss_value_spec has 1 entries for the output[1], which has 2",
    ),
    "a list of losses": (
        lambda: pipeline(Several(), (X,), output_loss_value_spec=(False, True)),
        "output_loss_value_spec says True for the output[1], which is no single value",
    ),
    "key": (
        lambda: pipeline(chain(), (X,), output_loss_value_spec={"lost": True}),
        "output_loss_value_spec names 'lost', which the output does not have",
    ),
    "word": (
        lambda: pipeline(chain(), (X,), output_loss_value_spec="loss"),
        "output_loss_value_spec holds 'loss'; write True, False, tuples, lists and dicts",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_spec_that_does_not_fit_gets_one_sentence(name):
    """What is wrong, and where in the output."""
    call, message = BAD[name]
    with pytest.raises(StageError, match=f"^{re.escape(message)}$"):
        call()
