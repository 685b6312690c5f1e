"""Damage to safetensors files: numbers, shapes, types, names, and lies in the header."""

import json
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

Tensors = dict[str, Tensor]
_MOST = 1 << 20  # elements that a change may make


def damaged_tensors(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    """The file with one to three changes, and what was changed."""
    said = []
    if draw.random() < 0.65:
        tensors = load(data)
        said.append(change_tensors(draw, tensors))
        data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    if not said or draw.random() < 0.1:
        data, how = draw.choice(_FILE_CHANGES)(draw, data)
        said.append(how)
    return data, "; ".join(said)


def change_tensors(draw: random.Random, tensors: Tensors) -> str:
    """Make one to three changes to the tensors; what was changed."""
    count = draw.choice((1, 1, 1, 2, 3))
    return "; ".join(draw.choice(_CHANGES)(draw, tensors) for _ in range(count) if tensors)


# -- files that are well formed ------------------------------------------------------------------


def _name(draw: random.Random, tensors: Tensors) -> str:
    """One tensor; those of the network, of which there are many, no more often than the rest."""
    own = sorted(name for name in tensors if name.startswith("network."))
    rest = sorted(name for name in tensors if not name.startswith("network."))
    return draw.choice(own if own and (not rest or draw.random() < 0.25) else rest)


def _numbers(draw: random.Random, tensors: Tensors) -> str:
    """Some numbers of a tensor, or all, become extreme."""
    name = _name(draw, tensors)
    values = tensors[name].contiguous().clone()
    if values.is_floating_point():
        value = draw.choice((math.nan, math.inf, -math.inf, 0.0, -1.0, 1e38, -1e38, 1e-45, 1e300))
    elif values.dtype in (torch.bool, torch.complex64):
        value = draw.choice((True, False))
    else:
        ends = torch.iinfo(values.dtype)
        value = draw.choice((ends.max, ends.min, -1, 0, 1, 2**29, 2**31, 7))
    flat = values.view(-1)
    if not len(flat):
        return "nothing"
    places = [draw.randrange(len(flat)) for _ in range(draw.randint(1, 3))]
    chosen = flat if draw.random() < 0.2 else flat[places]
    new = torch.tensor(value).to(flat.dtype).expand(len(chosen))
    flat[slice(None) if len(chosen) == len(flat) else places] = new
    tensors[name] = values
    return f"{name} holds {value}"


def _scaled(draw: random.Random, tensors: Tensors) -> str:
    name = _name(draw, tensors)
    if not tensors[name].is_floating_point():
        return _numbers(draw, tensors)
    factor = draw.choice((-1.0, 0.0, 0.5, 1 + 1e-3, 2.0, 1e6, 1e-6, 1e150, 1e-150, 1e30))
    tensors[name] = (tensors[name].double() * factor).to(tensors[name].dtype)
    return f"{name} times {factor}"


def _reshaped(draw: random.Random, tensors: Tensors) -> str:
    name = _name(draw, tensors)
    old = tensors[name]
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda t: t[None],
        lambda t: t[..., None],
        lambda t: t.flatten(),
        lambda t: t.reshape(-1, 1),
        lambda t: t.T if t.ndim == 2 else t[None, None],
        lambda t: t[:0] if t.ndim else t[None][:0],
        lambda t: t[1:] if t.ndim else t.repeat(3),
        lambda t: torch.cat([t, t]) if t.ndim and 2 * t.numel() <= _MOST else t[None],
        lambda t: t[..., :-1] if t.ndim else t[None],
        lambda t: t.reshape(-1)[:1],
        lambda t: t.reshape(-1)[0] if t.numel() else t,
        lambda t: torch.zeros(0, 2**40, dtype=t.dtype),
        lambda t: t.reshape(-1)[:1].expand(_MOST) if t.numel() else t,
    ]
    tensors[name] = draw.choice(ways)(old)
    return f"{name} from {tuple(old.shape)} to {tuple(tensors[name].shape)}"


_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8)
_DTYPES += (torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64)


def _retyped(draw: random.Random, tensors: Tensors) -> str:
    name, dtype = _name(draw, tensors), draw.choice(_DTYPES)
    tensors[name] = tensors[name].to(dtype)
    return f"{name} as {dtype}"


def _renamed(draw: random.Random, tensors: Tensors) -> str:
    name = _name(draw, tensors)
    new = draw.choice((name + "x", "", "x" * 300, "\x1b[31m", "scorer.", "network.é", name[:-1]))
    tensors[new] = tensors.pop(name)
    return f"{name} renamed {new[:20]!r}"


