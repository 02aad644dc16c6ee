"""Domains made of image sets: turned, permuted, slightly changed, or other classes under the same labels.

Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal,
2021 (FIL-VER), section 5: permuted MNIST (section 5.1), and other classes under the same labels (figure 6).
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Sequence
from typing import Optional

from tffcl.datasets import image_transforms
from tffcl.datasets.domains import Domain, Domains, Transform
from tffcl.datasets.image_dataset import ImageDataset
from tffcl.datasets.settings import check_seed
from tffcl.errors import InputError


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


def permutations(images: ImageDataset, num_domains: int = 10, seed: int = 0, *, keep_first: bool = False) -> Domains:
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
            ("less contrast", functools.partial(image_transforms.less_contrast, max_value=images.max_value)),
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


def _transformed(how: str, images: ImageDataset, changes: Sequence[tuple[str, Optional[Transform]]]) -> Domains:
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
    return f"{images.name} {classes[0]}-{classes[-1]}" if whole else f"{images.name} {','.join(map(str, classes))}"
