"""fxpasses: graph-transformation passes over ``torch.fx``, from a model to GraphModules that run on their devices."""
