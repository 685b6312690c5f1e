"""Damage to JSON: types, nesting, numbers, names, duplicates, and the text itself."""

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

# Written into the text as they stand, since json.dumps cannot write them.
_RAW = {
    "@huge@": "1" + "0" * 400,
    "@endless@": "9" * 5000,
    "@float@": "1e999",
    "@tiny@": "1e-999",
    "@half@": r'"\ud800"',
    "@other half@": r'"x\udfff"',
    "@nan@": "NaN",
    "@infinity@": "-Infinity",
    "@deep@": "[" * 40 + "]" * 40,
    "@deeper@": "[" * 900 + "]" * 900,
    "@deepest@": '{"a":' * 60_000 + "1" + "}" * 60_000,
    "@wide@": "[" + "0," * 20_000 + "0]",
}

HOSTILE: tuple[Any, ...] = (
    *_RAW,
    *(None, True, False, 0, 1, -1, 2, 3, 7, 0.0, -0.0, 0.5, 1e-300, 1e308, -1e308, 2**29, 2**31),
    *(2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 20_000, 65_536, 1_000_000),
    *("", "x", "0", "gate", "goen", "goen-m", "resnet18", "extractor", "float64", "entropy", "z"),
    *("../../etc/passwd", "/dev/zero", "__class__", "{0.__class__}", "%s%n", "os:system"),
    *("\x00", "\x1b[31m", "\u202egnp", "\u2028", "ﬁ", "=1+1", "a" * 10_000, "é" * 300),
    *([], {}, [[]], [[1, 2], [3]], {"": ""}, [None], [True, False], {"kind": "gate"}, ["a", "a"]),
    *([20_000, 20_000], [2048, 2048], [1, 1], [8], [8, 8, 8], [0, 0], [-8, 8], [8.0, 8.0]),
)

Path = tuple[str | int, ...]


def damaged_json(draw: random.Random, content: Any) -> tuple[bytes, str]:
    """The content with one to three changes, as a file; and what was changed."""
    content = copy.deepcopy(content)
    said = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if not any(True for _ in _places(content)):  # everything is deleted by now
            break
        said.append(draw.choice(_CHANGES)(draw, content))
    text = _written(content)
    if draw.random() < 0.15:
        data, how = draw.choice(_TEXT_CHANGES)(draw, text)
        return data, "; ".join([*said, how])
    return text.encode("utf-8", "surrogatepass"), "; ".join(said)


def _written(content: Any) -> str:
    text = json.dumps(content, indent=_indent(content), ensure_ascii=False)
    for mark, raw in _RAW.items():
        text = text.replace(json.dumps(mark), raw)
    return re.sub(r'"twice:\d+:', '"', text)


def _indent(content: Any) -> int | None:
    """As goen writes it, and without line ends where the content is long."""
    return 2 if len(str(content)) < 100_000 else None


def _places(content: Any, at: Path = ()) -> Iterator[Path]:
    """Where there is a value, in an order that does not depend on the run."""
    if at:
        yield at
    if isinstance(content, dict):
        for name in content:
            yield from _places(content[name], (*at, name))
    if isinstance(content, list):
        for number in range(min(len(content), 20)):
            yield from _places(content[number], (*at, number))


def _parent(content: Any, at: Path) -> Any:
    for step in at[:-1]:
        content = content[step]
    return content


def _replace(draw: random.Random, content: Any) -> str:
    at = draw.choice(list(_places(content)))
    value = draw.choice(HOSTILE)
    _parent(content, at)[at[-1]] = copy.deepcopy(value)
    return f"{at} becomes {str(value)[:60]!r}"


def _tweak(draw: random.Random, content: Any) -> str:
    """A number a little or a lot different, a text with other letters."""
    places = list(_places(content))
    at = draw.choice(places)
    old = _parent(content, at)[at[-1]]
    new: Any = old
    if isinstance(old, bool) or old is None:
        new = draw.choice((not old, 0, 1, "true", [old]))
    elif isinstance(old, int | float):
        ways: list[Callable[[float], Any]] = [
            lambda x: -x,
            lambda x: x + 1,
            lambda x: x - 1,
            lambda x: x * 10 ** draw.randint(-12, 12),
            lambda x: str(x),
            lambda x: float(x) if isinstance(x, int) else int(min(max(x, -1e18), 1e18)),
            lambda x: x / 2,
            lambda x: [x],
        ]
        new = draw.choice(ways)(old)
    elif isinstance(old, str):
        others = [_parent(content, p)[p[-1]] for p in places]
        words = [word for word in others if isinstance(word, str)]
        new = draw.choice((old + "x", old[:-1], old.upper(), old * 40, draw.choice(words), "\n"))
    elif isinstance(old, list):
        numbered = {str(number): part for number, part in enumerate(old)}
        new = draw.choice((old[1:], old + old, old[::-1], [old], [*old, None], numbered))
    elif isinstance(old, dict):
        pairs = [list(pair) for pair in old.items()]
        new = draw.choice(([old], list(old), pairs, {**old, "further": 1}))
    _parent(content, at)[at[-1]] = new
    return f"{at} from {str(old)[:40]!r} to {str(new)[:60]!r}"


