"""A checkpoint's files as the name of its weights: engines that load the same files share pages, wherever the files lie.

Owns: finding a checkpoint on this host, which of its files say what K and V come out, the name while it is being found
out. Must not know: engines, pools, how a file is digested. (`fingerprint` names a model in memory.)
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import pathlib
import re
import threading
import time
from collections.abc import Sequence

import turnkv

from ._file_digests import PATIENCE_SECONDS, file_digests, identity_of

logger = logging.getLogger("turnkv.checkpoint")

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
TRAINING_FILES = re.compile(r"(optimizer|scheduler|scaler|training_args|rng_state).*\.(bin|pt|pth)")
"""Left by trainers beside the weights; no engine loads them."""
SETTING_FILES = re.compile(r"(config|params|adapter_config|.*quant.*|.*scales.*|.*\.index)\.json")
"""Read whole, they are small. Not a tokenizer's, which may lie here or not: pages are named by token ids."""
CODE_KEY = b"auto_map"
"""Says in a configuration that the model's own code beside it is run."""
START_WAIT_SECONDS = PATIENCE_SECONDS
"""How long an engine's start waits for the name; then it goes on without pages until the name is known."""
NAMES_MAX = 64
"""Checkpoints whose names one process remembers."""
LINKS_MAX = 40
"""Symbolic links on the way to one file; the system follows no more either."""
_GGUF_PART = re.compile(r"(.*)-\d{5}-of-\d{5}\.gguf")


def checkpoint_folder(model: str, revision: str | None, cache_dir: str | None = None) -> pathlib.Path | None:
    """Where a checkpoint lies here: the folder `model`, that of the file `model`, or its place in the hub's cache."""
    here = pathlib.Path(model)
    if here.is_dir():
        return here
    if here.is_file():
        return here.parent
    for name in ("config.json", "adapter_config.json"):
        try:
            from huggingface_hub import try_to_load_from_cache

            found = try_to_load_from_cache(model, name, cache_dir=cache_dir, revision=revision)
        except Exception as error:  # not a name that the hub knows: whatever it raises
            logger.debug("turnkv: %s is not in the hub's cache: %s", model, error)
            return None
        if isinstance(found, str):
            return pathlib.Path(found).parent
    return None


def weights_path(model: str, revision: str | None, cache_dir: str | None = None) -> pathlib.Path | None:
    """What to digest of a checkpoint: its folder, or the file `model` itself, which may lie beside other models.

    None when no weights are there: an engine that streams them from elsewhere leaves a folder with settings only.
    """
    here = pathlib.Path(model)
    path = here if here.is_file() else checkpoint_folder(model, revision, cache_dir)
    return path if path is not None and files_of(path)[0] else None


