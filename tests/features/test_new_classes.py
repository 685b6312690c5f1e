"""A classifier with classes that it does not know."""

import torch

from goen.features.new_classes import WithNewClasses
from goen.features.precomputed import Precomputed


def network() -> WithNewClasses:
    """Two known classes to the right and to the left, a new one above."""
    known = Precomputed({"z": 2}, 2, has_logits=True)
    found = WithNewClasses(known, "z", 2, num_known=2, num_classes=3)
    rows = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1], [0.1, 1.0], [-0.1, 1]])
    return found.add({"z": rows}, torch.tensor([0, 0, 1, 1, 2, 2]))


def test_images_near_a_known_class_keep_the_classifier() -> None:
    # The classifier says 1 where the mean of 0 is nearer: it is not overruled.
    inputs = {
        "z": torch.tensor([[3.0, 0.2], [-3.0, 0.2]]),
        "logits": torch.tensor([[0.0, 2.0]] * 2),
    }
    outputs = network()(inputs)
    assert outputs.logits.argmax(dim=1).tolist() == [1, 1]
    assert torch.equal(outputs.logits[:, :2], inputs["logits"])
    assert torch.allclose(outputs.logits.softmax(1)[:, :2], inputs["logits"].softmax(1))
    assert (outputs.logits.softmax(1)[:, 2] == 0).all()


def test_images_near_a_new_class_have_its_label_and_the_classifiers_energy() -> None:
    inputs = {"z": torch.tensor([[0.2, 5.0]]), "logits": torch.tensor([[9.0, 2.0]])}
    outputs = network()(inputs)
    assert outputs.logits.argmax(dim=1).tolist() == [2]
    assert torch.allclose(outputs.logits.logsumexp(1), inputs["logits"].logsumexp(1), atol=1e-5)
    expected = network().means({"z": inputs["z"]}).logits.softmax(1)
    assert torch.allclose(outputs.logits.softmax(1), expected, atol=1e-6)


def test_more_classes_are_a_copy_of_the_means_and_the_same_classifier() -> None:
    first = network()
    more = first.with_classes(4).add({"z": torch.tensor([[0.0, -1.0]])}, torch.tensor([3]))
    assert more.network is first.network
    assert (more.num_known, more.num_classes, first.num_classes) == (2, 4, 3)
    below = {"z": torch.tensor([[0.1, -2.0]]), "logits": torch.zeros(1, 2)}
    assert more(below).logits.argmax(dim=1).tolist() == [3]
    assert first(below).logits.shape == (1, 3)
    assert torch.equal(more.means.sums[:3], first.means.sums)
