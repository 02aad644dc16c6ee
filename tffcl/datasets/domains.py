"""Domains: the same labels on ever other images, as domain-incremental learning has them.

Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal,
2021 (FIL-VER), section 5: permuted MNIST (section 5.1), and other classes under the same labels (figure 6).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Optional

import numpy as np

from tffcl.datasets import image_transforms
from tffcl.datasets.image_dataset import ImageDataset
from tffcl.datasets.settings import check_seed
from tffcl.errors import DatasetError, InputError

Transform = Callable[[np.ndarray], np.ndarray]


# Arrays have no single truth value, so a generated `==` would raise: data sets compare by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class Domain:
    """Some classes of an image set, seen through a fixed transform; the same for training and testing.

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
        for one in classes:
            if not _is_whole(one, 0) or one >= known:
                raise InputError(
                    f"domain {self.name!r}: {one!r} is no class of {self.images.name}, which has 0..{known - 1}"
                )
        if not classes or len(set(classes)) < len(classes):
            raise InputError(
                f"domain {self.name!r}: needs at least one class, each once; got {list(classes)}"
            )
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
        return self._shown(self.images.train_images[rows])

    def test_images(self, rows: np.ndarray) -> np.ndarray:
        """uint8 [n, h, w], likewise for the test images."""
        return self._shown(self.images.test_images[rows])

    def _labels(self, own: np.ndarray) -> np.ndarray:
        numbers_of = np.full(len(self.images.label_names), -1, np.int32)
        numbers_of[list(self.classes)] = np.arange(len(self.classes))
        return numbers_of[own]

    def _shown(self, images: np.ndarray) -> np.ndarray:
        if self.transform is None:
            return images
        shown = np.asarray(self.transform(images))
        if shown.dtype != np.uint8 or shown.shape != images.shape:
            raise DatasetError(
                f"domain {self.name!r}: its transform must give uint8{list(images.shape)}, found "
                f"{shown.dtype}{list(shown.shape)}"
            )
        if shown.size and shown.max() > self.images.max_value:
            raise DatasetError(
                f"domain {self.name!r}: its transform gives the value {shown.max()}; expected "
                f"0..{self.images.max_value}"
            )
        return shown


@dataclasses.dataclass(frozen=True, eq=False)
class Domains:
    """Domains with the same L labels, images of one size and one full intensity; task t is domain t.

    Attributes:
      name: what reports call the data.
      domains: at least one.
      label_names: L names.
    """

    name: str
    domains: tuple[Domain, ...]
    label_names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", tuple(self.domains))
        object.__setattr__(self, "label_names", tuple(self.label_names))
        if not self.domains:
            raise InputError(f"{self.name}: needs at least one domain")
        for domain in self.domains:
            for what, found, wanted in (
                ("labels", len(domain.classes), len(self.label_names)),
                ("image size", domain.images.train_images.shape[1:], self.image_size),
                ("max_value", domain.images.max_value, self.max_value),
            ):
                if found != wanted:
                    raise InputError(
                        f"{self.name}: domain {domain.name!r} has {what} {found}, expected {wanted} as in all others"
                    )

    def __len__(self) -> int:
        return len(self.domains)

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
        return [next(k for k, first in enumerate(sets) if first is one) for one in sets]


def rotations(images: ImageDataset, angles: Sequence[float] = (0, 90, 180, 270)) -> Domains:
    """All classes, turned counter-clockwise by one angle (degrees) in each domain; see `image_transforms.rotated`.

    Raises:
      InputError: no angle, or an odd number of quarter turns of images that are not square.
    """
    for angle in angles:
        if not _is_finite(angle):
            raise InputError(f"angles must be finite numbers of degrees; found {angle!r}")
        image_transforms.require_square(images.train_images, float(angle))
    turns = [
        (f"{angle:g} degrees", functools.partial(image_transforms.rotated, degrees=angle) if angle else None)
        for angle in angles
    ]
    return _transformed("rotations", images, turns)