def checkpoint_digest(path: pathlib.Path, log: logging.Logger = logger) -> str:
    """SHA-256 (hex) over the names and whole contents of a checkpoint's weights and settings; `path`: folder or file.

    Any changed byte changes it, and it is the same on every host. Blocks while files are hashed that no one hashed before
    (`_file_digests`): call it from a thread, or use `WeightsName`. Raises OSError.
    """
    weights, settings = files_of(path)
    digests = {file.name: digest for file, digest in zip(weights, file_digests(weights, log), strict=True)}
    digests.update((file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in settings)
    digest = hashlib.sha256(b"turnkv-checkpoint-2")
    for name in sorted(digests):
        digest.update(f"\0{name}\0{digests[name]}".encode())
    return digest.hexdigest()


def files_of(path: pathlib.Path) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """The weights, and the settings, that a checkpoint's name is made of."""
    if path.is_file():
        part = _GGUF_PART.fullmatch(path.name)
        others = (_GGUF_PART.fullmatch(file.name) for file in path.parent.iterdir()) if part else iter(())
        names = [other[0] for other in others if part and other and other[1] == part[1]]
        return [path.parent / name for name in sorted(names)] or [path], []
    files = [file for file in sorted(path.iterdir()) if file.is_file()]
    weights = [file for file in files if file.suffix in WEIGHT_SUFFIXES and not TRAINING_FILES.fullmatch(file.name)]
    settings = [file for file in files if SETTING_FILES.fullmatch(file.name)]
    if any(file.name == "config.json" and CODE_KEY in file.read_bytes() for file in settings):
        settings += [file for file in files if file.suffix == ".py"]
    return weights, settings


def weights_identities(path: pathlib.Path) -> list[str]:
    """Of every file that a checkpoint's name is made of, as it is now: equal ones are of the same, unchanged files."""
    try:
        weights, settings = files_of(path)
        return [f"{file.name}:{identity_of(os.stat(file))}" for file in (*weights, *settings)]
    except OSError as error:
        return [f"unreadable: {error}"]


def last_change_ns(path: pathlib.Path) -> int:
    """When a checkpoint's files, its folder or a link on the way to them changed last, as the file system says. Raises OSError.

    Whatever is moved into a place counts as changed then, a folder that holds its folder excepted.
    """
    weights, settings = files_of(path)
    stats = [os.stat(file) for file in (path, *weights, *settings)]
    for file in (path, *weights, *settings):
        stats += _links_to(file)
    return max(max(stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats)


def _links_to(path: pathlib.Path) -> list[os.stat_result]:
    """Every symbolic link that is followed from a path to its file."""
    links: list[os.stat_result] = []
    path = pathlib.Path(os.path.abspath(path))
    while len(links) < LINKS_MAX:
        link = next((part for part in reversed((path, *path.parents)) if part.is_symlink()), None)
        if link is None:
            return links
        links.append(link.lstat())
        path = pathlib.Path(os.path.abspath(link.parent / os.readlink(link) / path.relative_to(link)))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


class WeightsName:
    """The name of an engine's weights, found out beside the engine's work. Threads may share it."""

    def __init__(self, prefix: str, paths: Sequence[pathlib.Path], log: logging.Logger = logger) -> None:
        """`paths`: the checkpoint; a drafter's after it, if its K and V are in the pages too."""
        self._prefix, self._paths, self._log = prefix, list(paths), log
        self._known = threading.Event()
        self._name: str | None = None
        threading.Thread(target=self._find, name="turnkv-weights", daemon=True).start()

    @staticmethod
    def of(prefix: str, paths: Sequence[pathlib.Path], log: logging.Logger = logger) -> WeightsName:
        """This process's one for these files as they are now: the sides of an engine do not hash them twice."""
        key = (prefix, *(f"{path}:{identity}" for path in paths for identity in weights_identities(path)))
        with _names_lock:
            if key not in _names:
                while len(_names) >= NAMES_MAX:
                    _names.pop(next(iter(_names)))
                _names[key] = WeightsName(prefix, paths, log)
            return _names[key]

    def get(self) -> str:
        """The name. Raises turnkv.Error (kind "unnamed") while it is not known: no page can be named, so none moves."""
        if self._name is None:
            error = turnkv.Error(
                "the checkpoint's files are still being digested"
                if not self._known.is_set()
                else "the checkpoint's files could not be digested: set model_id"
            )
            error.kind, error.advice = "unnamed", "recompute"
            raise error
        return self._name

    def is_pending(self) -> bool:
        """Whether the name may still become known."""
        return not self._known.is_set()

    def wait(self, seconds: float = START_WAIT_SECONDS) -> bool:
        """Waits for the name, so that an engine's first turns find and store pages; whether it is known."""
        if not self._known.wait(min(0.1, seconds)) and seconds > 0.1:
            self._log.info("TurnKV: digesting the checkpoint's files, once; the start waits for at most %d s", seconds)
            if not self._known.wait(seconds):
                self._log.warning(
                    "TurnKV: the checkpoint's files are still being digested: until that is done pages are "
                    "neither stored nor loaded; model_id names the weights without it"
                )
        return self._name is not None

    def _find(self) -> None:
        begun = time.monotonic()
        try:
            digests = [checkpoint_digest(path, self._log) for path in self._paths]
            whole = digests[0] if len(digests) == 1 else hashlib.sha256("\0".join(digests).encode()).hexdigest()
            self._name = self._prefix + whole
            if time.monotonic() - begun > START_WAIT_SECONDS:
                self._log.info("TurnKV: the checkpoint's files are digested: pages are stored and loaded from here on")
        except Exception as error:  # whatever it is: without a name nothing may be shared
            self._log.warning(
                "TurnKV: the checkpoint's files could not be digested, so pages are neither stored nor "
                "loaded; set model_id to name the weights: %s",
                error,
            )
        self._known.set()


def name_of(weights: str | WeightsName) -> str:
    """The name of weights as an open namespace needs it. Raises turnkv.Error while it is not known."""
    return weights if isinstance(weights, str) else weights.get()


_names: dict[tuple[str, ...], WeightsName] = {}
_names_lock = threading.Lock()
