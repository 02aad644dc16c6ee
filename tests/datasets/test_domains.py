"""Domains: transforms against numpy and by hand, labels, and what is refused."""

import numpy as np
import pytest

from tffcl import datasets
from tffcl.datasets import Domain, Domains, ImageDataset, domains
from tffcl.errors import DatasetError, InputError

RNG = np.random.default_rng(3)


def images(name="toy", size=(6, 6), num_labels=4, count=40, max_value=255):
    def part(n):
        pixels = RNG.integers(0, max_value + 1, (n, *size)).astype(np.uint8)
        return pixels, np.arange(n) % num_labels

    names = tuple(f"{name} {label}" for label in range(num_labels))
    return ImageDataset(name, *part(count), *part(count // 2), names, max_value)


TOY = images()
ROWS = np.array([5, 0, 17])


def both(domain):
    """(shown, original) of some training and some test images."""
    return [
        (domain.train_images(ROWS), domain.images.train_images[ROWS]),
        (domain.test_images(ROWS), domain.images.test_images[ROWS]),
    ]


def test_quarter_turns_are_exact_and_four_are_none():
    made = datasets.rotations(TOY)
    assert made.name == "toy rotations"
    assert [domain.name for domain in made.domains] == ["0 degrees", "90 degrees", "180 degrees", "270 degrees"]
    for turns, domain in enumerate(made.domains):
        for shown, original in both(domain):
            assert np.array_equal(shown, [np.rot90(image, turns) for image in original])
            for _ in range(4):
                shown = domains.rotated(shown, 90)
            assert np.array_equal(shown, [np.rot90(image, turns) for image in original])
    assert np.array_equal(domains.rotated(TOY.train_images, -90), np.rot90(TOY.train_images, 3, (1, 2)))
    assert np.array_equal(domains.rotated(TOY.train_images, 450), np.rot90(TOY.train_images, 1, (1, 2)))


@pytest.mark.parametrize("degrees", [89.99, -0.01, 180.01, 270.0001])
def test_other_angles_turn_the_same_way(degrees):
    inner = (slice(None), slice(1, -1), slice(1, -1))
    near = domains.rotated(TOY.train_images, round(degrees))
    turned = domains.rotated(TOY.train_images, degrees)
    assert turned.dtype == np.uint8
    assert np.abs(turned[inner].astype(int) - near[inner]).max() <= 1


def test_a_point_turned_by_45_degrees():
    image = np.zeros((1, 9, 9), np.uint8)
    image[0, 4, 7] = 200  # 3 to the right of the middle: goes to 3 sin 45 = 2.1 above it, and to the right
    turned = domains.rotated(image, 45)[0]
    assert np.unravel_index(turned.argmax(), turned.shape) == (2, 6)


def test_permutations_move_pixels_and_lose_none():
    made = datasets.permutations(TOY, 5, seed=4)
    orders = []
    for domain in made.domains:
        order = np.asarray(domain.transform.keywords["order"])
        back = np.argsort(order)
        for shown, original in both(domain):
            assert np.array_equal(domains.permuted(shown, back), original)
            flat = original.reshape(3, -1)
            assert np.array_equal(shown.reshape(3, -1), flat[:, order])
        orders.append(tuple(order))
    assert len(set(orders)) == 5
    assert tuple(range(36)) not in orders


def test_permutations_are_seeded_and_a_shorter_list_is_the_start_of_a_longer_one():
    def first(made, domain):
        return made[domain].train_images(ROWS).tolist()

    made = datasets.permutations(TOY, 5, seed=4)
    assert first(made, 2) == first(datasets.permutations(TOY, 3, seed=4), 2)
    assert first(made, 2) == first(datasets.permutations(TOY, 3, seed=4, keep_first=True), 2)
    assert first(made, 2) != first(datasets.permutations(TOY, 3, seed=5), 2)
    kept = datasets.permutations(TOY, 2, seed=4, keep_first=True)
    assert kept[0].name == "as is"
    assert np.array_equal(kept[0].train_images(ROWS), TOY.train_images[ROWS])
    assert len(datasets.permutations(TOY)) == 10


@pytest.mark.parametrize("max_value", [255, 16])
def test_mild_changes(max_value):
    toy = images(size=(20, 10), max_value=max_value)
    made = datasets.mild(toy)
    assert [domain.name for domain in made.domains] == ["as is", "mirrored", "shifted", "less contrast"]
    (as_is, original), _ = both(made[0])
    assert np.array_equal(as_is, original)
    assert np.array_equal(made[1].train_images(ROWS), np.flip(original, 2))
    moved = made[2].train_images(ROWS)
    assert np.array_equal(moved[:, 2:, 1:], original[:, :-2, :-1])
    assert not moved[:, :2].any()
    assert not moved[:, :, :1].any()
    grey = made[3].train_images(ROWS)
    assert np.array_equal(grey, np.floor(original / 2 + max_value / 4))
    assert grey.max() <= max_value


def test_labels_of_a_group_of_classes():
    made = datasets.class_groups([(TOY, (0, 1)), (TOY, (3, 2))])
    assert made.label_names == ("0", "1")
    assert [domain.name for domain in made.domains] == ["toy 0-1", "toy 3,2"]
    for labels, own in zip(made.train_labels, ({0: 0, 1: 1}, {3: 0, 2: 1})):
        assert labels.dtype == np.int32
        assert labels.tolist() == [own.get(one, -1) for one in TOY.train_labels.tolist()]
    assert made.test_labels[1].tolist() == [{3: 0, 2: 1}.get(one, -1) for one in TOY.test_labels.tolist()]
    assert (made.name, made.num_labels, made.image_size, made.max_value, len(made)) == ("toy", 2, (6, 6), 255, 2)
    assert made.shared_base == [0, 0]


def test_presets():
    mnist, fashion = images("mnist", num_labels=10), images("fashion-mnist", num_labels=10)
    made = datasets.mnist_fashion(mnist, fashion)
    names = ["mnist 0-4", "mnist 5-9", "fashion-mnist 0-4", "fashion-mnist 5-9"]
    assert [domain.name for domain in made.domains] == names
    assert (made.name, made.num_labels, made.shared_base) == ("mnist+fashion-mnist", 5, [0, 0, 2, 2])
    assert made[3].classes == (5, 6, 7, 8, 9)
    letters = images("emnist-balanced", num_labels=47, count=94)
    made = datasets.emnist_balanced(letters)
    assert [domain.classes for domain in made.domains] == [tuple(range(k, k + 10)) for k in (0, 10, 20, 30)]
    assert np.flatnonzero(np.stack(made.train_labels).max(axis=0) < 0).tolist() == [*range(40, 47), *range(87, 94)]
    with pytest.raises(InputError, match="10 is no class of mnist, which has 0..9"):
        datasets.emnist_balanced(mnist)


def test_digits():
    made = datasets.rotations(datasets.load_images())
    assert (made.num_labels, made.image_size, made.max_value) == (10, (8, 8), 16)
    assert made[1].test_images(np.arange(355)).max() == 16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Domains("none", (), ()), "none: needs at least one domain"),
        (lambda: Domain("d", TOY, ()), "domain 'd': needs at least one class, each once"),
        (lambda: Domain("d", TOY, (1, 1)), r"each once; got \[1, 1\]"),
        (lambda: Domain("d", TOY, (1, 4)), "4 is no class of toy, which has 0..3"),
        (lambda: Domain("d", TOY, (1.0,)), "1.0 is no class"),
        (lambda: datasets.class_groups([]), "groups is empty"),
        (lambda: datasets.class_groups([(TOY, (0, 1)), (TOY, (2,))]), "'toy 2' has labels 1, expected 2"),
        (lambda: datasets.class_groups([(TOY, (0,)), (images(size=(5, 6)), (0,))]), r"image size \(5, 6\), expected"),
        (lambda: datasets.class_groups([(TOY, (0,)), (images(max_value=16), (0,))]), "max_value 16, expected 255"),
        (lambda: datasets.rotations(TOY, ()), "needs at least one domain"),
        (lambda: datasets.rotations(TOY, (float("nan"),)), "angles must be finite numbers of degrees; found nan"),
        (lambda: datasets.rotations(images(size=(4, 6)), (0, 90)), "a turn by 90 degrees needs square images"),
        (lambda: datasets.permutations(TOY, 0), "num_domains must be a whole number, 1 or more; got 0"),
        (lambda: datasets.permutations(TOY, 2, seed=-1), "seed must be"),
    ],
)  # fmt: skip
def test_what_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda x: x[:, :-1], r"must give uint8\[3, 6, 6\], found uint8\[3, 5, 6\]"),
        (lambda x: x / 2, "found float64"),
        (lambda x: x | np.uint8(31), "gives the value 31; expected 0..16"),
    ],
)
def test_a_transform_that_gives_something_else(transform, message):
    with pytest.raises(DatasetError, match=message):
        Domain("odd", images(max_value=16), (0, 1), transform).train_images(ROWS)


def test_images_that_are_not_square_may_be_turned_upside_down():
    made = datasets.rotations(images(size=(4, 6)), (0, 180))
    (shown, original), _ = both(made[1])
    assert np.array_equal(shown, original[:, ::-1, ::-1])


def test_no_images():
    for made in (datasets.rotations(TOY, (45, 90)), datasets.permutations(TOY, 2), datasets.mild(TOY)):
        for domain in made.domains:
            assert domain.train_images(np.zeros(0, np.int64)).shape == (0, 6, 6)
