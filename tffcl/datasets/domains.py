"""Domains: the same labels on other images in each, as domain-incremental learning has them; and presets of them.

Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal,
2021 (FIL-VER), section 5: permuted MNIST (section 5.1), and other classes under the same labels (figure 6).
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
from scipy import ndimage

from tffcl.datasets.arrays import ImageDataset
from tffcl.errors import DatasetError, InputError, check_whole, is_number

Transform = Callable[[np.ndarray], np.ndarray]


# Arrays have no single truth value, so a generated `==` would raise: data sets compare by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class Domain:
    """Some classes of an image set, seen through a fixed transform; the same for training and testing.

    Shown with `rotations`.

    Attributes:
      name: what reports call the domain.
      images: the images and their own labels.
      classes: label k of the domain is `classes[k]` of the images; images of other classes do not belong to it.
      transform: from uint8 [n, h, w] to the same shape and dtype, image by image; None leaves images as they are.
    """

    name: str
    images: ImageDataset
    classes: tuple[int, ...]
    transform: Optional[Transform] = None

    def __post_init__(self) -> None:
        classes, known = tuple(self.classes), len(self.images.label_names)
        for label in classes:
            if not isinstance(label, (int, np.integer)) or not 0 <= label < known:
                raise InputError(
                    f"domain {self.name!r}: {label!r} is no class of {self.images.name}, which has 0..{known - 1}"
                )
        if not classes or len(set(classes)) < len(classes):
            raise InputError(f"domain {self.name!r}: needs at least one class, each once; got {list(classes)}")
        object.__setattr__(self, "classes", tuple(map(int, classes)))

    @property
    def train_labels(self) -> np.ndarray:
        """int32 [N], the domain's label of each training image; -1 for one that does not belong to it."""
        return self._labels(self.images.train_labels)

    @property
    def test_labels(self) -> np.ndarray:
        """int32 [M], likewise for the test images."""
        return self._labels(self.images.test_labels)

    def train_images(self, rows: np.ndarray) -> np.ndarray:
        """uint8 [n, h, w], the training images at `rows` (int [n]) as the domain shows them."""
        return self._transformed(self.images.train_images[rows])

    def test_images(self, rows: np.ndarray) -> np.ndarray:
        """uint8 [n, h, w], likewise for the test images."""
        return self._transformed(self.images.test_images[rows])

    def _labels(self, own: np.ndarray) -> np.ndarray:
        label_of_class = np.full(len(self.images.label_names), -1, np.int32)
        label_of_class[list(self.classes)] = np.arange(len(self.classes))
        return label_of_class[own]

    def _transformed(self, images: np.ndarray) -> np.ndarray:
        if self.transform is None:
            return images
        shown = np.asarray(self.transform(images))
        where, max_value = f"domain {self.name!r}: its transform", self.images.max_value
        if shown.dtype != np.uint8 or shown.shape != images.shape:
            raise DatasetError(f"{where} must give uint8{list(images.shape)}, found {shown.dtype}{list(shown.shape)}")
        if shown.size and shown.max() > max_value:
            raise DatasetError(f"{where} gives the value {shown.max()}; expected 0..{max_value}")
        return shown


