import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from goen.data import load_set
from goen.data.imageset import digest_images
from goen.data.sets.readers import class_folders
from goen.data.sets.store import prepare, prepare_set
from goen.errors import DataCorrupt
from tests.data.local_sets import binary_batch, random_batch
from tests.data.protocols.folders import write_classes


def test_a_damaged_preparation_says_which_folder_to_delete(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "textures.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.zeros(2, int)
    )
    load_set("textures", data_dir=tmp_path)
    (folder,) = (tmp_path / "cache" / "sets").iterdir()
    (folder / "images.npy").write_bytes((folder / "images.npy").read_bytes()[:-5])
    with pytest.raises(DataCorrupt, match="Delete that folder"):
        load_set("textures", data_dir=tmp_path)


def test_two_processes_preparing_one_set_agree(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    batches = [binary_batch(*random_batch(seed)) for seed in range(1700)]
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(
        b"".join(batches)[: 10_000 * 3073]
    )
    script = (
        "import sys; from pathlib import Path; import goen\n"
        "print(goen.data.load_set('cifar10', 'test', data_dir=Path(sys.argv[1])).fingerprint)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {process.communicate(timeout=60)[0] for process in running}
    assert len(answers) == 1
    assert len(answers.pop().strip()) == 32
    assert len(list((tmp_path / "cache" / "sets").iterdir())) == 1


def test_broken_files_are_skipped_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 3, "b": 2})
    (folder / "a" / "bad.png").write_bytes(b"nothing")
    (folder / "b" / "0.png").write_bytes(b"nothing")
    source = class_folders(folder, (8, 8), None)
    with pytest.raises(DataCorrupt, match=r"2 images cannot be read\. .*bad\.png"):
        prepare_set(source, "photos")
    found = prepare(source, "photos")
    assert {*found.broken} == {"a/bad.png", "b/0.png"}
    assert (len(found.images), found.images.read().shape) == (5, (5, 3, 8, 8))
    assert found.images.counts() == {"a": 3, "b": 2}
    assert (digest_images(iter([found.images.read()])) == found.images.digests).all()
    # The content of the files, which does not depend on the size of the images.
    large = prepare(class_folders(folder, (16, 16), None), "photos")
    assert (large.content == found.content).all()
    assert not np.isin(found.content, found.images.digests).any()
    with pytest.raises(DataCorrupt, match="2 images cannot be read"):
        prepare_set(source, "photos")  # also where it lies prepared
