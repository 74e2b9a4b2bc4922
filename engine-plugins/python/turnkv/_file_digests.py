"""SHA-256 of large files: taken from the hub's blob names, remembered from an earlier time, or computed once by threads.

Owns: the user's memory of digests, one hashing process at a time, progress. Must not know: checkpoints, engines, pools.

    symlink into a hub cache's blobs/ -> the blob's name      else: remembered under the file's identity -> that
    else: hashed by threads while holding the user's lock, remembered, told
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import pathlib
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence

CHUNK_BYTES = 4 << 20
THREADS_MAX = 8
"""Files that are hashed at once; a core hashes 0.5 to 2 GB/s."""
REMEMBERED_MAX = 2048
"""Files whose digests a user's memory holds; the one remembered longest ago makes room."""
SETTLED_SECONDS = 2.0
"""A file changed so shortly ago is hashed but not remembered: it could change again under the same time stamp."""
BLOB_SLACK_SECONDS = 2.0
"""A hub's blob is written before the link to it; one that is younger by more was written through the link since."""
LOCK_POLL_SECONDS = 0.05
PATIENCE_SECONDS = 20.0
"""So long somebody waits for a digest; what takes longer goes on at low priority, beside whoever went on without."""
PROGRESS_SECONDS = 5.0
PROGRESS_BYTES_MIN = 1 << 30
"""Less than this is hashed without a word."""
_BLOB_NAME = re.compile("[0-9a-f]{64}")
_FORMAT = 1


class ChangedError(OSError):
    """A file changed while it was hashed: no digest says what was read from it before."""


def identity_of(stat: os.stat_result) -> str:
    """What a file's digest is remembered under. The time of the inode's change cannot be set back, unlike the content's."""
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def file_digests(files: Sequence[pathlib.Path], logger: logging.Logger) -> list[str]:
    """SHA-256 (hex) of each file's content. Blocks while they are hashed, here or by another process of this user.

    Raises OSError for a file that cannot be read or changes meanwhile.
    """
    stats = [file.stat() for file in files]
    digests = [blob_digest(file, stat) for file, stat in zip(files, stats, strict=True)]
    memory = _Memory()
    while True:
        known = memory.read()
        for at, stat in enumerate(stats):
            digests[at] = digests[at] or known.get(identity_of(stat))
        missing = [at for at, digest in enumerate(digests) if digest is None]
        if not missing:
            return [digest for digest in digests if digest is not None]
        with memory.alone() as alone:
            known = memory.read() if alone else {}
            missing = [at for at in missing if identity_of(stats[at]) not in known]
            if alone and missing:
                for at, digest in _Hashing([(files[at], stats[at]) for at in missing], memory, logger).run():
                    digests[missing[at]] = digest
        if not alone:
            time.sleep(LOCK_POLL_SECONDS)


def blob_digest(file: pathlib.Path, stat: os.stat_result) -> str | None:
    """The digest in the name of the hub cache's blob that `file` links to; None for other files and overwritten blobs."""
    if not file.is_symlink():
        return None
    blob = file.resolve()
    if blob.parent.name != "blobs" or not _BLOB_NAME.fullmatch(blob.name):
        return None
    written_since = stat.st_mtime_ns - file.lstat().st_mtime_ns > BLOB_SLACK_SECONDS * 1e9
    return None if written_since else blob.name