def _deleted(draw: random.Random, tensors: Tensors) -> str:
    name = _name(draw, tensors)
    del tensors[name]
    return f"{name} deleted"


def _copied(draw: random.Random, tensors: Tensors) -> str:
    one, other = _name(draw, tensors), _name(draw, tensors)
    tensors[one] = tensors[other].clone()
    return f"{one} is {other}"


def _added(draw: random.Random, tensors: Tensors) -> str:
    name = draw.choice(
        ("further", "scorer.further", "network.further", "image_hashes.7", "probe.x")
    )
    tensors[name] = torch.zeros(draw.choice((0, 1, 1000)), dtype=draw.choice(_DTYPES))
    return f"{name} added"


def _shuffled(draw: random.Random, tensors: Tensors) -> str:
    name = _name(draw, tensors)
    flat = tensors[name].reshape(-1)
    order = list(range(len(flat)))
    draw.shuffle(order)
    tensors[name] = flat[order].view(tensors[name].shape)
    return f"{name} shuffled"


_CHANGES = (_numbers, _numbers, _numbers, _scaled, _reshaped, _reshaped, _retyped, _renamed)
_CHANGES += (_deleted, _copied, _added, _shuffled)


# -- files that are not --------------------------------------------------------------------------


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _joined(header: str | bytes, rest: bytes, length: int | None = None) -> bytes:
    text = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + rest


def _lie(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    """One entry of the header says something else."""
    header, rest = _parts(data)
    name = draw.choice(sorted(header))
    field = draw.choice(("dtype", "shape", "data_offsets"))
    lies: dict[str, tuple[Any, ...]] = {
        "dtype": ("F64", "F32", "I64", "U8", "F4", "F6_E2M3", "F8_E8M0", "BOOL", "C64", "X", 1),
        "shape": ([2**60], [2**32, 2**32], [-1], [1.5], ["2"], None, [], [0], [1] * 70, 3, [2**64]),
        "data_offsets": ([0, 2**60], [-8, 0], [8, 0], [0, 0], [0], [1, 2, 3], None, ["0", "8"]),
    }
    lie = draw.choice(lies[field])
    header[name][field] = lie
    if draw.random() < 0.1:
        del header[name][field]
        lie = "missing"
    return _joined(json.dumps(header), rest), f"the header says that {field} of {name} is {lie}"


def _metadata(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    header, rest = _parts(data)
    value = draw.choice(({}, {"a": "b"}, {"a": 1}, [], "x", None, {"a": {"b": {}}}, {"": "\x00"}))
    return _joined(json.dumps({"__metadata__": value, **header}), rest), f"metadata {value}"


def _length(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    length = int.from_bytes(data[:8], "little")
    lie = draw.choice((0, 1, 2, 8, length - 1, length + 1, length + 8, 2**31, 2**63, 2**64 - 1))
    return struct.pack("<Q", lie) + data[8:], f"the header has length {lie}"


def _header(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    """Another header altogether."""
    _, rest = _parts(data)
    many = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_000)}
    header: str | bytes = draw.choice(
        (
            "{}",
            "[]",
            "",
            "null",
            "{" * 1000,
            "[" * 200_000,
            b"\xff\xfe",
            '{"a":' * 50_000,
            '{"\\ud800": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}',
            '{"a": {"dtype": "F32", "shape": [0, 4611686018427387904], "data_offsets": [0, 0]}}',
            json.dumps(many),
        )
    )
    tail = draw.choice((rest, b""))
    return _joined(header, tail), f"the header is {header[:30]!r}, {len(tail)} bytes follow"


def _twice(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    header, rest = _parts(data)
    name = draw.choice(sorted(header))
    entry = f"{json.dumps(name)}: {json.dumps(header[name])}"
    return _joined(f"{{{entry}, {json.dumps(header)[1:]}", rest), f"the header has {name} twice"


def _cut(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    end = draw.choice((0, 4, 8, 9, len(data) - 1, draw.randrange(len(data))))
    return data[:end], f"cut after {end} bytes"


def _longer(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    count = draw.choice((1, 8, 4096))
    return data + bytes(count), f"{count} bytes longer"


def _flipped(draw: random.Random, data: bytes) -> tuple[bytes, str]:
    changed = bytearray(data)
    last = draw.choice((8, 600, len(data)))
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(min(last, len(data)))] = draw.randrange(256)
    return bytes(changed), f"bytes changed among the first {last}"


_FILE_CHANGES = (_lie, _lie, _lie, _metadata, _length, _header, _twice, _cut, _longer, _flipped)