def permutations(
    images: ImageDataset, num_domains: int = 10, seed: int = 0, *, keep_first: bool = False
) -> Domains:
    """All classes, the pixels in another random order in each domain; permuted MNIST in 10 domains is section 5.1.

    Args:
      images: the data set.
      num_domains: T.
      seed: decides the orders; domain k is the same for any number of domains.
      keep_first: leave the images of domain 0 as they are. By default they are permuted too, as in the paper.

    Raises:
      InputError: no domain, or a seed that is no seed.
    """
    check_seed(seed)
    if not _is_whole(num_domains, 1):
        raise InputError(f"num_domains must be a whole number, 1 or more; got {num_domains!r}")
    height, width = images.train_images.shape[1:]
    orders = image_transforms.random_orders(height * width, int(num_domains), int(seed))
    changes: list[tuple[str, Optional[Transform]]] = [
        (f"permutation {number}", functools.partial(image_transforms.permuted, order=order))
        for number, order in enumerate(orders, 1)
    ]
    if keep_first:
        changes[0] = ("as is", None)
    return _transformed("permutations", images, changes)


def mild(images: ImageDataset) -> Domains:
    """All classes in four domains close to each other: as is, mirrored, shifted, and with half the contrast.

    The shift is by a tenth of the height down and of the width to the right, rounded, and at least one pixel.
    """
    height, width = images.train_images.shape[1:]
    down, right = (max(1, round(size / 10)) for size in (height, width))
    return _transformed(
        "mild",
        images,
        [
            ("as is", None),
            ("mirrored", image_transforms.mirrored),
            ("shifted", functools.partial(image_transforms.shifted, down=down, right=right)),
            (
                "less contrast",
                functools.partial(image_transforms.less_contrast, max_value=images.max_value),
            ),
        ],
    )


def class_groups(groups: Sequence[tuple[ImageDataset, Sequence[int]]], name: Optional[str] = None) -> Domains:
    """Other classes under the same labels 0 .. L-1: domain t has label k for the images of class `groups[t][1][k]`.

    Args:
      groups: for each domain its images and L of their classes.
      name: of the whole; by default that of the image sets.

    Raises:
      InputError: a class that does not exist, groups of different sizes, or images of different sizes.
    """
    if not groups:
        raise InputError("groups is empty; expected images and classes for at least one domain")
    domains = [Domain(_group_name(images, classes), images, tuple(classes)) for images, classes in groups]
    names = name or "+".join(dict.fromkeys(images.name for images, _ in groups))
    return Domains(names, tuple(domains), tuple(map(str, range(len(domains[0].classes)))))


def mnist_fashion(mnist: ImageDataset, fashion: ImageDataset) -> Domains:
    """Four tasks of five classes: MNIST 0-4, MNIST 5-9, Fashion-MNIST 0-4, Fashion-MNIST 5-9.

    Raises:
      InputError: sets with fewer than ten classes, or images of different sizes.
    """
    halves = (range(5), range(5, 10))
    return class_groups([(images, tuple(half)) for images in (mnist, fashion) for half in halves])


def emnist_balanced(images: ImageDataset) -> Domains:
    """The first 40 classes in four tasks of ten, in their order (figure 6).

    Raises:
      InputError: a set with fewer than 40 classes.
    """
    return class_groups([(images, tuple(range(first, first + 10))) for first in range(0, 40, 10)])


def _transformed(
    how: str, images: ImageDataset, changes: Sequence[tuple[str, Optional[Transform]]]
) -> Domains:
    classes = tuple(range(len(images.label_names)))
    domains = [Domain(name, images, classes, transform) for name, transform in changes]
    return Domains(f"{images.name} {how}", tuple(domains), images.label_names)


def _is_whole(value: object, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= least


def _is_finite(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)


def _group_name(images: ImageDataset, classes: Sequence[int]) -> str:
    """For example "mnist 0-4", or "mnist 0,2,5" where the classes do not follow each other."""
    whole = len(classes) > 1 and list(classes) == list(range(classes[0], classes[0] + len(classes)))
    return (
        f"{images.name} {classes[0]}-{classes[-1]}"
        if whole
        else f"{images.name} {','.join(map(str, classes))}"
    )
