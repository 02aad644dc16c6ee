"""Small tasks for each kind of network: what `ClientTask` holds for documents, binary vectors, and vectors to embed."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import rehearsing
import small

from tffcl.program import ClientTask


def documents(seed):
    test, train, few = (small.examples(count, seed) for count in (5, 8, 2))
    return ClientTask(small.context(), train, few, small.context(), test, small.CLASSES)


def bits(seed):
    def part(count):
        return OrderedDict(x=np.random.default_rng(seed).integers(0, 2, (count, 4)).astype(np.uint8))

    context = OrderedDict(observed=np.ones(4, np.float32))
    return ClientTask(context, part(8), part(2), context, part(5))


def vectors(seed):
    test, train, few = (rehearsing.examples(count, seed) for count in (5, 8, 2))
    return ClientTask({}, train, few, {}, test, rehearsing.CLASSES)


class Data:
    """Two tasks of some clients, each of its own seed."""

    num_tasks = 2

    def __init__(self, make, num_clients=2):
        self.num_clients, self._make = num_clients, make

    def task(self, client, task):
        return self._make(2 * client + task)


class Recorder:
    """A reporter that keeps all events."""

    def __init__(self):
        self.events = []

    def start(self, num_tasks, num_rounds, past):
        pass

    def report(self, event):
        self.events.append(event)

    def close(self):
        pass
