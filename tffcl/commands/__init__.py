"""What the commands of `tffcl` do, and the flags that they share with the examples. Nothing heavy is imported here."""

from tffcl.commands.confedmade_options import ConFedMADEOptions, confedmade_flags
from tffcl.commands.entry import exit_with
from tffcl.commands.fedseit_options import FedSeITOptions, fedseit_flags
from tffcl.commands.fil_ver_options import FilVerOptions, fil_ver_flags, fil_ver_flags_without_method

__all__ = [
    "ConFedMADEOptions",
    "FedSeITOptions",
    "FilVerOptions",
    "confedmade_flags",
    "exit_with",
    "fedseit_flags",
    "fil_ver_flags",
    "fil_ver_flags_without_method",
]