@dataclasses.dataclass(frozen=True, eq=False)
class Domains:
    """Domains with the same L labels, images of one size and one full intensity; task t is domain t.

    Shown with `rotations`.

    Attributes:
      name: what reports call the data.
      domains: at least one.
      label_names: L names.
    """

    name: str
    domains: tuple[Domain, ...]
    label_names: tuple[str, ...]
    kind = "image"

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", tuple(self.domains))
        object.__setattr__(self, "label_names", tuple(self.label_names))
        if not self.domains:
            raise InputError(f"{self.name}: needs at least one domain")
        for domain in self.domains:
            for quantity, found, expected in (
                ("labels", len(domain.classes), len(self.label_names)),
                ("image size", domain.images.train_images.shape[1:], self.image_size),
                ("max_value", domain.images.max_value, self.max_value),
            ):
                if found != expected:
                    raise InputError(
                        f"{self.name}: domain {domain.name!r} has {quantity} {found}, expected {expected} as in all "
                        "others"
                    )

    def __len__(self) -> int:
        return len(self.domains)

    @property
    def defaults(self) -> dict[str, Any]:
        """Options of an experiment on these data, where none are given."""
        return {"scenario": "domains", "num_tasks": len(self)}

    def __getitem__(self, number: int) -> Domain:
        return self.domains[number]

    @property
    def num_labels(self) -> int:
        """L."""
        return len(self.label_names)

    @property
    def image_size(self) -> tuple[int, int]:
        """(h, w)."""
        height, width = self.domains[0].images.train_images.shape[1:]
        return height, width

    @property
    def max_value(self) -> int:
        """The value of full intensity."""
        return self.domains[0].images.max_value

    @property
    def train_labels(self) -> list[np.ndarray]:
        """For each domain int32 [N]; see `Domain.train_labels`."""
        return [domain.train_labels for domain in self.domains]

    @property
    def test_labels(self) -> list[np.ndarray]:
        """For each domain int32 [M]."""
        return [domain.test_labels for domain in self.domains]

    @property
    def shared_base(self) -> list[int]:
        """For each domain the number of the first one with the same underlying images."""
        sets = [domain.images for domain in self.domains]
        return [next(k for k, first in enumerate(sets) if first is images) for images in sets]


def rotated(images: np.ndarray, degrees: float) -> np.ndarray:
    """uint8 [N, h, w] turned counter-clockwise about the middle; what comes in at the corners is 0.

    Exact for multiples of 90, else bilinear and rounded.

    >>> rotated(np.array([[[1, 2], [3, 4]]], np.uint8), 90).tolist()
    [[[2, 4], [1, 3]]]
    """
    quarters, rest = divmod(degrees, 90)
    if rest == 0:
        return np.ascontiguousarray(np.rot90(images, int(quarters), axes=(1, 2)))
    turned = ndimage.rotate(images.astype(np.float32), degrees, axes=(2, 1), reshape=False, order=1)
    return np.clip(np.rint(turned), 0, 255).astype(np.uint8)


