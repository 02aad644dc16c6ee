"""A request that fails: the worker is lost, or the request was wrong, whatever code gRPC has for it."""

from __future__ import annotations

import contextlib
from concurrent import futures

import grpc
import pytest
from tensorflow_federated.proto.v0 import executor_pb2, executor_pb2_grpc

from tffcl.runtime.executor import WorkerStub

CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
OF_THE_WORKER = ("UNAVAILABLE", "FAILED_PRECONDITION", "CANCELLED", "DEADLINE_EXCEEDED")


class Refusing(executor_pb2_grpc.ExecutorGroupServicer):
    """Answers a probe; every computation ends with one code, and with the words of a connection that breaks."""

    def __init__(self, code):
        self.code = code

    def GetExecutor(self, request, context):
        return executor_pb2.GetExecutorResponse()

    def DisposeExecutor(self, request, context):
        return executor_pb2.DisposeExecutorResponse()

    def Compute(self, request, context):
        context.abort(self.code, "Stream removed")


class Lost(Exception):
    pass


@contextlib.contextmanager
def serving(code):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    executor_pb2_grpc.add_ExecutorGroupServicer_to_server(Refusing(code), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    stub = WorkerStub(f"127.0.0.1:{port}", Lost)
    with contextlib.closing(stub):
        yield server, stub
    server.stop(None).wait()


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_worker_that_does_not_answer_afterwards_is_lost_whatever_the_code(code):
    with serving(code) as (server, stub):
        refuse = stub._stub.Compute

        def and_die(request, timeout):
            try:
                return refuse(request, timeout=timeout)
            finally:
                server.stop(None).wait()

        stub._stub.Compute = and_die
        with pytest.raises(Lost, match=rf"{code.name}: Stream removed|not done|is not a TFF worker"):
            stub.compute(executor_pb2.ComputeRequest())


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_worker_that_answers_has_refused_the_request(code):
    with serving(code) as (_, stub), pytest.raises(Lost if code.name in OF_THE_WORKER else grpc.RpcError):
        stub.compute(executor_pb2.ComputeRequest())
