"""Whether a model is in a state in which it can be decoded, whatever kind of model it is."""

from __future__ import annotations

from torch import nn

from draftproof.errors import InputError, UnsupportedModelError
from draftproof.numerics.linear import CalibratedLinear


def zero_weights(model: nn.Module) -> set[str]:
    """Names of weights that are all zero: they say nothing until they are trained."""
    return {
        name
        for name, weight in model.named_parameters()
        if not weight.is_meta
        and weight.numel()
        and not bool(weight.flatten()[:64].any())
        and not bool(weight.any())
    }


def refuse_unready(model: nn.Module) -> None:
    """Raise by its real name what has nothing to do with the kind of model."""
    name = type(model).__name__
    if hasattr(model, "_orig_mod"):
        raise UnsupportedModelError(
            f"{name}: torch.compile wrapped the model; give the model itself (`_orig_mod`)"
        )
    for path, module in model.named_modules():
        if path and getattr(module, "_compiled_call_impl", None) is not None:
            raise UnsupportedModelError(f"{name}: {path} is compiled; compile nothing of the model")
        if module.training and isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise InputError(
                f"{name}: {path} drops out {module.p:.0%} in training mode; call model.eval()"
            )
        rate = getattr(module, "attention_dropout", 0.0)
        if module.training and isinstance(rate, float) and rate > 0:
            raise InputError(
                f"{name}: {path} drops out {rate:.0%} in training mode; call model.eval()"
            )
    absent = [n for n, p in model.named_parameters() if p.is_meta and not _is_dropped(model, n)]
    if absent:
        raise InputError(f"{name}: {absent[0]} has no values (device meta); load the weights first")


def _is_dropped(model: nn.Module, name: str) -> bool:
    """Whether a weight on the meta device is kept packed."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return isinstance(owner, CalibratedLinear) and owner.product.packed is not None