class _Memory:
    """The user's digests by file identity: one small file. Without a place for it nothing is remembered."""

    def __init__(self) -> None:
        self._folder = _user_folder()

    def read(self) -> dict[str, str]:
        """All that is remembered on this host; nothing if the file is not ours alone, or is no such memory."""
        if self._folder is None:
            return {}
        try:
            with open(self._folder / "checkpoints.json", encoding="utf-8") as file:
                stat = os.fstat(file.fileno())
                if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
                    return {}
                value = json.load(file)
            digests = value["digests"] if value["format"] == _FORMAT and value["host"] == _host() else {}
            return {str(key): str(digest) for key, digest in digests.items() if _BLOB_NAME.fullmatch(str(digest))}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def add(self, key: str, digest: str) -> None:
        """Remembers one more; the caller is `alone`. A reader sees the old file or the new one, whole."""
        if self._folder is None:
            return
        known = self.read()
        known.pop(key, None)
        known[key] = digest
        kept = dict(list(known.items())[-REMEMBERED_MAX:])
        try:
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self._folder, prefix="checkpoints.", suffix=".new", delete=False
            ) as file:
                json.dump({"format": _FORMAT, "host": _host(), "digests": kept}, file)
            os.replace(file.name, self._folder / "checkpoints.json")
        except OSError:
            self._folder = None  # a full disk, say: hashing goes on, the next start does it again

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other process of this user hashes meanwhile. Without a place for a lock each hashes for itself."""
        try:
            if self._folder is None:
                raise FileNotFoundError
            lock = open(self._folder / "checkpoints.lock", "ab")  # noqa: SIM115  # a failure to open is not one of the work
        except OSError:
            yield True
            return
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass  # a file system without locks
            yield True


class _Hashing:
    """Several files, hashed by several threads; `run` tells each one's digest as it is known."""

    def __init__(self, files: list[tuple[pathlib.Path, os.stat_result]], memory: _Memory, logger: logging.Logger) -> None:
        self._files, self._memory, self._logger = files, memory, logger
        self._state = threading.Condition()
        self._next, self._bytes_done = 0, 0
        self._done: list[tuple[int, str]] = []
        self._failed: OSError | None = None
        self._bytes = sum(stat.st_size for _, stat in files)
        self._patience_ends = time.monotonic() + PATIENCE_SECONDS

    def run(self) -> list[tuple[int, str]]:
        """(index, digest) of all files. Raises OSError; what was hashed by then is remembered."""
        begun = said = time.monotonic()
        for _ in range(min(THREADS_MAX, os.cpu_count() or 1, len(self._files))):
            threading.Thread(target=self._work, name="turnkv-digest", daemon=True).start()
        taken = 0
        with self._state:
            while taken < len(self._files) and self._failed is None:
                self._wait(taken)
                for at, digest in self._done[taken:]:
                    self._remember(at, digest)
                taken = len(self._done)
                if self._bytes >= PROGRESS_BYTES_MIN and time.monotonic() - said >= PROGRESS_SECONDS:
                    said = time.monotonic()
                    self._say(said - begun)
            if self._failed is not None:
                raise self._failed
        if self._bytes >= PROGRESS_BYTES_MIN:
            self._say(time.monotonic() - begun)
        return self._done

    def _wait(self, taken: int) -> None:
        """Waits, for a while, until more than `taken` files are done, or one failed."""
        self._state.wait_for(lambda: len(self._done) > taken or self._failed is not None, PROGRESS_SECONDS)

    def _work(self) -> None:
        while True:
            with self._state:
                at = self._next
                self._next += 1
                if at >= len(self._files) or self._failed is not None:
                    return
            try:
                digest = self._hash(*self._files[at])
            except OSError as error:
                with self._state:
                    self._failed = error
                    self._state.notify_all()
                return
            with self._state:
                self._done.append((at, digest))
                self._state.notify_all()

    def _hash(self, path: pathlib.Path, stat: os.stat_result) -> str:
        digest, buffer = hashlib.sha256(), bytearray(CHUNK_BYTES)
        view = memoryview(buffer)
        with open(path, "rb", buffering=0) as file:
            while length := file.readinto(buffer):
                digest.update(view[:length])
                if time.monotonic() > self._patience_ends:
                    _step_back()
                with self._state:
                    self._bytes_done += length
                    if self._failed is not None:
                        raise self._failed
            if identity_of(os.fstat(file.fileno())) != identity_of(stat):
                raise ChangedError(f"{path} changed while it was digested")
        return digest.hexdigest()

    def _remember(self, at: int, digest: str) -> None:
        stat = self._files[at][1]
        if time.time() - max(stat.st_mtime, stat.st_ctime) > SETTLED_SECONDS:
            self._memory.add(identity_of(stat), digest)

    def _say(self, seconds: float) -> None:
        self._logger.info(
            "TurnKV: digesting the checkpoint's files, once: %.1f of %.1f GB, %.2f GB/s",
            self._bytes_done / 1e9,
            self._bytes / 1e9,
            self._bytes_done / 1e9 / max(seconds, 1e-3),
        )


def _step_back() -> None:
    """This thread is in nobody's way from here on."""
    with contextlib.suppress(OSError):  # not every system lets a thread alone do that
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _user_folder() -> pathlib.Path | None:
    """Where this user keeps what can be made anew; private."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        return None
    folder = pathlib.Path(base, "turnkv")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK)
    except OSError:
        return None
    return folder if mine else None


def _host() -> str:
    """Device and inode numbers mean something on one host only, but a home may be shared by several."""
    try:
        named = pathlib.Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        named = ""
    return hashlib.sha256(f"turnkv-host {named} {os.uname().nodename}".encode()).hexdigest()[:16]
