"""Networks for the clients, and the way from and to Keras."""

from tffcl.models.decompose import decompose
from tffcl.models.embedding_classifier import EmbeddingClassifier
from tffcl.models.encoders import (
    Encoder,
    FrozenEncoder,
    IdentityEncoder,
    ImageEncoder,
    TextEncoder,
    VectorEncoder,
)
from tffcl.models.keras_network import KerasNetwork
from tffcl.models.made import ABSENT, MADENetwork
from tffcl.models.made_config import MADEConfig
from tffcl.models.made_distribution import MADE
from tffcl.models.mlp import MLP
from tffcl.models.network import Classifier, Network
from tffcl.models.text_cnn import AlignedTextCNN, TextCNN, TextCNNConfig

__all__ = [
    "ABSENT",
    "AlignedTextCNN",
    "Classifier",
    "EmbeddingClassifier",
    "Encoder",
    "FrozenEncoder",
    "IdentityEncoder",
    "ImageEncoder",
    "KerasNetwork",
    "MADE",
    "MADEConfig",
    "MADENetwork",
    "MLP",
    "Network",
    "TextCNN",
    "TextCNNConfig",
    "TextEncoder",
    "VectorEncoder",
    "decompose",
]
