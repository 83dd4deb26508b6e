import torch

from dcfl.data import Augmentation, Batch, ClientData
from dcfl.testing.toys import toy_client, toy_model
from tests import toys


def batches(
    data: ClientData, epochs: int = 1, size: int = 4, seed: int = 0, **where: int
) -> list[Batch]:
    place = {"round": 1, "client": 0, **where}
    return list(data.training_batches(epochs, size, seed, second_view=False, **place))


def test_every_epoch_sees_every_image_once_in_a_new_order() -> None:
    data = toy_client([0, 1, 2, 3, 0, 1, 2, 3], Augmentation())
    first, second, third, fourth = batches(data, epochs=2)
    clean = data.preparation.clean(data.images.pixels)
    for epoch in (
        torch.cat([first.images, second.images]),
        torch.cat([third.images, fourth.images]),
    ):
        found = [(epoch == image).all(dim=(1, 2, 3)).sum().item() for image in clean]
        assert found == [1] * 8
    assert not torch.equal(first.images, third.images)


def test_labels_stay_with_their_images() -> None:
    data = toy_client([0, 1, 2, 3] * 4, Augmentation())
    clean = data.preparation.clean(data.images.pixels)
    for batch in batches(data):
        for image, label in zip(batch.images, batch.labels, strict=True):
            row = (clean == image).all(dim=(1, 2, 3)).nonzero().item()
            assert data.images.labels[row] == label


def test_the_last_partial_batch_is_kept_but_not_a_batch_of_one() -> None:
    assert [len(b.labels) for b in batches(toy_client([0] * 10))] == [4, 4, 2]
    assert [len(b.labels) for b in batches(toy_client([0] * 9))] == [4, 4]
    assert batches(toy_client([0])) == []


def test_order_and_views_depend_on_seed_round_and_client_alone() -> None:
    data = toy_client([0, 1, 2, 3] * 3)
    reference = torch.cat([batch.images for batch in batches(data)])
    torch.rand(5)  # the global generator plays no part
    assert torch.equal(reference, torch.cat([batch.images for batch in batches(data)]))
    for other in ({"seed": 1}, {"round": 2}, {"client": 1}):
        images = torch.cat([batch.images for batch in batches(data, **other)])
        assert not torch.equal(reference, images)


def test_a_second_view_is_another_view_and_leaves_the_first_alone() -> None:
    data = toy_client([0, 1, 2, 3] * 3)
    both = list(data.training_batches(1, 4, 0, 1, 0, second_view=True))
    for one, two in zip(batches(data), both, strict=True):
        assert two.second_view is not None
        assert torch.equal(one.images, two.images)
        assert not torch.equal(two.images, two.second_view)
        assert torch.equal(one.labels, two.labels)


def test_clean_batches_are_the_images_in_order() -> None:
    data = toy_client([0, 1, 2] * 67)
    parts = list(data.clean_batches(toy_model()))
    assert [len(part.labels) for part in parts] == [100, 101]  # a last one alone joins the others
    whole = data.preparation.clean(data.images.pixels)
    assert torch.equal(torch.cat([part.images for part in parts]), whole)


def test_a_federation_hands_each_client_its_own() -> None:
    federation = toys.federated(clients=3)
    for client in range(3):
        own = federation.client(client).images
        rows = federation.partition.of(client)
        assert torch.equal(own.labels, federation.dataset.train.labels[rows])
        assert torch.equal(own.pixels, federation.dataset.train.pixels[rows])
