"""tffcl: federated continual learning on TensorFlow Federated."""

__version__ = "0.1.0"