def permuted(images: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """The pixels in another order: pixel i, row by row, is pixel `order[i]` of the original.

    >>> permuted(np.array([[[1, 2], [3, 4]]], np.uint8), (3, 0, 1, 2)).tolist()
    [[[4, 1], [2, 3]]]
    """
    return images.reshape(len(images), len(order))[:, list(order)].reshape(images.shape)


def _mirrored(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images[:, :, ::-1])


def _shifted(images: np.ndarray, down: int, right: int) -> np.ndarray:
    """Moved by whole pixels; what comes in is 0, what goes out is lost."""
    height, width = images.shape[1:]
    moved = np.zeros_like(images)
    moved[:, down:, right:] = images[:, : height - down, : width - right]
    return moved


def _less_contrast(images: np.ndarray, max_value: int) -> np.ndarray:
    """Half the contrast about the middle grey: v becomes v / 2 + max_value / 4, rounded down."""
    return ((2 * images.astype(np.uint16) + max_value) // 4).astype(np.uint8)


def rotations(images: ImageDataset, angles: Sequence[float] = (0, 90, 180, 270)) -> Domains:
    """All classes, turned counter-clockwise by one angle (degrees) in each domain; see `rotated`.

    >>> from tffcl.datasets import images
    >>> [domain.name for domain in rotations(images.load_images("digits"), (0, 90)).domains]
    ['0 degrees', '90 degrees']

    Raises:
      InputError: no angle, or an odd number of quarter turns of images that are not square.
    """
    height, width = images.train_images.shape[1:]
    for angle in angles:
        if not is_number(angle):
            raise InputError(f"angles must be finite numbers of degrees; found {angle!r}")
        if height != width and angle % 180 == 90:
            raise InputError(
                f"a turn by {angle:g} degrees needs square images, found {height} x {width}; use multiples of 180"
            )
    turns = [(f"{angle:g} degrees", functools.partial(rotated, degrees=angle) if angle else None) for angle in angles]
    return _transforms("rotations", images, turns)


def permutations(images: ImageDataset, num_domains: int = 10, seed: int = 0, *, keep_first: bool = False) -> Domains:
    """All classes, the pixels in another random order in each domain; permuted MNIST in 10 domains is section 5.1.

    >>> from tffcl.datasets import images
    >>> len(permutations(images.load_images("digits"), num_domains=3).domains)
    3

    Args:
      images: the data set.
      num_domains: T.
      seed: decides the orders; domain k is the same for any number of domains.
      keep_first: leave the images of domain 0 as they are. By default they are permuted too, as in the paper.

    Raises:
      InputError: no domain, or a seed that is no seed.
    """
    check_whole("seed", seed, 0)
    check_whole("num_domains", num_domains, 1)
    shuffle = random.Random(int(seed)).shuffle  # stable between releases of Python
    transforms: list[tuple[str, Optional[Transform]]] = []
    for number in range(1, num_domains + 1):
        order = list(range(images.train_images[0].size))
        shuffle(order)
        transforms.append((f"permutation {number}", functools.partial(permuted, order=tuple(order))))
    if keep_first:
        transforms[0] = ("as is", None)
    return _transforms("permutations", images, transforms)


def mild(images: ImageDataset) -> Domains:
    """All classes in four domains close to each other: as is, mirrored, shifted, and with half the contrast.

    The shift is by a tenth of the height down and of the width to the right, rounded, and at least one pixel.

    >>> from tffcl.datasets import images
    >>> [domain.name for domain in mild(images.load_images("digits")).domains]
    ['as is', 'mirrored', 'shifted', 'less contrast']
    """
    down, right = (max(1, round(size / 10)) for size in images.train_images.shape[1:])
    transforms: list[tuple[str, Optional[Transform]]] = [
        ("as is", None),
        ("mirrored", _mirrored),
        ("shifted", functools.partial(_shifted, down=down, right=right)),
        ("less contrast", functools.partial(_less_contrast, max_value=images.max_value)),
    ]
    return _transforms("mild", images, transforms)


def _transforms(preset: str, images: ImageDataset, transforms: Sequence[tuple[str, Optional[Transform]]]) -> Domains:
    classes = tuple(range(len(images.label_names)))
    domains = tuple(Domain(name, images, classes, transform) for name, transform in transforms)
    return Domains(f"{images.name} {preset}", domains, images.label_names)


def class_groups(groups: Sequence[tuple[ImageDataset, Sequence[int]]], name: Optional[str] = None) -> Domains:
    """Other classes under the same labels 0 .. L-1: domain t has label k for the images of class `groups[t][1][k]`.

    >>> from tffcl.datasets import images
    >>> digits = images.load_images("digits")
    >>> class_groups([(digits, (0, 1)), (digits, (2, 3))]).label_names
    ('0', '1')

    Args:
      groups: for each domain its images and L of their classes.
      name: of the whole; by default that of the image sets.

    Raises:
      InputError: a class that does not exist, groups of different sizes, or images of different sizes.
    """
    if not groups:
        raise InputError("groups is empty; expected images and classes for at least one domain")
    domains = []
    for images, classes in groups:
        # "mnist 0-4", or "mnist 0,2,5" where the classes do not follow each other
        run = len(classes) > 1 and list(classes) == list(range(classes[0], classes[0] + len(classes)))
        shown = f"{classes[0]}-{classes[-1]}" if run else ",".join(map(str, classes))
        domains.append(Domain(f"{images.name} {shown}", images, tuple(classes)))
    name = name or "+".join(dict.fromkeys(images.name for images, _ in groups))
    return Domains(name, tuple(domains), tuple(map(str, range(len(domains[0].classes)))))


def mnist_fashion(mnist: ImageDataset, fashion: ImageDataset) -> Domains:
    """Four tasks of five classes: MNIST 0-4, MNIST 5-9, Fashion-MNIST 0-4, Fashion-MNIST 5-9.

    Shown with `rotations`.

    Raises:
      InputError: sets with fewer than ten classes, or images of different sizes.
    """
    halves = (range(5), range(5, 10))
    return class_groups([(images, tuple(half)) for images in (mnist, fashion) for half in halves])


def emnist_balanced(images: ImageDataset) -> Domains:
    """The first 40 classes in four tasks of ten, in their order (figure 6).

    Shown with `rotations`.

    Raises:
      InputError: a set with fewer than 40 classes.
    """
    return class_groups([(images, tuple(range(first, first + 10))) for first in range(0, 40, 10)])
