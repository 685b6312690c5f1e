"""Tensors from anyone: type, shape and range are checked, and what is wrong is named."""

import json
import math
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from goen.io import tensors
from goen.io.limits import TENSOR_BYTES
from goen.io.tensors import Tensors, read_tensors, tensor_header

NAN, INF = math.nan, math.inf


def floats(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def test_a_tensor_of_its_type_shape_and_range_is_read() -> None:
    tensors = Tensors({"a": floats(0, 0.5, 1), "b": torch.tensor([[1, 2]]), "c": floats()[None]})
    assert tensors.floats("a", (3,)) is tensors["a"]
    assert tensors.floats("a", ("rows",), low=0, high=1) is tensors["a"]
    assert tensors.integers("b", ("rows", 2), low=1, high=2) is tensors["b"]
    assert tensors.of_shape("c", (1, 0), torch.float64) is tensors["c"]
    assert tensors.floats("c", (1, 0)) is tensors["c"]
    assert tensors.get("d") is None
    assert len(tensors) == 3


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (floats(1, 2), {"shape": (3,)}, r"be float64 of shape \(3,\), got float64 \(2,\)"),
        (floats(1)[None], {}, r"be float64 of shape \(rows,\), got float64 \(1, 1\)"),
        (floats()[:0], {}, r"be float64 of shape \(rows,\), got float64 \(0,\)"),
        (floats(1)[0], {}, r"be float64 of shape \(rows,\), got float64 \(\)"),
        (floats(1, dtype=torch.float32), {}, "be float64 of .*, got float32"),
        (torch.tensor([1]), {}, "be float64 of .*, got int64"),
        (floats(1, NAN, 2), {}, "hold finite numbers, got nan"),
        (floats(1, INF), {}, "hold finite numbers, got inf"),
        (floats(1, -INF), {"low": -1e9}, "hold finite numbers from -1000000000.0, got -inf"),
        (floats(-0.1, 0.5), {"low": 0.0, "high": 1.0}, "hold finite .* from 0.0 to 1.0, got -0.1"),
        (floats(0.5, 1.1), {"low": 0.0, "high": 1.0}, "hold finite .* from 0.0 to 1.0, got 1.1"),
        (floats(1.5e308, -1.5e308, NAN), {}, "hold finite numbers, got nan"),
    ],
)
def test_what_is_wrong_with_floats_is_named(
    value: torch.Tensor, options: dict, message: str
) -> None:
    tensors = Tensors({"x": value}, "bank.")
    with pytest.raises(ValueError, match=f"^its tensor bank.x should {message}"):
        tensors.floats("x", options.pop("shape", ("rows",)), **options)


def test_the_largest_floats_are_finite() -> None:
    largest = floats(1.7e308, -1.7e308)
    assert torch.equal(Tensors({"x": largest}).floats("x", (2,)), largest)


def test_what_is_wrong_with_integers_is_named() -> None:
    tensors = Tensors({"labels": torch.tensor([0, 2**29, 6])})
    tensors.integers("labels", (3,), low=0, high=2**29)
    with pytest.raises(ValueError, match="labels should hold numbers from 0 to 6, got 536870912"):
        tensors.integers("labels", (3,), low=0, high=6)
    with pytest.raises(ValueError, match="labels should hold numbers from 1, got 0"):
        tensors.integers("labels", (3,), low=1)
    with pytest.raises(ValueError, match=r"it has no tensor turns, which should be int64 of shape"):
        tensors.integers("turns", (3,))


def test_parts_keep_where_they_are_from() -> None:
    part = Tensors({"a.b.c": floats(NAN), "d": floats(1)}).part("a.").part("b.")
    assert list(part) == ["c"]
    with pytest.raises(ValueError, match=r"its tensor a\.b\.c should hold finite"):
        part.check_finite()
    assert Tensors.of(part) is part


def test_unknown_names_are_shown_harmlessly() -> None:
    tensors = Tensors({"a": floats(1), "\x1b[31m": floats(1), "z" * 200: floats(1), "y": floats(1)})
    with pytest.raises(ValueError, match=r"unknown names: '\\x1b\[31m', 'z{80}', y$"):
        tensors.check_names(["a", "b"])
    tensors.check_names(list(tensors))
    for length, shown in ((80, "w{80}"), (81, "'w{80}'")):
        with pytest.raises(ValueError, match=f"unknown names: {shown}$"):
            Tensors({"w" * length: floats(1)}).check_names(["a"])


