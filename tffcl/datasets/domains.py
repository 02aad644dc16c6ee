"""Domains: the same labels on ever other images, as domain-incremental learning has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from tffcl.datasets.image_dataset import ImageDataset
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
            if not isinstance(one, (int, np.integer)) or not 0 <= one < known:
                raise InputError(
                    f"domain {self.name!r}: {one!r} is no class of {self.images.name}, which has 0..{known - 1}"
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
    kind = "image"

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
        return [next(k for k, first in enumerate(sets) if first is one) for one in sets]
