"""The commands in docs/engines/sglang.md are ones that SGLang takes, its table of options is complete, and so is the example."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import pathlib
import re
import shlex

from sglang.srt.mem_cache.unified_cache.linker_config import UnifiedCacheLinkerConfig
from sglang.srt.server_args import ServerArgs

import turnkv.sglang
from turnkv.sglang import options

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs" / "engines" / "sglang.md"
EXAMPLE = DOCS.parents[2] / "examples" / "python" / "sglang_turns.py"
COMMAND = re.compile(r"^    python -m sglang\.launch_server (.*)$", re.MULTILINE)


def test_commands_work_as_pasted() -> None:
    commands = COMMAND.findall(DOCS.read_text())
    assert len(commands) == 3
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    for command in commands:
        args = parser.parse_args(shlex.split(command))
        if args.hicache_storage_backend is not None:
            extra = json.loads(args.hicache_storage_backend_extra_config)
            assert extra["hicache_storage_pass_prefix_keys"] is True and extra["interface_v1"] == 1
            assert issubclass(getattr(turnkv.sglang, extra["class_name"]), turnkv.sglang.HiCacheBackend)
        else:
            given = args.unified_cache_external_linker_config
            config = UnifiedCacheLinkerConfig.from_dict(json.loads(given) if isinstance(given, str) else given)
            assert config.linker == "Linker" and config.linker_module_path == "turnkv.sglang"
            extra = config.linker_extra_config
        assert options.parse(extra).pool == "unix:/run/turnkv/turnkv.sock"


def test_every_option_is_in_the_table() -> None:
    table = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    named = {name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    fields = {field.name for field in dataclasses.fields(options.Options)}
    assert fields <= named, fields - named
    for line in table:
        for name, default in re.findall(r"^\| `(\w+)` \| (\d+) \|", line):
            assert getattr(options.Options(), name) == int(default), line


def test_the_example_gives_settings_that_the_engine_takes() -> None:
    spec = importlib.util.spec_from_file_location("sglang_turns", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    settings = example.settings("Qwen/Qwen3-0.6B", "unix:/run/turnkv/turnkv.sock")
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    unset = vars(parser.parse_args(["--model-path", "none"]))
    assert set(settings) <= set(unset), set(settings) - set(unset)
    config = UnifiedCacheLinkerConfig.from_dict(json.loads(settings["unified_cache_external_linker_config"]))
    assert config.linker == "Linker" and config.linker_module_path == "turnkv.sglang"
    assert options.parse(config.linker_extra_config).pool == "unix:/run/turnkv/turnkv.sock"
