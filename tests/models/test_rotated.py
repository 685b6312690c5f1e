import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div

from goen.errors import UsageError
from goen.models import NetworkConfig, ResNet18, new_network
from goen.models.rotated import Rotated


def network(**settings: object) -> ResNet18:
    torch.manual_seed(0)
    made = new_network(NetworkConfig(num_classes=3, width=4, rotations=True, **settings))  # type: ignore[arg-type]
    assert isinstance(made, ResNet18)
    return made.eval()


def test_the_uncertainty_equals_a_slow_loop() -> None:
    plain = network()
    images = torch.rand(5, 3, 16, 16)
    with torch.no_grad():
        found = Rotated(plain)(images)
        expected = plain(images)
        for row in range(5):
            bits = 0.0
            for turn in range(4):
                turned = np.rot90(images[row].numpy(), turn, (1, 2)).copy()
                hidden, _ = plain.encode(torch.from_numpy(turned)[None])
                assert plain.rotation is not None
                bits -= float(plain.rotation(hidden).double().log_softmax(1)[0, turn])
            uniform = torch.full((1, 3), 1 / 3, dtype=torch.float64)
            log_p = expected.logits[row : row + 1].double().log_softmax(1)
            from_uniform = float(kl_div(log_p, uniform, reduction="sum"))
            assert found.uncertainty is not None
            assert float(found.uncertainty[row]) == pytest.approx(bits / 4 - from_uniform, rel=1e-5)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.features["z"], expected.features["z"])
    assert found.uncertainty.dtype == torch.float64


def test_it_is_low_where_rotations_and_class_are_sure() -> None:
    plain = network()
    assert plain.rotation is not None
    with torch.no_grad():
        plain.rotation.weight.zero_()
        plain.rotation.bias.zero_()
        plain.classifier.state_dict()["weight"].zero_()
        plain.classifier.state_dict()["bias"].zero_()
        found = Rotated(plain)(torch.rand(2, 3, 16, 16))
        assert found.uncertainty is not None
        assert found.uncertainty.tolist() == pytest.approx([np.log(4)] * 2)
        plain.classifier.state_dict()["bias"][0] = 9.0
        surer = Rotated(plain)(torch.rand(2, 3, 16, 16)).uncertainty
        assert surer is not None
        assert (surer < np.log(4)).all()


def test_images_of_sixteen_bits_count_as_floats() -> None:
    deep = torch.randint(0, 65536, (2, 3, 16, 16)).to(torch.uint16)
    one, other = (Rotated(network())(x).uncertainty for x in (deep, deep.float() / 65535))
    assert one is not None
    assert torch.allclose(one, other)


def test_what_cannot_be_is_an_error() -> None:
    with pytest.raises(UsageError, match="NetworkConfig\\(rotations=True\\)"):
        Rotated(ResNet18(NetworkConfig(width=4)))
    with pytest.raises(UsageError, match="square; got 16×12"):
        Rotated(network())(torch.rand(1, 3, 16, 12))


def test_the_second_classifier_changes_no_other_weight() -> None:
    torch.manual_seed(0)
    without = ResNet18(NetworkConfig(num_classes=3, width=4))
    assert without.rotation is None
    for name, values in without.state_dict().items():
        assert torch.equal(values, network().state_dict()[name]), name
