"""How the text of an option becomes its value; an error says in plain words what was expected.

The rules of tyro would answer with Python: ``invalid literal for int()``, ``('full', 'paper')``.
"""

from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

VALUES = ConstructorRegistry()
"""A context for ``tyro.cli``."""

_KINDS = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}


@VALUES.primitive_rule
def plain_values(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """The rule for a value of a kind in ``_KINDS``, one of several texts, or any number of these.

    An option that may be None is None where it is left out; there is no text for it.
    """
    kind: Any = info.type
    if get_origin(kind) in (Union, UnionType):
        kinds = [each for each in get_args(kind) if each is not NoneType]
        kind = kinds[0] if len(kinds) == 1 else None
    several = get_origin(kind) is tuple and get_args(kind)[1:] == (...,)
    kind = get_args(kind)[0] if several else kind
    if get_origin(kind) is Literal:
        metavar = f"{{{','.join(get_args(kind))}}}"
    elif kind in _KINDS:
        metavar = kind.__name__.upper()
    else:
        return None
    return PrimitiveConstructorSpec(
        nargs="*" if several else 1,
        metavar=metavar,
        instance_from_str=lambda texts: (
            tuple(_read(kind, text) for text in texts) if several else _read(kind, texts[0])
        ),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [*map(str, value)] if several else [str(value)],
    )


def _read(kind: Any, text: str) -> Any:
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if choices:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}, got {text!r}.")
        return text
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"expected {_KINDS[kind]}, got {text!r}.") from error
