"""What each room exports, name by name: a change of the public interface is a change of this list."""

import importlib

import pytest

ROOMS = {
    "aggregators": ["SparseMeanFactory", "gated"],
    "algorithms": ["build_decomposed", "build_fed_avg", "build_fedseit", "build_fedweit", "build_local"],
    "client_works": [
        "DecomposedWork",
        "Decomposition",
        "FusedAdam",
        "LocalOptimizer",
        "LocalTraining",
        "PlainWork",
        "export_keras_model",
    ],
    "datasets": [
        "EncodedTextDataset",
        "TextDataset",
        "WordVectors",
        "available",
        "encode",
        "from_directory",
        "from_files",
        "from_texts",
        "load",
        "load_word_vectors",
        "tokenise",
        "train_word_vectors",
    ],
    "finalizers": ["build_server_update"],
    "layers": [
        "AutoregressiveMask",
        "DecomposedConv1D",
        "DecomposedConv2D",
        "DecomposedDense",
        "DecomposedMaskedDense",
        "ForeignAlignment",
        "KernelLayout",
        "MaskedDense",
        "VectorLayout",
    ],
    "metrics": [
        "average_accuracy",
        "backward_transfer",
        "dense_bytes",
        "forgetting",
        "forward_transfer",
        "mean_of_known",
        "score_tensor",
        "sparse_bytes",
        "task_averaged_test_accuracy",
    ],
    "models": [
        "AlignedTextCNN",
        "Classifier",
        "KerasNetwork",
        "MADEConfig",
        "MADENetwork",
        "Network",
        "TextCNN",
        "TextCNNConfig",
        "decompose",
    ],
    "program": [
        "ClientData",
        "ClientStore",
        "ClientTask",
        "ProgressBar",
        "Released",
        "Reporter",
        "Results",
        "TextClientData",
        "merge",
        "project",
        "run_program",
    ],
    "reports": [
        "accuracy_matrix_table",
        "load_history",
        "load_results",
        "plot_accuracy_matrix",
        "plot_accuracy_per_round",
        "plot_communication",
        "results_table",
        "write_plots",
    ],
    "runtime": ["LocalRuntime", "Worker", "local", "quiet_logs", "set_local"],
    "streams": ["Task", "TaskStream", "iid", "non_iid", "overlapping"],
    "templates": ["ClientWork", "ContinualProcess", "FinalizerProcess", "compose_continual_process"],
    "transfers": [
        "SIT",
        "AllPast",
        "KnowledgeBase",
        "NoTransfer",
        "PreviousTask",
        "RandomTask",
        "Sampled",
        "Transfer",
        "Zeroed",
        "build_sit_decision",
        "document_vectors",
    ],
}


@pytest.mark.parametrize("room", ROOMS)
def test_exports(room):
    module = importlib.import_module(f"tffcl.{room}")
    assert sorted(module.__all__) == sorted(ROOMS[room])
    for name in module.__all__:
        assert getattr(module, name).__doc__, f"{room}.{name} says nothing of itself"
