"""Experiments: a method, data, and every option of a run, each declared once; what runs them is a `Plan`."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from tffcl.algorithms import registry
from tffcl.algorithms.method import Method
from tffcl.client_works.options import LocalTraining
from tffcl.errors import InputError
from tffcl.experiment import loading
from tffcl.experiment.groups import (
    GROWING,
    SCENARIO_SUPPLIED,
    SCENARIOS,
    Data,
    Output,
    Privacy,
    Runtime,
    Stream,
    defaults_of,
)
from tffcl.models.registry import NetworkPart, network_of
from tffcl.options import Field, OptionError, checked, fields_of, flat, options_of, to_toml
from tffcl.program.results import Settings
from tffcl.runtime import quiet
from tffcl.transfers.options import SUPPLIED as TRANSFER_SUPPLIED
from tffcl.transfers.options import TRANSFERS

if TYPE_CHECKING:
    from tffcl.experiment.plan import Plan
    from tffcl.program.results import Results


OF_KIND = ("text_column", "features")  # by these a table is one of texts, and data are vectors


@dataclasses.dataclass(frozen=True, init=False)
class Experiment:
    """One run, before its data are at hand.

    >>> experiment = Experiment("fedseit", data="sample", num_rounds=2)
    >>> experiment.num_rounds, experiment.num_epochs, experiment.top_k
    (2, 10, 3)

    Options are attributes; what is not given has the default that suits method and data. `tffcl run METHOD --help-all`
    shows all of them, `groups` are the dataclasses that declare them.

    Args:
      method: a name of `tffcl list`, FILE.py:NAME, either of them with "@" and a method whose paper's conditions it is
        run under ("fedprox@confedmade"), or a `Method`.
      data: what is learned from: a name, a table, a folder, FILE.py:NAME, or a data set of `tffcl.datasets`, as
        `from_arrays`, `from_frames` and `from_texts` make it.
      network: a name of `tffcl list`, FILE.py:NAME, or a function that makes a Keras model of an input shape and a
        number of classes; None for what suits the data.
      **options: by name.

    Raises:
      InputError: no such method, network or option, or a value that an option does not take.
    """

    named: Mapping[str, Any]  # method, data and network as they were given
    method: Method
    data: Any
    network: Optional[NetworkPart]
    kind: str
    own: Mapping[str, type]
    given: Mapping[str, Any]

    def __init__(
        self, method: Union[str, Method] = "fedseit", *, data: Any = None, network: Any = None, **options: Any
    ):
        quiet.quiet_logs()  # a file that a part is named by may be the first to import TensorFlow
        chosen = registry.find_method(method) if isinstance(method, str) else method
        named = {"method": registry.reference_of(method), "data": data, "network": network}
        for name, value in (("named", named), ("method", chosen), ("data", data)):
            object.__setattr__(self, name, value)
        kind = loading.kind_of(chosen, data, network, options.get("text_column"), options.get("features"))
        for name, value in (
            ("kind", kind),
            ("network", network_of(network, chosen, kind)),
            ("own", _own_options(data, options)),
        ):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "given", self._checked(options))
        self._check_together()
        chosen.check(self)

    def _checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        names = [field.name for _, group in self.group_types for field in fields_of(group)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise OptionError(twice, "is declared by two parts of this run; give your own another name")
        known = self.fields
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(sorted(known))}"
                raise OptionError(name, f"is no option of {self.method.name} on {self.kind} data{hint}")
        values = {name: checked(known[name], value) for name, value in options.items()}
        scenario = self._value("scenario", values)
        if scenario == "domains" and self.kind != "image":
            raise OptionError(
                "scenario",
                f"domains are rotations and permutations of images, and here are {self.kind} data; take non-iid or "
                "sequence",
            )
        for name in values:
            declared = known[name].option
            if not declared.suits(self.kind, scenario):
                raise OptionError(
                    name, f"is for {' or '.join(declared.only)}; here are {self.kind} data in the scenario {scenario}"
                )
        if values.get("assign"):
            values.update(num_clients=len(values["assign"]), num_tasks=len(values["assign"][0]))
        return values

    def _check_together(self) -> None:
        """Raises OptionError for options of several groups that contradict each other, or do not suit the data."""
        self.groups  # noqa: B018 - those of one group
        if (self.clients_per_round or 0) > self.num_clients:
            raise OptionError(
                "clients_per_round", f"{self.clients_per_round} is more than --num-clients {self.num_clients}"
            )
        self._check_foreign()
        if self.dp_base_noise is not None and self.method.clients != "federated":
            raise OptionError(
                "dp_base_clip", f"{self.method.name} has no updates of several clients that could be summed"
            )
        if self.scenario in GROWING:
            self._check_growing()
        elif self.method.growing:
            raise OptionError(
                "scenario", f"{self.method.name} is for one growing head: {' or '.join(GROWING)}; found {self.scenario}"
            )
        if self.scenario == "domains" and isinstance(self.data, str):
            loading.check_domains(self.data, self.domains)
        for name in ("text_column", "label_column", "client_column"):
            if self.given.get(name, self.defaults.get(name)) != self.defaults.get(name) and not loading.is_table(
                self.data
            ):
                raise OptionError(name, f"is for a table of your own, found {self.data_name or 'no data'}")
        if self.scenario != "domains" and self.data in loading.PAIRS:
            raise OptionError("scenario", f"{self.data} are domains of images, found {self.scenario}; take domains")

    def _check_foreign(self) -> None:
        """Raises OptionError for what cannot go with how foreign adaptives enter the network."""
        others = self.method.foreign == "aligned" and self.selection == "previous" and not self.include_own
        if others and self.num_clients < 2:
            raise OptionError(
                "num_clients",
                f"{self.method.name} learns from the previous tasks of other clients and needs 2 or more, found "
                f"{self.num_clients}; fedweit or local has one",
            )
        if self.values.get("foreign_projection") == "mean" and self.method.foreign != "aligned":
            raise OptionError(
                "foreign_projection",
                f"mean is for W_f, which aligns foreign features: fedseit has it, {self.method.name} has none",
            )

    def _check_growing(self) -> None:
        """Raises OptionError for what cannot go with one head over all classes seen."""
        natural, named = self.partition == "natural", self.client_column is not None
        if (named and not natural) or (natural and not named and isinstance(self.data, str)):
            raise OptionError(
                "client_column", "needs --partition natural, which in turn needs this column of a table of numbers"
            )
        if self.kind == "binary":
            raise OptionError("scenario", f"{self.scenario} has classes, and here a density is learned, without any")
        if self.method.by_task:
            self._check_by_task()
        if self.client_dir is not None:
            raise OptionError(
                "client_dir",
                f"in {self.scenario} past tasks are scored under the newest classes, or each by the parameters of all, "
                "and files at clients hold them as they were; leave --client-dir out",
            )

    def _check_by_task(self) -> None:
        """Raises OptionError for what cannot go with parameters for each task where a class may be of any task."""
        name = self.method.name
        if self.scenario != "class-incremental":
            raise OptionError(
                "scenario",
                f"{name} keeps parameters for each task, and in {self.scenario} all tasks have the same classes, so "
                "that no task is to be known or inferred; take class-incremental, or fedavg, lwf, er, afcl",
            )
        if self.train_classes != "seen":
            raise OptionError("train_classes", f"{name} has a head for each task, whose classes alone compete")
        if self.task_at_test == "entropy" and self.labels_per_task < 2:
            raise OptionError(
                "task_at_test",
                "entropy: of a task with one class every head is certain; take --labels-per-task 2 or more, or known",
            )

    @property
    def data_name(self) -> str:
        """What the data are called; the method's usual ones where none are given."""
        return loading.name_of(self.data) or ""

    @functools.cached_property
    def group_types(self) -> tuple[tuple[str, type], ...]:
        """(title, dataclass) of every group of options."""
        titled: dict[str, tuple[type, ...]] = {
            "data": (Data, *self._own("data")),
            "stream": (Stream, *self._own("stream")),
            "network": () if self.network is None else self.network.options,
            "training": (Settings, LocalTraining),
            "method": (*self.method.option_groups(), *self._own("method")),
            "privacy": (Privacy,),
            "runtime": (Runtime,),
            "output": (Output,),
        }
        return tuple((title, each) for title, groups in titled.items() for each in groups)

    def _own(self, title: str) -> tuple[type, ...]:
        return (self.own[title],) if title in self.own else ()

    @functools.cached_property
    def fields(self) -> dict[str, Field]:
        """Every option by its name, but `data` and `network`."""
        return {
            field.name: field for _, group in self.group_types for field in fields_of(group) if field.name != "data"
        }

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """Every option's default for this method and these data."""
        derived = {
            **defaults_of(self.method, self.kind, self.data_name),
            **getattr(self.data, "defaults", {}),  # of a data set that is no name
        }
        return {name: derived.get(name, field.default) for name, field in self.fields.items()}

    def _value(self, name: str, given: Mapping[str, Any]) -> Any:
        return given[name] if name in given else self.defaults[name]

    @functools.cached_property
    def values(self) -> dict[str, Any]:
        """Every option's value."""
        return {**self.defaults, **self.given}

    @functools.cached_property
    def groups(self) -> dict[type, Any]:
        """The dataclasses of options with their values."""
        values = self.values
        made: dict[type, Any] = {}
        for _, kind in self.group_types:
            names = [field.name for field in fields_of(kind)]
            given = {name: values[name] for name in names if name != "data"}
            # Stand-ins for what only the data tell: a width, a number of labels.
            sizes = {
                field.name: 1
                for field in dataclasses.fields(kind)
                if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            }
            made[kind] = kind(**given, **sizes)
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("named", "method", "data", "network", "kind", "own", "given"):
            raise AttributeError(name)
        fields = self.fields
        if name not in fields:
            raise AttributeError(f"{type(self).__name__} of {self.method.name} has no option {name!r}")
        return self._value(name, self.given)

    def replace(self, **options: Any) -> Experiment:
        """The same experiment with other options; `method`, `data` and `network` are options here."""
        return Experiment(**{**self.named, **self.given, **options})

    def control(self, method: str, **options: Any) -> Experiment:
        """Another method on the same stream under the same conditions, with those of the given options that it has.

        >>> Experiment("fedseit", data="sample", selection="sit", num_rounds=4).control("fedavg").given
        {'num_rounds': 4}
        """
        chosen = registry.find_method(method)
        # What decides which options there are.
        deciding = {*OF_KIND, "scenario", *(("selection",) if chosen.foreign is not None else ())}
        own = {name: value for name, value in self.given.items() if name in deciding}
        shared = Experiment(chosen, data=self.data, network=self.named["network"], **own).fields
        kept = {name: value for name, value in self.given.items() if name in shared}
        if chosen.foreign != "aligned":
            kept.pop("foreign_projection", None)
        return Experiment(**{**self.named, "method": method, **kept, **options})

    @property
    def label(self) -> str:
        """The method with what sets it apart, for tables.

        >>> Experiment("fedseit", data="trec6", selection="sit", share_dense=True).label
        'fedseit+sit3+dls'
        """
        usual, groups = self.defaults, self.groups
        marks = [
            field.option.mark(groups[kind])
            for _, kind in self.group_types
            for field in fields_of(kind)
            if field.option.mark is not None and self.values[field.name] != usual[field.name]
        ]
        return self.method.name + "".join(marks)

    def config(self) -> dict[str, Any]:
        """What config.json records of the options: all but where things lie, and only what matters here."""
        usual = self.defaults
        values = {
            field.name: getattr(group, field.name) for kind, group in self.groups.items() for field in fields_of(kind)
        }
        recorded = {
            name: values[name]
            for name, field in self.fields.items()
            if field.option.recorded
            and not (field.option.sparse and values[name] == field.default and usual[name] == field.default)
            and field.option.suits(self.kind, self.scenario)
        }
        if self._named_network is not None:
            recorded["network"] = self._named_network
        return {**recorded, "method": self.label}

    @property
    def _named_network(self) -> Optional[str]:
        """The network's name, where it is not what suits the data."""
        if self.network is None:
            return None
        try:
            usual = network_of(
                None, self.method, loading.kind_of(self.method, self.data, None, self.text_column, self.features)
            )
        except InputError:  # only with this network does the method take such data
            usual = None
        return None if usual is not None and usual.name == self.network.name else self.network.name

    def to_toml(self) -> str:
        """All options as a configuration file, for `--config` and `from_config`.

        Raises:
          OptionError: method, data or network were given as an object, which no file can name.
        """
        for name, value in self.named.items():
            if not isinstance(value, (str, type(None))):
                raise OptionError(name, f"is a {type(value).__name__}; a file holds names and FILE.py:NAME alone")
        titled: dict[str, dict[str, Any]] = {}
        for title, kind in self.group_types:
            group = titled.setdefault(title, {title: self.named[title]} if title in self.named else {})
            suitable = [field for field in fields_of(kind) if field.option.suits(self.kind, self.scenario)]
            group.update({field.name: self.values[field.name] for field in suitable if field.name != "data"})
        titled.setdefault("method", {"method": self.named["method"]})
        return to_toml(titled.items())

    @classmethod
    def from_config(cls, document: Mapping[str, Any], **options: Any) -> Experiment:
        """The experiment that a configuration file describes; `options` stand over it."""
        values = {**flat(document), **options}
        return cls(values.pop("method", "fedseit"), **values)

    def plan(self) -> Plan:
        """Loads the data and divides them: all that a run is built of."""
        quiet.announce_import(self.quiet)
        from tffcl.experiment.plan import Plan

        return Plan(self)

    def run(self) -> Results:
        """Runs the method, and returns the results, which stand in `results.directory` too."""
        return self.plan().run()


def _own_options(data: Any, options: Mapping[str, Any]) -> dict[str, type]:
    """Options that parts of the user's declare, by the title of their group; a network and a method have theirs."""
    declared = {"data": loading.own_options(data)}
    for title, name, registry_of, supplied in (
        ("stream", "scenario", SCENARIOS, SCENARIO_SUPPLIED),
        ("method", "selection", TRANSFERS, TRANSFER_SUPPLIED),
    ):
        if registry_of.is_own(options.get(name)):
            declared[title] = options_of(registry_of.get(options[name]), supplied)
    return {title: group for title, group in declared.items() if group is not None}