def test_weights_are_compared_with_those_of_a_network() -> None:
    expected = torch.nn.BatchNorm1d(2).state_dict()
    good = {name: value.clone() for name, value in expected.items()}
    Tensors(good).check_like(expected)
    for change, message in (
        ({"weight": floats(1, 2)}, r"weight should be float32 of shape \(2,\), got float64"),
        ({"weight": torch.ones(3)}, r"weight should be .*, got float32 \(3,\)"),
        ({"weight": torch.tensor([1, NAN])}, "weight should hold finite numbers from .*, got nan"),
        ({"weight": torch.tensor([1, -9.0])}, "weight should .* from -8.0 to 8.0, got -9.0"),
        ({"further": torch.ones(1)}, "unknown names: further"),
    ):
        with pytest.raises(ValueError, match=message):
            Tensors({**good, **change}).check_like(expected, largest=8.0)
    Tensors({**good, "weight": torch.tensor([1, NAN])}).check_like(expected, largest=None)
    del good["bias"]
    with pytest.raises(ValueError, match="it has no tensor bias"):
        Tensors(good).check_like(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_narrow_floats_are_checked_too(dtype: torch.dtype) -> None:
    Tensors({"x": floats(1, 2).to(dtype)}).check_finite()
    with pytest.raises(ValueError, match="got nan"):
        Tensors({"x": floats(1, NAN).to(dtype)}).check_finite()


# -- files ---------------------------------------------------------------------------------------


def with_header(header: bytes, rest: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + rest


def entry(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4)) -> bytes:
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


def test_a_file_comes_back(tmp_path: Path) -> None:
    save_file({"a": torch.arange(3.0)}, tmp_path / "t.safetensors", metadata={"b": "c"})
    assert torch.equal(read_tensors(tmp_path / "t.safetensors")["a"], torch.arange(3.0))
    header = tensor_header(tmp_path / "t.safetensors")
    assert header["__metadata__"] == {"b": "c"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"half",
        with_header(b"{}", length=2**63),
        with_header(b"{}", length=9_000_000),
        with_header(b"[]"),
        with_header(b'{"a":' * 50_000),
        with_header(entry(), b"\0" * 3),
        with_header(entry(), b"\0" * 5),
        with_header(entry(shape=(2**40,)), b"\0" * 4),
        with_header(entry(shape=(-1,)), b"\0" * 4),
        with_header(entry(dtype="X"), b"\0" * 4),
        with_header(entry(offsets=(0, 2**60)), b"\0" * 4),
        with_header(entry(offsets=(4, 0)), b"\0" * 4),
        with_header(entry()[:-1] + b"," + entry()[1:], b"\0" * 4),
    ],
)
def test_a_header_that_lies_is_one_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (some messages are of safetensors)
        read_tensors(path)
    assert type(caught.value) in (ValueError, json.JSONDecodeError)


def test_what_is_no_file_or_too_large_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    with pytest.raises(ValueError, match="is missing, or not a file"):
        read_tensors(path)
    with path.open("wb") as file:
        file.truncate(TENSOR_BYTES + 1)
    with pytest.raises(ValueError, match="has 34,359,738,369 bytes, more than 34,359,738,368"):
        read_tensors(path)


def test_files_and_headers_as_large_as_they_may_be_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.safetensors"
    save_file({"a": torch.arange(3.0)}, path)
    size, header = path.stat().st_size, path.stat().st_size - 8 - 12
    for name, most in (("TENSOR_BYTES", size), ("JSON_BYTES", header)):
        monkeypatch.setattr(tensors, name, most)
        assert [*read_tensors(path)] == ["a"]
        monkeypatch.setattr(tensors, name, most - 1)
        with pytest.raises(ValueError, match=f"has {most:,} bytes, more than {most - 1:,}"):
            read_tensors(path)
        monkeypatch.undo()
