import zipfile
from pathlib import Path

import numpy as np
import pytest

from goen.io.arrays import array_names, is_array_file, open_array, read_arrays

RNG = np.random.default_rng(0)
ARRAYS = {
    "floats": RNG.normal(size=(7, 4)).astype(">f4"),
    "fortran": np.asfortranarray(RNG.integers(0, 99, (3, 5, 2))),
    "texts": np.array(["cat", "dolphin"]),
    "empty": np.zeros((0, 3), np.uint8),
    "no_letters": np.array(["", ""]),
    "one": np.array(3.5),
    "large": RNG.integers(0, 256, 1_500_000, dtype=np.uint8),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_as_numpy_reads_them(save: object, tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    save(file, **ARRAYS)  # type: ignore[operator]
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("readme.txt", "no array")
    assert array_names(file) == [*ARRAYS]
    found = read_arrays(file)
    for name, values in ARRAYS.items():
        assert np.array_equal(found[name], values)
        assert found[name].dtype == values.dtype.newbyteorder("=")
        assert found[name].flags.writeable
    assert [*read_arrays(file, ("texts", "absent"))] == ["texts"]


def test_an_array_is_read_a_few_rows_at_a_time(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ARRAYS["floats"])
    with open_array(tmp_path / "a.npy") as array:
        assert (array.shape, array.num_bytes) == ((7, 4), 112)
        parts = [array.read(rows) for rows in (3, 3, 1)]
    assert np.array_equal(np.concatenate(parts), ARRAYS["floats"])


def test_more_than_the_limit_is_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.zeros(10), b=np.zeros(10))
    assert len(read_arrays(tmp_path / "a.npz", most=160)) == 2
    with pytest.raises(ValueError, match=r"b is float64 of shape \(10,\): too large"):
        read_arrays(tmp_path / "a.npz", most=159)


def test_objects_and_structures_are_not_read(tmp_path: Path) -> None:
    for values in (np.array([{}]), np.zeros(2, [("a", "<i4")])):
        np.save(tmp_path / "a.npy", values)
        with (
            pytest.raises(ValueError, match="Python objects are not read"),
            open_array(tmp_path / "a.npy"),
        ):
            pass


def test_a_short_file_is_noticed_before_and_while_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.zeros(100))
    with open_array(file) as array:
        array.read(99)
        with pytest.raises(ValueError, match="it ends early"):
            array.read(2)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="it ends early"), open_array(file):
        pass


def test_a_folder_is_no_array_file(tmp_path: Path) -> None:
    assert [is_array_file(Path(name)) for name in ("a.NPY", "a.npz", "a.png")] == [
        True,
        True,
        False,
    ]
    with pytest.raises(ValueError, match="it is not a file"), open_array(tmp_path):
        pass
