"""A labelled collection of grey images with its train and test parts."""

from __future__ import annotations

import dataclasses

import numpy as np

from tffcl.datasets.arrays import read_only
from tffcl.errors import DatasetError


# Arrays have no single truth value, so a generated `==` would raise: data sets compare by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class ImageDataset:
    """Grey images with labels; label ids index `label_names`.

    Attributes:
      name: what reports call the data set.
      train_images: uint8 [N, h, w], 0 (background) .. max_value, read-only.
      train_labels: int32 [N], each in 0 .. len(label_names) - 1, read-only.
      test_images: uint8 [M, h, w].
      test_labels: int32 [M].
      label_names: the label space, in the order of the ids.
      max_value: the value of full intensity: 255, or 16 for scikit-learn's digits.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    label_names: tuple[str, ...]
    max_value: int = 255
    kind = "image"

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images = np.asarray(getattr(self, f"{part}_images"))
            labels = np.asarray(getattr(self, f"{part}_labels"))
            self._check(part, images, labels)
            object.__setattr__(self, f"{part}_images", read_only(images))
            object.__setattr__(self, f"{part}_labels", read_only(labels.astype(np.int32)))
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise DatasetError(
                f"{self.name}: training images are {_by(self.train_images)}, test images {_by(self.test_images)}; "
                "they must be of one size"
            )

    def _check(self, part: str, images: np.ndarray, labels: np.ndarray) -> None:
        if images.dtype != np.uint8 or images.ndim != 3:
            raise DatasetError(
                f"{self.name}: {part}_images must be uint8 [N, h, w], found {images.dtype}{list(images.shape)}"
            )
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
            raise DatasetError(
                f"{self.name}: {part}_labels must be {len(images)} whole numbers, one for each image, found "
                f"{labels.dtype}{list(labels.shape)}"
            )
        wrong = np.flatnonzero((labels < 0) | (labels >= len(self.label_names)))
        if wrong.size:
            raise DatasetError(
                f"{self.name}: {part}_labels: row {wrong[0]} has label {labels[wrong[0]]}; expected "
                f"0..{len(self.label_names) - 1}"
            )
        if images.size and images.max() > self.max_value:
            raise DatasetError(
                f"{self.name}: {part}_images hold the value {images.max()}; expected 0..{self.max_value}"
            )


def _by(images: np.ndarray) -> str:
    return " x ".join(map(str, images.shape[1:]))
