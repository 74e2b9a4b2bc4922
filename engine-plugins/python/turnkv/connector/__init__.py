"""What engine connectors with a scheduler side and worker sides have in common, as vLLM's and TensorRT-LLM's have.

Owns: jobs, lookups, sessions, saves, loads, and what they came to. Must not know: any engine; nothing here imports one.

    scheduler side   Lookups (how much of a prompt is there), SessionDesk (turns), Outcomes (what all ranks reported),
                     LoadPause (whether to load at all)
    worker side      BlockRuns (where a block's bytes lie), Saver, Loader, LayerLoader
    with a device    devices.DeviceRuns, device_layers.DeviceLayerLoader in their place; these alone import torch
"""

from .door import Door, GroupPages
from .jobs import FinishJob, LoadJob, PageRun, SaveJob
from .layers import LayerLoader
from .loader import Loader
from .lookup import Answer, Lookups
from .names import names_of
from .outcomes import LoadOutcome, Outcomes, SaveOutcome
from .pause import LoadPause
from .prefill import PrefillClock
from .runs import BlockRuns, Shards
from .saver import Saver
from .sessions import Hints, SessionDesk

__all__ = [
    "Answer",
    "BlockRuns",
    "Door",
    "FinishJob",
    "GroupPages",
    "Hints",
    "LayerLoader",
    "LoadJob",
    "LoadOutcome",
    "LoadPause",
    "Loader",
    "Lookups",
    "Outcomes",
    "PageRun",
    "PrefillClock",
    "SaveJob",
    "SaveOutcome",
    "Saver",
    "SessionDesk",
    "Shards",
    "names_of",
]