def _delete(draw: random.Random, content: Any) -> str:
    at = draw.choice(list(_places(content)))
    del _parent(content, at)[at[-1]]
    return f"{at} deleted"


def _exchange(draw: random.Random, content: Any) -> str:
    places = list(_places(content))
    one, other = draw.choice(places), draw.choice(places)
    a, b = _parent(content, one), _parent(content, other)
    a_value, b_value = copy.deepcopy(a[one[-1]]), copy.deepcopy(b[other[-1]])
    a[one[-1]] = b_value
    try:
        b[other[-1]] = a_value
    except (LookupError, TypeError):
        return f"{one} becomes {other}"
    return f"{one} and {other} exchanged"


def _objects(content: Any) -> list[tuple[Path, dict[str, Any]]]:
    found: list[tuple[Path, dict[str, Any]]] = [((), content)]
    for at in _places(content):
        value = _parent(content, at)[at[-1]]
        if isinstance(value, dict):
            found.append((at, value))
    return found


def _twice(draw: random.Random, content: Any) -> str:
    """A field named twice, with the same value or another."""
    at, chosen = draw.choice([(at, o) for at, o in _objects(content) if o] or [((), content)])
    if not chosen:
        return "nothing"
    name = draw.choice(list(chosen))
    value = draw.choice((copy.deepcopy(chosen[name]), draw.choice(HOSTILE)))
    chosen[f"twice:{draw.randint(0, 999)}:{name}"] = value
    return f"{(*at, name)} twice"


def _rename(draw: random.Random, content: Any) -> str:
    at, chosen = draw.choice([(at, o) for at, o in _objects(content) if o] or [((), content)])
    if not chosen:
        return "nothing"
    name = draw.choice(list(chosen))
    new = draw.choice((name + "s", name.upper(), "", "__proto__", "\x1b[2J", "é", name[:-1]))
    chosen[new] = chosen.pop(name)
    return f"{(*at, name)} renamed {new!r}"


def _add(draw: random.Random, content: Any) -> str:
    at, chosen = draw.choice(_objects(content))
    names = (
        "further",
        "__class__",
        "head",
        "flip_averaged",
        "members",
        "density",
        "function",
        "size",
    )
    name = draw.choice(names)
    chosen[name] = copy.deepcopy(draw.choice(HOSTILE))
    return f"{(*at, name)} added, {str(chosen[name])[:60]!r}"


_CHANGES = (_replace, _replace, _replace, _tweak, _tweak, _delete, _exchange, _twice, _rename, _add)


def _cut(draw: random.Random, text: str) -> tuple[bytes, str]:
    data = text.encode("utf-8", "surrogatepass")
    end = draw.randrange(len(data) + 1)
    return data[:end], f"cut after {end} bytes"


def _flipped(draw: random.Random, text: str) -> tuple[bytes, str]:
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data), "bytes changed"


def _surrounded(draw: random.Random, text: str) -> tuple[bytes, str]:
    data = text.encode("utf-8", "surrogatepass")
    before, after = draw.choice(
        (
            (b"\xef\xbb\xbf", b""),
            (b"", b"\x00"),
            (b"", b"{}"),
            (b"[" * 100_000, b""),
            (b"// no\n", b""),
            (b" " * 9_000_000, b""),
            (b"", b"\xff\xfe"),
        )
    )
    return before + data + after, f"{before[:8]!r} before and {after[:8]!r} after it"


def _other(draw: random.Random, text: str) -> tuple[bytes, str]:
    data = draw.choice(
        (
            b"",
            b"null",
            b"[]",
            b'"gate"',
            b"0",
            b"\x89PNG\r\n",
            text.encode("utf-16", "surrogatepass"),
        )
    )
    return data, f"{data[:12]!r} in place of it"


_TEXT_CHANGES = (_cut, _flipped, _flipped, _surrounded, _other)
