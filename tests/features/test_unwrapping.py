from collections.abc import Callable

import pytest
import torch
from torch import nn

from goen.errors import UsageError
from goen.features.unwrapping import match_names, unwrap


def compiled(model: nn.Module) -> nn.Module:
    """What ``torch.compile`` gives; the backend needs no compiler on the machine."""
    wrapped: nn.Module = torch.compile(model, backend="eager")
    return wrapped


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "both": lambda model: compiled(nn.DataParallel(model)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_model_inside_is_found(wrapper: str) -> None:
    model = nn.Linear(2, 2)
    assert unwrap(WRAPPERS[wrapper](model)) is model


def test_a_model_with_a_part_called_module_is_not_wrapped() -> None:
    model = nn.ModuleDict({"module": nn.Linear(2, 2)})
    assert unwrap(model) is model


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_allows_no_hooks_is_refused() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    traced = torch.jit.trace(nn.Sequential(nn.Linear(2, 2)), torch.rand(1, 2))
    for model in (scripted, traced):
        with pytest.raises(UsageError, match=r"torch\.jit.* Give the model that was scripted"):
            unwrap(model)
    with pytest.raises(UsageError, match=r"is a torch nn\.Module; got builtin_function"):
        unwrap(torch.relu)


def test_names_are_matched_whichever_model_was_wrapped() -> None:
    plain = ["stem.0.weight", "head.bias"]
    wrapped = ["_orig_mod.module.stem._orig_mod.0.weight", "_orig_mod.module.head.bias"]
    assert match_names(wrapped, plain) == dict(zip(wrapped, plain, strict=True))
    assert match_names(plain, wrapped) == dict(zip(plain, wrapped, strict=True))
    assert match_names(["head.weight"], plain) == {"head.weight": "head.weight"}


def test_a_name_that_could_be_two_stays_as_it_is() -> None:
    # Both names exist: they are two weights. Of two that mean one, neither is chosen.
    assert match_names(["a", "module.a"], ["a", "module.a"]) == {"a": "a", "module.a": "module.a"}
    assert match_names(["a", "module.a"], ["a"]) == {"a": "a", "module.a": "module.a"}
    assert match_names(["module.a", "_orig_mod.a"], ["a"]) == {
        "module.a": "module.a",
        "_orig_mod.a": "_orig_mod.a",
    }
    # Only at the beginning does a wrapper put it.
    assert match_names(["body.module.a"], ["body.a"]) == {"body.module.a": "body.module.a"}
