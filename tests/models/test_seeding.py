import pytest
import torch

from goen.models.seeding import seeded


def test_numbers_come_from_the_seed_and_leave_no_trace() -> None:
    expected = torch.rand(3, generator=torch.Generator().manual_seed(7))
    before = torch.get_rng_state()
    with seeded(7):
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="halfway"), seeded(7):
        torch.rand(1)
        raise ValueError("halfway")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_generators_of_other_devices_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, lambda _: pytest.fail("a GPU was seeded"))
    with seeded(7):
        torch.rand(1)
